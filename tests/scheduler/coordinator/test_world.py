"""Histories of a coordinator with faults, in virtual time: they break no rule (``tests.support.world``)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.machine_memory import MachineMemory
from tests.support.amounts import DRILL
from tests.support.world import cut_down, live, pairs, plan, tell

STEPS = 30
PAIRS = pairs()


@pytest.mark.parametrize(("policy", "machine"), PAIRS)
def test_histories(policy: str, machine: str) -> None:
    first = 1000 * PAIRS.index((policy, machine))  # other histories for each
    for seed in range(first, first + (24 if DRILL else 4)):
        assert not (story := tell(seed, policy, machine, STEPS)), story


@pytest.mark.parametrize(
    ("seed", "policy", "machine"),
    [
        (149, "mctm", "devices"),  # a job begins where another, at this instant, is about to move to
        (2001, "fcfs", "devices"),  # resumed while it left, by a policy that resumes none: it waited for ever
        (876, "las-drf", "nodes"),  # cancelled on a full disk, then the coordinator stopped: the job ran
        (48, "mctbm", "devices"),  # started for a microsecond in units that another job moves to
        (160, "weigh", "choices"),  # an array tried again twice while the disk was full: its jobs began twice
        (34002, "mctb", "devices"),  # waits for a failure that a retry has undone: held without a reason
        (54006, "las-prompt", "nodes"),  # suspended and resumed as it wrote its checkpoint: it was failed
        (272, "regions", "cores"),  # the clock was set back to before the begin of a job that waits
        (900002, "weigh", "memory"),  # the chosen alternative lacked memory: the policy began anew for ever
        (513587, "kairos", "choices"),  # short of memory in one alternative: in its own way in another
    ],
)
def test_histories_that_have_failed(seed: int, policy: str, machine: str) -> None:
    assert not (story := tell(seed, policy, machine, STEPS)), story


def test_a_history_is_the_same_each_time() -> None:
    first, second = (live(5, "easy", "cores", plan(5, STEPS)) for _ in range(2))
    assert first == second and first.jobs > 0


def test_a_fault_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that accepts a cancel and forgets it."""

    def forget(coordinator: Coordinator, job_ids: Sequence[int]) -> dict[int, object]:
        for job_id in job_ids:
            coordinator.job_table.open(job_id)
        return {}

    monkeypatch.setattr(Coordinator, "cancel", forget)
    seed = next(seed for seed in range(40) if live(seed, "fcfs", "cores", plan(seed, STEPS)).rule)
    steps = cut_down(seed, "fcfs", "cores", plan(seed, STEPS))
    outcome = live(seed, "fcfs", "cores", steps)
    assert outcome.rule == "a cancelled job does not go on"
    assert {"submit", "cancel"} <= {step.what for step in steps} and len(steps) <= 4


@pytest.mark.parametrize(
    ("policy", "machine"), [("easy", "memory"), ("kairos", "nodes"), ("las-mq", "nodes")]
)
def test_memory_that_is_not_there_is_noticed(
    monkeypatch: pytest.MonkeyPatch, policy: str, machine: str
) -> None:
    """A coordinator that gives 300 MB more than there are."""
    enough = MachineMemory.__init__
    monkeypatch.setattr(MachineMemory, "__init__", lambda memory, mb: enough(memory, mb + 300.0))
    rules = (live(seed, policy, machine, plan(seed, STEPS)).rule for seed in range(40))
    assert "memory is enough" in rules
