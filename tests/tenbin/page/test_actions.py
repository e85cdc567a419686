"""The buttons of the queue that need devices, or jobs that have ended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.moving import TWO
from tests.support.page import PageProcess
from tests.support.programs import opencl_devices
from tests.support.viewer import Viewer

SAVES_ITSELF = ["bash", "-c", "trap 'exit 85' URG; while :; do sleep 0.05; done"]


@pytest.mark.slow
def test_jobs_move_and_run_again(up: Up, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_DEVICES", TWO)
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    moved = up.client.submit(SAVES_ITSELF, name="moved", checkpoint_signal=int(signal.SIGURG))
    up.client.submit(["false"], name="broken").exception(30)
    page = PageProcess(up.home)
    try:
        viewer = Viewer(browser, page)
        tab = viewer.tab
        viewer.row("moved").get_by_text("▶ running").wait_for()
        place = moved.info()["placement"]
        target = "pocl-1" if place == "pocl-0" else "pocl-0"
        viewer.row("moved").get_by_role("checkbox").click()
        tab.get_by_role("button", name="Move", exact=True).click()
        tab.get_by_role("dialog").get_by_label("To device or node").fill("nowhere")
        tab.keyboard.press("Enter")
        tab.get_by_text("it does not run on nowhere").wait_for()
        assert moved.info()["attempt"] == 1
        tab.get_by_role("button", name="Move", exact=True).click()
        tab.get_by_role("dialog").get_by_label("To device or node").fill(target)
        tab.keyboard.press("Enter")
        up.until(lambda: moved.info()["placement"] == target and moved.info()["attempt"] == 2, 30)
        viewer.row("moved").get_by_text(target).wait_for()
        viewer.row("moved").get_by_role("checkbox").uncheck()
        viewer.row("broken").get_by_role("checkbox").check()
        tab.get_by_role("button", name="Run again", exact=True).click()
        tab.get_by_text("1 job will run again.").wait_for()
        up.until(lambda: up.client.job(2).info()["attempt"] == 2 and up.client.job(2).done(), 30)
        viewer.close()
    finally:
        page.stop()
