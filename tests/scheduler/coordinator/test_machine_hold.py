"""A machine that is held, or unfit: what runs goes on, nothing is started, and then everything goes on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from profiles.checks.check import CheckStore, Verdict
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.jobs import Cluster, Pool
from tenbin.commands.measure.check import quiet_moment
from tenbin.errors import TenbinError
from tests.support.checks import figures_of, make_check
from tests.support.coordinator import Up
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why


def stage(up: Up, job: int) -> str:
    return str(up.client.call("GET", f"/jobs/{job}")["stage"])


NODES = Cluster((Pool("node", 2, resources=("cores", "memory_mb"), capacity=(1.0, 500.0)),))


@pytest.mark.parametrize(
    ("policy", "engine", "unit"),
    [("fcfs", ManualEngine(2), CORE), ("las", ManualEngine(cluster=NODES), Unit(node=True))],
    ids=["cores", "nodes"],
)
def test_a_held_machine_starts_nothing_and_goes_on(
    tmp_path: Path, policy: str, engine: ManualEngine, unit: Unit
) -> None:
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        running = submit(coordinator)
        assert "no job is started until" in coordinator.hold(600)
        waiting = submit(coordinator)
        assert shown(coordinator, running, waiting) == ["running", "waiting"]
        assert "for a check of this machine" in why(coordinator, waiting)
        engine.end(running)
        coordinator.turn()
        assert shown(coordinator, running, waiting) == ["done", "waiting"]
        assert coordinator.hold(0) == ""
        assert shown(coordinator, waiting) == ["running"]


def test_a_quiet_moment_waits_for_jobs_and_lets_go(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    job = up.client.submit(["sleep", "0.5"]).id
    up.until(lambda: stage(up, job) == "running")
    with quiet_moment(up.home, 20) as said:
        assert said == "the coordinator holds new jobs; no jobs run beside the check"
        assert stage(up, job) == "done"
        later = up.client.submit(["true"]).id
        assert stage(up, later) == "waiting" and "for a check" in up.run("status").stdout
    up.until(lambda: stage(up, later) == "done")
    for wrong in ("-1", "1e9", "nan"):
        with pytest.raises(TenbinError):
            up.client.call("POST", f"/hold?seconds={wrong}")


def test_without_a_coordinator_there_is_no_quiet_moment(tmp_path: Path) -> None:
    with quiet_moment(tmp_path / "nowhere", 5) as said:
        assert said == ""


def test_an_unfit_machine_gets_no_jobs_until_it_passes(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    store, figures = CheckStore(tmp_path / "store"), figures_of({"compute_gflops": 1.0})
    about = {"node": socket.gethostname(), "reason": "1 of 14 figures are worse"}
    store.append(make_check(0, figures, verdict=Verdict.CHANGED, **about))
    up.start("--cores", "1", "--drain-unfit")
    job = up.client.submit(["true"]).id
    told = up.client.call("GET", f"/jobs/{job}")
    assert (told["stage"], told["why"]) == ("waiting", "tenbin check: 1 of 14 figures are worse")
    store.append(make_check(1, figures, verdict=Verdict.PASS, **about))
    up.until(lambda: stage(up, job) == "done")
