"""The page beside a coordinator on a Slurm cluster: a lane a node, in a real browser."""

from __future__ import annotations

from typing import Any

from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.page import PageProcess
from tests.support.viewer import Viewer


def test_nodes_of_the_cluster_are_lanes(up: Up, lab: SlurmLab, browser: Any) -> None:
    up.start("--engine", "slurm")
    nodes = sorted(lab.nodes)
    jobs = [up.client.submit(["sleep", "600"], name=f"on-{n}", cores=2, expect_s={"": 60}) for n in range(4)]
    page = PageProcess(up.home)
    try:
        up.until(lambda: [job.info()["stage"] for job in jobs] == ["running"] * 3 + ["waiting"], 60)
        where = {job.info()["hosts"][0]: job.id for job in jobs[:3]}
        viewer = Viewer(browser, page)
        tab = viewer.tab
        for node, job in where.items():
            viewer.row(f"on-{job - 1}").get_by_text(node).wait_for()
        viewer.row("on-3").locator(".what").filter(has_text="starts about").wait_for()
        page.address = page.addresses(2)[-1]
        page.enter()

        def lanes() -> dict[str, int]:
            found = page.get("/api/gantt?from_s=0&until_s=1e10")
            assert [lane["name"] for lane in found["lanes"]][:3] == nodes
            return {one[0]: one[6] for one in found["rectangles"] if one[4] == "running"}

        up.until(lambda: lanes() == where)
        viewer.go("gantt")
        rows = tab.get_by_role("table", name="Jobs of the window").locator("tbody tr")
        rows.filter(has_text="on-3").get_by_text("planned").wait_for()
        viewer.go("nodes")
        for node in nodes:
            tab.get_by_role("heading", name=node).wait_for()
        tab.get_by_role("link", name=str(jobs[0].id), exact=True).wait_for()
        viewer.close()
    finally:
        assert page.stop() == 0
        up.run("cancel", "all")
        up.until(lambda: not up.client.call("GET", "/jobs"), 60)
