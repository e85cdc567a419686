"""The Node view: jobs where they are, the newest profile of the node, and the pictures of its report."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.node_profile.identity import node_kind
from profiles.card import card
from profiles.files.store import JobStore, Store, load
from scheduler.policies.sharing.pairing import directions
from tenbin.report.page import sections
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job
from tests.support.page import PageProcess
from tests.support.paths import ROOT
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe
from tests.tenbin.report.test_page import memory_samples

MEASURED = ROOT / "docs" / "measurements" / "vm-epyc-2core.json"
NASTY = "<img src=x onerror=alert(1)>"
PROGRAMS = ("lu", "stencil")


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store a measured profile as one of this node, with samples of memory, before the page starts."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    profile = load(MEASURED).model_copy(update={"node": socket.gethostname()})
    models = [m.model_copy(update={"note": NASTY}) for m in profile.models]
    kind = node_kind(profile.inventory)
    for name in PROGRAMS:
        JobStore().save(make_job(name, kind=kind), {})
    return Store().save(profile.model_copy(update={"models": tuple(models)}), {"memory": memory_samples()})


def test_a_node_has_its_jobs_and_its_profile(up: Up, page: PageProcess, view: Callable[..., Viewer]) -> None:
    job = up.client.submit(["sleep", "600"], name="here")
    up.client.submit(["sleep", "600"], name="later", cores=2)
    viewer = view(color_scheme="dark")
    viewer.go("nodes")
    main = viewer.tab.get_by_role("main")
    main.get_by_text("1 of 2 cores").wait_for()
    main.get_by_role("link", name=str(job.id), exact=True).wait_for()
    assert main.get_by_text("later").count() == 0
    profile = load(Store().of_node(socket.gethostname())[0])
    for figure in card(profile).figures:
        main.get_by_role("rowheader", name=figure.name, exact=True).first.wait_for()
    known = [make_job(name, kind=node_kind(profile.inventory)) for name in PROGRAMS]
    expected = [f"{one.predicted.value:.2f}" for one in directions(known) if one.predicted]
    assert main.get_by_role("table", name="Run time of a program").locator("td").all_inner_texts() == expected
    main.get_by_text(f"ago, a sample of job {job.id}").wait_for()
    axe(viewer)
    main.get_by_text("All coefficients of core").press("Enter")
    rows = main.get_by_role("table", name="Coefficients").locator("tbody tr")
    assert rows.count() == sum(len(model.coefficients) for model in profile.models)
    up.run("cancel", "1")
    main.get_by_text("0 of 2 cores").wait_for()
    main.get_by_text("later").wait_for()
    assert rows.count() > 0 and rows.first.is_visible()  # what was opened stays open


# The pictures of a node's report, one click from its name, under the strict policy.


@pytest.mark.slow
def test_the_pictures_of_the_report_are_one_click_away(
    up: Up, page: PageProcess, stored: Path, view: Callable[..., Viewer]
) -> None:
    up.client.submit(["sleep", "600"], name="here")
    path = stored / "profile.json"
    profile = load(path)
    expected = sections(path, profile)
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
