"""A job with alternatives on a machine with an emulated GPU: it runs as was chosen, and knows it."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from agent.emulation.emulated_gpus import uuid
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.page import PageProcess

PRINTS = 'echo "$TENBIN_ALTERNATIVE ${CUDA_VISIBLE_DEVICES:-none}"; sleep 60'


def test_the_second_job_gets_what_it_may_have_instead(up: Up) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-1", "--cores", "2")
    options = ("--gpus", "1", "--time", "1h", "--or", "cores=1,time=2h")
    jobs = [int(up.run("submit", *options, "--", "sh", "-c", PRINTS).stdout.split()[-1]) for _ in range(2)]
    for job in jobs:
        up.until(lambda job=job: up.client.output(job))
    printed = [up.client.output(job).decode().split() for job in jobs]
    assert printed == [["0", uuid(0)], ["1", "none"]]
    text = up.run("info", str(jobs[1])).stdout
    assert "asked for 1 core, 1 GPU; at most 1:00 h; or 1 core; at most 2:00 h (chosen)" in text, text
    up.run("cancel", *map(str, jobs))


def test_what_a_job_uses_is_told_of_the_alternative_that_was_chosen(up: Up) -> None:
    """Its GPUs, memory and time limit, in each command and on the page."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-1", "--cores", "2")
    options = ("-c", "3", "--memory", "2G", "--time", "1h", "--or", "gpus=1,memory=1G,time=2h")
    words = (
        "asked for 3 cores, 2 GB of memory; at most 1:00 h; or 1 core, 1 GB of memory, 1 GPU; at most 2:00 h"
    )
    dry_run = up.run("submit", "--dry-run", *options, "--", "sleep", "600").stdout
    assert words.removeprefix("asked for ") in dry_run.splitlines()[1] and "{" not in dry_run
    up.run("submit", *options, "--", "sleep", "600")

    def row(*command: str) -> dict[str, Any]:
        (only,) = json.loads(up.run(*command, "--json").stdout)
        return dict(only)

    up.until(lambda: row("history")["gpus_used"] is not None)
    used = row("history")
    assert (used["gpus_asked"], used["gpu_efficiency"], used["memory_asked_mb"]) == (1, 0, 1000)
    assert (used["time_limit_s"], used["cores"]) == (7200, 1)
    assert row("jobs")["gpus_asked"] == 1 and row("jobs")["time_limit_s"] == 7200
    info = up.run("info", "1").stdout
    assert f"{words} (chosen)" in info and " of 1000 MB" in info and "used 0 of 1 GPU on average" in info
    page = PageProcess(up.home)
    page.enter()
    rows = page.get("/api/jobs")["rows"]
    assert [(shown["time_limit_s"], shown["gpus_asked"]) for shown in rows] == [(7200, 1)]
    assert page.get("/api/jobs/1")["gpus_asked"] == 1 and page.stop() == 0
    up.run("cancel", "1")
