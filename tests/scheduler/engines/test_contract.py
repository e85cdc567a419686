"""One contract for all engines: what a policy is told follows from what it does, however jobs are run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.discovery import divide
from scheduler.engines.protocol import Machine
from scheduler.engines.registry import ENGINES, UpRequest, find, options
from scheduler.engines.registry import check as check_options
from scheduler.engines.slurm.discovery import slurm_cluster
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Job, Pool, Stop
from scheduler.policies.registry import POLICIES, PolicyEntry
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from tests.support import echo_engine
from tests.support.scheduling.scripted_policy import Scripted, Told

SHORT_S, LONG_S = 1.0, 3.0
# Begins anew where a checkpoint of it is: a file in its folder.
LEAVES = 'trap "touch kept; exit 85" URG; [ -e kept ] && sleep 1 && exit 0; while :; do sleep 0.05; done'
SCENARIOS: dict[str, tuple[dict[Told, list[tuple[str, int, int]]], list[Told], list[Stop]]] = {
    "a job after the other": (
        {("Submitted", 2): [("start", 1, 0)], ("Finished", 1): [("start", 2, 0)]},
        [
            *(("Submitted", 1), ("Submitted", 2), ("Started", 1)),
            *(("Finished", 1), ("Started", 2), ("Finished", 2)),
        ],
        [Stop.PAUSE, Stop.PAUSE],
    ),
    "one gives way to the other": (
        {
            ("Submitted", 2): [("start", 1, 0)],
            ("Started", 1): [("suspend", 1, 0)],
            ("Checkpointed", 1): [("start", 2, 0)],
            ("Finished", 2): [("resume", 1, 0)],
        },
        [
            *(("Submitted", 1), ("Submitted", 2), ("Started", 1), ("Checkpointed", 1)),
            *(("Started", 2), ("Finished", 2), ("Finished", 1)),
        ],
        [Stop.PAUSE, Stop.PAUSE],
    ),
    "one moves to another node": (
        {("Submitted", 1): [("start", 1, 0)], ("Started", 1): [("migrate", 1, 1)]},
        [("Submitted", 1), ("Started", 1), ("Checkpointed", 1), ("Started", 1), ("Finished", 1)],
        [Stop.CHECKPOINT],
    ),
    "one is at its limit": (
        {("Submitted", 1): [("start", 1, 0)]},
        [("Submitted", 1), ("Started", 1), ("Finished:killed", 1)],
        [Stop.NEVER],
    ),
}


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    script, _, _ = SCENARIOS[request.param]
    monkeypatch.setattr(Scripted, "script", dict(script))
    monkeypatch.setattr(Scripted, "told", [])
    monkeypatch.setattr(Scripted, "moves", {step[0] for steps in script.values() for step in steps})
    monkeypatch.setitem(
        POLICIES, "scripted", PolicyEntry("tests.support.scheduling.scripted_policy", "Scripted", "a script")
    )
    return str(request.param)


def as_told(told: list[Told]) -> tuple[dict[int | None, list[str]], list[Told]]:
    """Summarise what each job went through, and the order in which jobs left their nodes.

    Left to the engine: whether a start is told before another job's submission, and again after a pause; and
    whether a checkpoint of a job that moves is told, or the policy begins anew.
    """
    if "migrate" in Scripted.moves:
        told = [one for one in told if one[0] != "Checkpointed"]
    lives: dict[int | None, list[str]] = {}
    for what, job in told:
        life = lives.setdefault(job, [])
        if what != "Started" or not life or "Checkpointed" not in life or "migrate" in Scripted.moves:
            life.append(what)
    return lives, [one for one in told if one[0] not in ("Submitted", "Started")]


def test_simulated(scenario: str) -> None:
    _, expected, stops = SCENARIOS[scenario]
    pool = Pool("node", 2, resources=("cores", "memory_mb"), capacity=(1.0, 1000.0))
    killed = stops == [Stop.NEVER]
    arrivals = []
    for number, stop in enumerate(stops, 1):
        job = Job(number, 0.0, 1, SHORT_S if killed else None, stop=stop, demand=(1.0, 0.0))
        arrivals.append(Arrival(job, LONG_S))
    Simulator(Cluster((pool,)), arrivals, Scripted()).run()
    assert as_told(Scripted.told) == as_told(expected)


@contextmanager
def coordinator_on(machine: Machine, home: Path) -> Iterator[Coordinator]:
    journal = Journal(home)
    engine = machine.engine(home, home / "r")
    coordinator = Coordinator(journal, engine, "scripted", unit=machine.unit)
    try:
        yield coordinator
    finally:
        coordinator.engine.close()
        journal.close()


def specs(scenario: str, folder: Path) -> list[JobSpec]:
    stops = SCENARIOS[scenario][2]
    if stops == [Stop.CHECKPOINT]:
        return [JobSpec(command=("bash", "-c", LEAVES), folder=str(folder), checkpoint_signal=23)]
    # Without a limit what one took would be expected of the other, and the policy begin anew.
    limit = 0.5 if stops == [Stop.NEVER] else 60.0
    return [JobSpec(command=("sleep", "1"), folder=str(folder), time_s=limit) for _ in stops]


def check(coordinator: Coordinator, scenario: str, folder: Path) -> None:
    _, expected, stops = SCENARIOS[scenario]
    ids = [job.id for job in coordinator.submit(specs(scenario, folder), {"PATH": "/usr/bin:/bin"})]
    deadline = time.monotonic() + 90
    while not all(coordinator.job_table.settled(job) for job in ids):
        assert time.monotonic() < deadline, Scripted.told
        coordinator.turn()
        time.sleep(0.01)
    assert as_told(Scripted.told) == as_told(expected)
    ended = ["killed" if stops == [Stop.NEVER] else "done"] * len(ids)
    assert [str(coordinator.job_table.stage(job)) for job in ids] == ended
    nodes = coordinator.cluster.nodes["node"]
    assert nodes.free.tolist() == nodes.capacity.tolist()


def test_local(scenario: str, tmp_path: Path) -> None:
    with coordinator_on(divide("scripted", None, 2), tmp_path / "home") as coordinator:
        check(coordinator, scenario, tmp_path)


def test_slurm(scenario: str, lab: object, tmp_path: Path) -> None:
    machine = slurm_cluster("scripted", tmp_path / "home", lease_s=30.0)
    with coordinator_on(machine, tmp_path / "home") as coordinator:
        check(coordinator, scenario, tmp_path)


def test_an_engine_is_one_folder_and_one_line(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "echo", "tests.support.echo_engine")
    own = {option.name: option.default for engine in ENGINES for option in options(engine)}
    asked = UpRequest("scripted", tmp_path / "home", own=own)
    check_options("echo", asked, profiled=False)
    with find("echo", asked) as machine, coordinator_on(machine, tmp_path / "home") as coordinator:
        check(coordinator, scenario, tmp_path)
    given = UpRequest("scripted", tmp_path / "home", own={**own, "cores": 1})
    with pytest.raises(BadInput, match="--cores with --engine echo: it is of this machine"):
        check_options("echo", given, profiled=False)
    with pytest.raises(BadInput, match="--echoes is of the echo engine"):
        check_options("local", UpRequest("easy", tmp_path, own={**own, "echoes": 1}), profiled=False)


def test_the_echo_engine_is_small() -> None:
    files = Path(echo_engine.__file__).parent.glob("*.py")
    assert sum(len(file.read_text().splitlines()) for file in files) <= 120
