"""A machine that is held, or unfit: what runs goes on, nothing is started, and then everything goes on."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from profiles.checks.check import CheckStore, Verdict
from scheduler.engines.protocol import Nodes
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


class NamedNodes(Nodes):
    """One node of a cluster, with a name."""

    named = True


@pytest.mark.parametrize("nodes", [Nodes(), NamedNodes()], ids=["this machine", "a cluster"])
@pytest.mark.parametrize("cluster", [Cluster((Pool("core", 2),)), NODES], ids=["units", "nodes"])
def test_a_suspended_queue_starts_nothing_also_after_a_restart(
    tmp_path: Path, nodes: Nodes, cluster: Cluster
) -> None:
    engine = ManualEngine(cluster=cluster)
    engine.nodes = nodes
    unit, said = Unit(node=cluster is NODES), "the queue is suspended; go on with: tenbin resume --queue"
    policy = "las" if cluster is NODES else "fcfs"
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        running, ends = submit(coordinator), submit(coordinator)
        assert coordinator.suspend_queue(True) == said == coordinator.suspend_queue(True)
        waiting = submit(coordinator)
        engine.end(ends)
        coordinator.turn()
        assert shown(coordinator, running, ends, waiting) == ["running", "done", "waiting"]
        assert why(coordinator, waiting) == said
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        coordinator.turn()
        assert coordinator.why_held() == said
        assert shown(coordinator, running, waiting) == ["running", "waiting"]
        assert coordinator.suspend_queue(False) == ""
        assert shown(coordinator, running, waiting) == ["running", "running"]
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        assert coordinator.why_held() == ""


def test_a_queue_is_suspended_and_resumed(up: Up) -> None:
    """Of a coordinator that is ended and started again meanwhile."""
    said = "the queue is suspended; go on with: tenbin resume --queue"
    up.start("--cores", "2")
    running = up.client.submit(["sh", "-c", "until [ -e go ]; do sleep 0.05; done"], folder=str(up.home)).id
    up.until(lambda: stage(up, running) == "running")
    assert up.run("suspend", "--queue").returncode == 0
    job = up.client.submit(["true"]).id
    assert up.run("down").returncode == 0
    up.start("--cores", "2")
    assert f"held: {said}" in up.run("status").stdout
    assert said in up.run("info", str(job)).stdout and said in up.run("jobs").stdout
    (up.home / "go").touch()
    up.until(lambda: stage(up, running) == "done")
    assert stage(up, job) == "waiting"
    resumed = up.run("resume", "--queue", "--json")
    assert json.loads(resumed.stdout) == {"ids": [], "left_out": {}, "reasons": {}} and not resumed.stderr
    up.until(lambda: stage(up, job) == "done")
    for words in (("1", "--queue"), ("--name", "x", "--queue")):
        refused = up.run("suspend", *words)
        assert refused.returncode == 2 and "2 of JOB, --name and --queue are given" in refused.stderr


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
