"""Probes that are interrupted, and processes of theirs whose parent is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from probes import compute, device, memory
from probes.registry import PROBES
from probes.run import Event, Run, samples_of
from profiles.fits import fit_samples
from profiles.records import Settings
from tests.probes.test_memory import small_area
from tests.probes.test_scaling import SMALL
from tests.support.labs.components import processes_below, require
from tests.support.paths import ROOT

CORE = min(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("probe", "count", "processes", "needs"),
    [
        ("memory", 5, 1, ()),
        ("compute", 4, 1, ()),
        ("network", 5, 3, ("mpi",)),  # mpiexec and two ranks
        ("scaling", 1, 1, ("mpi",)),
        ("storage", 1, 0, ()),
        ("device", 2, 1, ("key",)),
    ],
)
def test_ctrl_c_keeps_the_samples_and_leaves_nothing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    probe: str,
    count: int,
    processes: int,
    needs: tuple[str, ...],
) -> None:
    for fixture in needs:
        request.getfixturevalue(fixture)
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    monkeypatch.setattr(compute, "SMALL", SMALL)
    monkeypatch.setattr(memory, "choose_area", small_area)
    monkeypatch.setattr(device, "SESSION", "tests.probes.odd_sessions:Small")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before, events, children = os.sched_getaffinity(0), list[Event](), list[psutil.Process]()

    def emit(event: Event) -> None:
        events.append(event)
        if len(samples_of(events)) == count:
            children.extend(processes_below())
            raise KeyboardInterrupt

    settings = Settings(quick=True, storage=(tmp_path,), budget_s=30)
    with pytest.raises(KeyboardInterrupt):
        PROBES[probe].load()(Run(probe, settings, emit))
    samples = samples_of(events)
    assert len(samples) == count and os.sched_getaffinity(0) == before and not list(tmp_path.iterdir())
    assert len(children) >= processes
    assert psutil.wait_procs(children, timeout=20)[1] == [] and processes_below() == []
    models = fit_samples(probe, samples)
    assert models or probe != "device"


@pytest.mark.parametrize(
    "program",
    [
        "from probes.memory import WriterPool; from probes.memory_plan import Spot; pool = WriterPool(16)\n"
        f"pool.prepare([Spot({CORE}, 0, {CORE})])",
        f"from probes.compute import WorkerPool; pool = WorkerPool(None, False); pool.start([{CORE}])",
    ],
    ids=["memory", "compute"],
)
def test_workers_end_with_their_parent_even_when_it_is_killed(program: str) -> None:
    command = [sys.executable, "-c", f"{program}\nprint(1, flush=True); import time; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        below = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert below and not psutil.wait_procs(below, timeout=20)[1]
