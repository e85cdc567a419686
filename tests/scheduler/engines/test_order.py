"""Order on every engine: waits for others, begins, deadlines and retries, also over a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.discovery import divide
from scheduler.engines.protocol import Machine
from scheduler.engines.slurm.discovery import slurm_cluster
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec

LATER_S = 1800.0
CASES = {  # in the order of submission
    "good": "true",
    "bad": "exit 3",
    "after-bad": "true",
    "any-of-bad": "true",
    "not-ok-of-bad": "true",
    "not-ok-of-good": "true",
    "array": "exit $TENBIN_ARRAY_INDEX",
    "members": "true",
    "any-of-array": "true",
    "not-ok-of-array": "true",
    "after-array": "true",
    "later": "true",
    "ended": "sleep 600",
    "unbegun": "true",
    "again": "echo x >> again; [ $(wc -l < again) = 2 ] || exit 3",
    "after-again": "test $(wc -l < again) = 2",
    "other-code": "echo x >> other; exit 3",
    "cancelled": "exit 3",
}
FIRST_ENDS = {
    **dict.fromkeys(("good", "any-of-bad", "not-ok-of-bad", "any-of-array", "not-ok-of-array"), "done"),
    **dict.fromkeys(("bad", "other-code"), "failed"),
    **dict.fromkeys(("after-bad", "not-ok-of-good", "after-array"), "cancelled"),
    **{"array[0]": "done", "array[1]": "failed", "members[0]": "done", "members[1]": "cancelled"},
}
LAST_ENDS = {
    **FIRST_ENDS,
    **dict.fromkeys(("later", "again", "after-again"), "done"),
    **dict.fromkeys(("unbegun", "cancelled"), "cancelled"),
    "ended": "killed",
}


def submit(coordinator: Coordinator, folder: Path) -> dict[str, Entry]:
    """Submit all cases at once."""
    now, place = time.time(), list(CASES).index
    retries = {"retries": 2, "retry_pause_s": LATER_S}
    fields = {
        "later": {"begin_s": now + LATER_S},
        "ended": {"deadline_s": now + LATER_S},
        "unbegun": {"begin_s": now + 9 * LATER_S, "deadline_s": now + 10 * LATER_S},
        "again": retries,
        "other-code": {**retries, "retry_codes": (4, 137)},
        "cancelled": retries,
    }
    waits = {
        "after-bad": ("after", "bad"),
        "any-of-bad": ("after_any", "bad"),
        "not-ok-of-bad": ("after_not_ok", "bad"),
        "not-ok-of-good": ("after_not_ok", "good"),
        "members": ("after_corr", "array"),
        "any-of-array": ("after_any", "array"),
        "not-ok-of-array": ("after_not_ok", "array"),
        "after-array": ("after", "array"),
        "after-again": ("after", "again"),
    }
    specs = [
        JobSpec.model_validate(
            {"command": ("sh", "-c", body), "folder": str(folder), "name": name, **fields.get(name, {})}
        )
        for name, body in CASES.items()
    ]
    entries = coordinator.submit(
        specs,
        {"PATH": "/usr/bin:/bin"},
        {place(name): {kind: [place(other)]} for name, (kind, other) in waits.items()},  # type: ignore[misc]
        {place("array"): [0, 1], place("members"): [0, 1]},
    )
    return {
        entry.spec.name + ("" if entry.array is None else f"[{entry.array_index}]"): entry
        for entry in entries
    }


def turn_until(coordinator: Coordinator, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        stages = {e.spec.name: e.stage for e in coordinator.job_table.entries.values()}
        assert time.monotonic() < deadline, stages
        coordinator.turn()
        time.sleep(0.02)


def check(machine: Machine, home: Path, folder: Path) -> None:
    with closing(Journal(home)) as journal, closing(machine.engine(home, home / "r")) as engine:
        coordinator = Coordinator(journal, engine, "easy", unit=machine.unit)
        jobs = submit(coordinator, folder)
        waiting = ("again", "cancelled")  # each has failed once

        def first_part() -> bool:
            settled = all(coordinator.job_table.settled(jobs[name].id) for name in FIRST_ENDS)
            paused = all(jobs[name].retried for name in waiting)
            return settled and paused and (folder / "again").exists() and jobs["ended"].alive

        turn_until(coordinator, first_part)
        told = {
            name: coordinator.why(job.id).sentence for name, job in jobs.items() if name not in FIRST_ENDS
        }
        assert told["later"].startswith("begins at 20")
        assert told["again"].startswith("exit code 3; tried again at ")
        assert told["again"].endswith(", 1 of 2 left")
        assert told["after-again"] == f"waits for job {jobs['again'].id} to succeed"
        assert jobs["again"].stage is Stage.HELD
        coordinator.cancel([jobs["cancelled"].id])
    assert {name: stage_of(home, jobs[name]) for name in FIRST_ENDS} == FIRST_ENDS

    # Another coordinator, later.
    with closing(Journal(home)) as journal, closing(machine.engine(home, home / "r")) as engine:

        def clock(skip_s: list[float] = [LATER_S + 60]) -> float:  # noqa: B006 (the clock is set by the test)
            return time.time() + skip_s[0]

        coordinator = Coordinator(journal, engine, "easy", clock=clock, unit=machine.unit)
        open_ones = coordinator.job_table.entries
        turn_until(coordinator, lambda: len(open_ones) == 1)
        assert coordinator.next_timer_s() is not None and jobs["unbegun"].id in open_ones
        coordinator.clock = lambda: clock([11 * LATER_S])
        coordinator.turn()
        assert not open_ones
        found = {entry.id: entry for entry in journal.entries()}
    assert {name: stage_of(home, job) for name, job in jobs.items()} == LAST_ENDS
    trouble = {name: found[job.id].trouble for name, job in jobs.items()}
    assert trouble["ended"] == "it reached its deadline"
    assert trouble["unbegun"] == "its deadline passed before it could start"
    assert trouble["not-ok-of-good"] == f"job {jobs['good'].id}, which had to fail, succeeded"
    assert trouble["members[1]"] == f"job {jobs['array[1]'].label}, which it waited for, did not succeed"
    again, other = found[jobs["again"].id], found[jobs["other-code"].id]
    assert (again.attempt, again.retried, again.code, again.trouble) == (2, 1, 0, "")
    assert (other.attempt, other.retried, other.code) == (1, 0, 3)
    assert (folder / "other").read_text() == "x\n" and (folder / "again").read_text() == "x\nx\n"


def stage_of(home: Path, entry: Entry) -> str:
    with closing(Journal(home)) as journal:
        return str(journal.stage(entry.id))


@pytest.mark.timeout(900)
def test_local(tmp_path: Path) -> None:
    check(divide("easy", 2, None), tmp_path / "home", tmp_path)


@pytest.mark.timeout(900)
def test_slurm(lab: object, tmp_path: Path) -> None:
    check(slurm_cluster("easy", tmp_path / "home", lease_s=600.0), tmp_path / "home", tmp_path)
