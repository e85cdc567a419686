"""The pictures of a node's report, one click from its name, under the strict policy."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.node_profile.identity import node_kind
from profiles.files.store import JobStore, Store, load, samples
from tenbin.report.page import jobs_beside, sections
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job
from tests.support.page import PageProcess
from tests.support.paths import ROOT
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe
from tests.tenbin.report.test_page import memory_samples

MEASURED = ROOT / "docs" / "measurements" / "vm-epyc-2core.json"
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store a measured profile as one of this node, with samples of memory, before the page starts."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    profile = load(MEASURED).model_copy(update={"node": socket.gethostname()})
    models = [m.model_copy(update={"note": NASTY}) for m in profile.models]
    kind = node_kind(profile.inventory)
    for name in ("stencil", "lu"):
        JobStore().save(make_job(name, kind=kind), {})
    return Store().save(profile.model_copy(update={"models": tuple(models)}), {"memory": memory_samples()})


@pytest.mark.slow
def test_the_pictures_of_the_report_are_one_click_away(
    up: Up, page: PageProcess, stored: Path, view: Callable[..., Viewer]
) -> None:
    up.client.submit(["sleep", "600"], name="here")
    path = stored / "profile.json"
    profile = load(path)
    expected = sections(profile, samples(path), jobs_beside(path, profile))
    assert [one["title"] for one in expected][-1] == "Jobs"
    figures = "".join(figure for one in expected for figure in one["figures"])
    titles = re.findall("<figcaption>([^<]*)", figures)
    assert len(titles) >= 2
    viewer = view(color_scheme="dark")
    tab, main = viewer.tab, viewer.tab.get_by_role("main")
    viewer.row("here").get_by_role("link", name="core").click()
    tab.get_by_role("heading", name="What is measured of core").wait_for()
    for title in titles:
        main.get_by_role("figure", name=title, exact=True).first.wait_for()
    assert main.locator("figure svg[role=img]").count() == len(titles)
    main.locator("summary").first.press("Enter")
    main.locator("figure table").first.wait_for()
    lines = main.locator("figure .line").first
    assert lines.evaluate("line => getComputedStyle(line).stroke") != "none"  # the style sheet is there
    axe(viewer)
    for view_name in ("job/1", "nodes", "gantt"):
        viewer.go(view_name)
        main.get_by_role("link", name="core", exact=True).first.press("Enter")
        tab.get_by_role("heading", name="What is measured of core").wait_for()
    viewer.go("measured/%")  # a broken escape is a name that nothing has
    main.get_by_text("Nothing was measured of % yet").wait_for()
    viewer.go("measured")
    main.get_by_role("link", name="core", exact=True).wait_for()
    axe(viewer)


def test_names_lead_nowhere_else(page: PageProcess) -> None:
    page.enter()
    for name in ("..", ".hidden", "nowhere", "%2e%2e", "a%5Cb"):
        code, found, _ = page.ask(f"/api/measured/{name}")
        assert code in (200, 404) and not (isinstance(found, dict) and found.get("measured")), name
    assert page.ask("/api/measured/a%2Fb")[0] == 404


def test_samples_that_cannot_be_read_are_named(page: PageProcess, stored: Path) -> None:
    (stored / "samples" / "memory.parquet").write_bytes(b"damaged")
    page.enter()
    code, found, _ = page.ask(f"/api/measured/{socket.gethostname()}")
    assert code == 503 and "memory.parquet" in found["detail"] and "Traceback" not in found["detail"]
