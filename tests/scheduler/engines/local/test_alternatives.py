"""A job with alternatives on a machine with an emulated GPU: it runs as was chosen, and knows it."""

from __future__ import annotations

import shutil

import pytest

from agent.emulation.emulated_gpus import uuid
from tests.support.coordinator import Up
from tests.support.labs.components import require

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
