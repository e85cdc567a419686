"""Histories on a Slurm cluster with faults, in virtual time: they break no rule."""

from __future__ import annotations

import pytest

from scheduler.engines.slurm import attempt_driver
from tests.support.amounts import DRILL
from tests.support.sbatch_world import SbatchHistory
from tests.support.slurm_world import SlurmHistory
from tests.support.world import cut_down, live, pairs, plan, tell

STEPS = 30
PAIRS = pairs(SlurmHistory)


@pytest.mark.parametrize(("policy", "machine"), PAIRS)
def test_histories(policy: str, machine: str) -> None:
    first = 1000 * PAIRS.index((policy, machine))  # other histories for each
    for seed in range(first, first + (18 if DRILL else 3)):
        assert not (story := tell(seed, policy, machine, STEPS, world=SlurmHistory)), story


@pytest.mark.parametrize(("policy", "machine"), pairs(SbatchHistory))
def test_histories_with_jobs_of_sbatch(policy: str, machine: str) -> None:
    first = 1000 * pairs(SbatchHistory).index((policy, machine))
    for seed in range(first, first + (8 if DRILL else 1)):
        assert not (story := tell(seed, policy, machine, STEPS, world=SbatchHistory)), story


@pytest.mark.parametrize(
    ("seed", "policy", "machine"),
    [
        (19, "mctb", "whole"),  # --no-requeue: failed because its node was drained, before it had begun
        (28001, "mctb", "units"),  # behind a limit, left to Slurm on the node that tenbin had named: drained
        (60, "first-fit", "units"),  # held; fails where no look follows at once on the end of its attempt
    ],
)
def test_histories_with_jobs_of_sbatch_that_have_failed(seed: int, policy: str, machine: str) -> None:
    assert not (story := tell(seed, policy, machine, STEPS, world=SbatchHistory)), story


@pytest.mark.parametrize(
    ("seed", "policy", "machine"),
    [
        (15, "met", "whole"),  # --no-requeue: failed because its node was drained, before it had begun
        (45, "mct", "units"),
        # Taken back just before a kill: told as cancelled by somebody. Cancelled in Slurm just after a kill:
        # begun anew.
        (18001, "mctb", "units"),
        (524, "fifo-min", "capped"),  # cancelled in Slurm just after it had started: begun anew
        (5023, "easy", "whole"),  # taken back just before a kill: failed, though it had never begun
        # Cancelled in Slurm; its supervisor was killed before its result was visible: begun anew.
        (28009, "mctbm-priced", "whole"),
        (441, "conservative", "units"),  # begun, and pending again on a drained node: it ran for ever
        (20002, "weigh", "capped"),  # no node was in service: a share of nothing was computed
        (7014, "easy", "whole"),  # of the world: an ended job held CPUs of a node that is cut off
        (57, "regions", "whole"),  # of the world: a failure beside a lost node is not one of its program
        (529, "conservative", "units"),  # of the world: the same, of an attempt before the last one
        (113, "las", "nodes"),  # paused and placed elsewhere, sought there after a restart
        (102, "easy", "whole"),  # suspended and resumed by its owner: counted elsewhere than it went on
        (36007, "mctbm", "whole"),  # resumed by the policy: likewise
        (37, "met", "whole"),  # of the world: lost on one of two nodes, known once a lease is over
        (198, "easy", "gpus"),  # a node was set down on which a job had begun since the last snapshot
    ],
)
def test_histories_that_have_failed(seed: int, policy: str, machine: str) -> None:
    assert not (story := tell(seed, policy, machine, STEPS, world=SlurmHistory)), story


@pytest.mark.parametrize(
    ("seed", "policy", "machine"),
    [
        (372, "weigh", "capped"),  # another limit, while it waited for its watts: it was never submitted
        (215, "parm-ga", "capped"),  # of the world: its clock was not rounded as that of the coordinator is
        (863, "parm-ga", "capped"),  # paused on two nodes, and started on one: counted on one, went on on two
    ],
)
def test_histories_with_many_updates_that_have_failed(seed: int, policy: str, machine: str) -> None:
    steps = plan(seed, STEPS, SlurmHistory.weights | {"priority": 15})
    outcome = live(seed, policy, machine, steps, world=SlurmHistory)
    assert not outcome.rule, outcome.detail


def test_a_history_is_the_same_each_time() -> None:
    steps = plan(5, STEPS, SlurmHistory.weights)
    first, second = (live(5, "easy", "units", steps, world=SlurmHistory) for _ in range(2))
    assert first == second and first.jobs > 0


def test_a_fault_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that revokes no attempt, and takes it that it never starts."""
    monkeypatch.setattr(attempt_driver, "revoked", lambda _: True)
    plans = {seed: plan(seed, STEPS, SlurmHistory.weights) for seed in range(40)}
    seed = next(s for s, steps in plans.items() if live(s, "fcfs", "units", steps, world=SlurmHistory).rule)
    steps = cut_down(seed, "fcfs", "units", plans[seed], world=SlurmHistory)
    outcome = live(seed, "fcfs", "units", steps, world=SlurmHistory)
    assert outcome.rule in (
        "nothing runs that nobody knows",
        "a job runs once at a time",
        "who runs undisturbed is not cancelled",
    )
    assert len(steps) <= 8
