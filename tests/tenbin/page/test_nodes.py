"""The Node view: jobs where they are, and the newest profile of the node."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.node_profile.identity import node_kind
from profiles.card import card
from profiles.files.store import JobStore, Store, load
from scheduler.policies.sharing.pairing import directions
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job
from tests.support.page import PageProcess
from tests.support.paths import ROOT
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe

PROGRAMS = ("lu", "stencil")


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a measured profile as one of this node, before the page starts."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    measured = load(ROOT / "docs" / "measurements" / "vm-epyc-2core.json")
    Store().save(measured.model_copy(update={"node": socket.gethostname()}), {})
    for job in PROGRAMS:
        JobStore().save(make_job(job, kind=node_kind(measured.inventory)), {})


def test_a_node_has_its_jobs_and_its_profile(up: Up, page: PageProcess, view: Callable[..., Viewer]) -> None:
    job = up.client.submit(["sleep", "600"], name="here")
    up.client.submit(["sleep", "600"], name="later", cores=2)
    viewer = view(color_scheme="dark")
    viewer.go("nodes")
    main = viewer.tab.get_by_role("main")
    main.get_by_text("1 of 2 units").wait_for()
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
    main.get_by_text("0 of 2 units").wait_for()
    main.get_by_text("later").wait_for()
    assert rows.count() > 0 and rows.first.is_visible()  # what was opened stays open
