"""GPUs on the page: of a node, and of a job, while it runs and after it; on a narrow screen too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.page import PageProcess
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe

HOLDS = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 20 << 30)
print("holds", flush=True)
while sys.argv[2] == "works": pass
sys.stdin.read()
"""


def test_gpus_are_shown_of_nodes_and_jobs(up: Up, browser: Any) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-4", "--cores", "2")
    files = up.home / "gpus" / "dev"
    command = [sys.executable, "-c", HOLDS, str(files / "nvidia3"), "waits"]
    job = up.client.submit(
        [sys.executable, "-c", HOLDS, str(files / "nvidia0"), "works"], gpus=2, name="train"
    )
    page = PageProcess(up.home)
    viewer = Viewer(browser, page, viewport={"width": 390, "height": 800})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        try:
            viewer.go("nodes")
            main = viewer.tab.get_by_role("main")
            table = main.get_by_role("table", name="GPUs of node0: Emulated GPU 80GB")
            row = [table.get_by_role("row").nth(number + 1) for number in range(4)]
            row[0].get_by_role("link", name=f"job {job.id}").wait_for()
            row[0].get_by_text("22 of 85.9 GB").wait_for()
            row[3].get_by_text("not given out").wait_for()
            main.get_by_text(f"GPU 3, outside of the queue: process {stranger.pid}").wait_for()
            assert row[2].inner_text().split() == ["2", "free", "0", "%", "0", "of", "85.9", "GB"]
            assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
            axe(viewer)
            if folder := os.environ.get("TENBIN_PICTURES"):
                _take(browser, page, Path(folder), job.id)
            row[0].get_by_role("link").click()
            main.get_by_text("GPUs now").wait_for()
            main.get_by_text("; 1: 0 %, 0 of 85.9 GB").wait_for()
            axe(viewer)
            job.cancel()
            main.get_by_text(" of 2 worked on average, ").wait_for()
        finally:
            stranger.kill()
    viewer.close()
    assert page.stop() == 0


def _take(browser: Any, page: PageProcess, folder: Path, job: int) -> None:
    """Take the picture of the documentation, in the light and in the dark."""
    for colour in ("light", "dark"):
        viewer = Viewer(browser, page, color_scheme=colour, viewport={"width": 1200, "height": 470})
        viewer.go("nodes")
        viewer.tab.get_by_role("link", name=f"job {job}").first.wait_for()
        viewer.tab.screenshot(path=str(folder / f"page-gpus-{colour}.png"))
        viewer.close()
