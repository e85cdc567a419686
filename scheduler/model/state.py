"""The cluster state: jobs that wait, run or are suspended, and free units. Every change is checked first.

Simulator and coordinator share this class. A policy reads it as its ``View`` and never changes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from scheduler.model.allocation import Allocation, RuleBroken
from scheduler.model.costs import FREE, Costs
from scheduler.model.events import Event
from scheduler.model.interference import NOTHING_KNOWN, Slowdowns
from scheduler.model.job_state import RUNNING, STOPPING, SUSPENDED, WAITING, JobState, Stage
from scheduler.model.jobs import CHECKPOINT, NEVER, PAUSE, Cluster, Job, Placement, Stop, instant

if TYPE_CHECKING:
    from profiles.records import Profile

__all__ = [
    "RUNNING",
    "STOPPING",
    "SUSPENDED",
    "WAITING",
    "ClusterState",
    "JobState",
    "RuleBroken",
    "Stage",
    "estimate_under",
]


def estimate_under(job: Job, placement: Placement) -> float:
    """Return the believed run time of the whole job under a placement."""
    return job.estimate_on(placement.pool, placement.units, placement.cap_w)


@dataclass
class ClusterState(Allocation):
    """The state of one cluster, which is the ``View`` of a policy.

    The policy shares the mappings, and only reads them. Methods raise ``RuleBroken``.

    Attributes:
        ranked: a job had a priority.
    """

    cluster: Cluster
    costs: Costs = FREE
    profiles: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({}))
    slowdowns: Slowdowns = NOTHING_KNOWN
    now: float = 0.0
    upcoming: type[Event] | None = None
    overtaken: bool = field(default=False, init=False)  # ``arrange`` is due before the next decision

    def __post_init__(self) -> None:
        super().__init__()
        # Ordered, because the first item of a plain dictionary gets slow as its front is deleted.
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self.running: dict[int, JobState] = {}
        self.suspended: dict[int, JobState] = {}
        self._jobs: dict[int, JobState] = {}
        self.ranked = False

    def state(self, job_id: int) -> JobState:
        return self._jobs[job_id]

    # -- transitions of jobs -----------------------------------------------------------------------------

    def submit(self, job: Job) -> JobState:
        """Let a new job wait."""
        if job.id in self._jobs:
            self.broken(job.id, "submit", "a job of this number is already in the system")
        if job.priority or self.ranked:
            self._rank(job)
        self.waiting[job.id] = job
        state = self._jobs[job.id] = JobState(job=job, since_s=self.now)
        return state

    def start(self, job_id: int, placement: Placement) -> JobState:
        """Start a waiting job; work that a checkpoint kept of it needs a restart."""
        job = self.waiting.get(job_id)
        if job is None:
            self._not("start", job_id, "waiting")
        state = self._jobs[job_id]
        if placement.units != job.units or (job.estimates_s and placement.pool not in job.estimates_s):
            self._check_shape("start", job, placement)
        self._take("start", job, placement)
        del self.waiting[job_id]
        if state.start_s is None:
            state.start_s = self.now
        self._run(state, placement, state.served_s > 0.0)
        return state

    def resume(self, job_id: int, placement: Placement) -> JobState:
        """Resume a suspended job."""
        state = self.suspended.get(job_id)
        if state is None:
            self._not("resume", job_id, "suspended")
        job, before = state.job, state.place
        if placement.units != job.units or (job.estimates_s and placement.pool not in job.estimates_s):
            self._check_shape("resume", job, placement)
        moved = placement.pool != before.pool or placement.nodes != before.nodes
        if moved and job.stop is PAUSE:
            self.broken(job_id, "resume", "it can only be paused, so it must go on where it was")
        if not job.malleable and placement.units != before.units:
            self.broken(job_id, "resume", f"it ran on {before.units} units, and is not malleable")
        self._take("resume", job, placement)
        del self.suspended[job_id]
        state.migrations += moved
        self._run(state, placement, True)
        return state

    def check_stop(self, rule: str, job_id: int, least: Stop = PAUSE) -> JobState:
        """Return the running job if it may be stopped, else refuse."""
        state = self.running.get(job_id)
        if state is None:
            self._not(rule, job_id, "running")
        if state.stage is STOPPING:
            self.broken(job_id, rule, "it is already being stopped")
        if state.job.stop is NEVER or (least is CHECKPOINT and state.job.stop is PAUSE):
            self.broken(
                job_id,
                rule,
                "this job can only be paused" if state.job.stop is PAUSE else "this job cannot be stopped",
            )
        return state

    def begin_stop(self, state: JobState) -> None:
        """Mark the running job as stopping: it makes no progress but holds its units."""
        self._settle(state)
        state.stage = STOPPING
        state.since_s = self.now
        state.expected_end_s = math.inf

    def reserve(self, state: JobState, placement: Placement) -> None:
        """Give a stopping job the place to which it moves, until it goes on or leaves."""
        self._take("migrate", state.job, placement)
        state.moves_to = placement

    def go_on(self, state: JobState) -> None:
        """Let a stopping job run on where it is."""
        self._settle(state)
        self._give_reserved(state)
        state.stage = RUNNING
        state.since_s = self.now
        self.expect(state, self.now)

    def end_stop(self, state: JobState) -> None:
        """Suspend the job and free its units."""
        self._settle(state)
        self._leave(state)
        state.stage = SUSPENDED
        state.since_s = self.now
        state.expected_end_s = math.inf
        state.preemptions += 1
        self.suspended[state.job.id] = state

    def finish(self, state: JobState) -> None:
        """Remove a job that has ended."""
        if state.works and self.now > state.works_from_s:
            state.served_s += self.now - state.works_from_s
        self._leave(state)
        del self._jobs[state.job.id]

    def withdraw(self, job_id: int) -> None:
        """Remove a job that waits or is suspended."""
        del self._jobs[job_id]
        if self.waiting.pop(job_id, None) is None:
            del self.suspended[job_id]

    def reconsider(self, job: Job) -> None:
        """Replace what is known of a job that waits or runs; the policy must ``begin`` again."""
        state = self._jobs[job.id]
        state.job = job
        if state.stage is WAITING:
            self.waiting[job.id] = job
        elif state.stage is RUNNING:
            self.expect(state, state.works_from_s)

    def restore(self, state: JobState) -> None:
        """Enter a job after a restart as it was; a running job is charged its units."""
        job, stage = state.job, state.stage
        self._jobs[job.id] = state
        if stage is WAITING:
            state.expected_end_s = math.inf
            self._rank(job)
            self.waiting[job.id] = job
        elif stage is SUSPENDED:
            self.suspended[job.id] = state
        else:
            self._take_again(job, state.place)
            if state.moves_to is not None:
                self._take_again(job, state.moves_to)
            self.running[job.id] = state
            if stage is RUNNING:
                self.expect(state, state.works_from_s)

    def take_turn(self, job_id: int) -> None:
        """Put a waiting job before those of its priority that were submitted later."""
        job, others = self.waiting[job_id], reversed(self.waiting.values())
        next(others)
        last = next(others, job)
        if last.priority != job.priority or last.id < job_id:
            return
        for other in [other for other in self.waiting.values() if other.priority == job.priority]:
            if other.id > job_id:
                self.waiting.move_to_end(other.id)
        self.overtaken = True

    def fail(self, state: JobState, kept: float, kept_service_s: float) -> None:
        """Let a lost job wait ahead of its priority, with the share of its work that was kept."""
        if state.stage is SUSPENDED:
            del self.suspended[state.job.id]
        else:
            self._leave(state)
        state.stage = WAITING
        state.since_s = self.now
        state.expected_end_s = math.inf
        state.done, state.served_s = kept, kept_service_s
        state.failures += 1
        first = next(iter(self.waiting.values()), None)
        self.waiting[state.job.id] = state.job
        self.waiting.move_to_end(state.job.id, last=False)
        if first is not None and first.priority > state.job.priority:
            self.overtaken = True

    def arrange(self) -> None:
        """Sort the waiting jobs by priority, equal ones as they stand.

        The policy must ``begin`` anew, because all that it derived from the old order is void.
        """
        for job in sorted(self.waiting.values(), key=lambda job: -job.priority):
            self.waiting.move_to_end(job.id)
        self.overtaken = False

    def prioritize(self, jobs: Iterable[Job]) -> None:
        """Put waiting jobs whose priority has changed among the others; the policy must ``begin`` anew.

        Among equals a job stands by its number, a lost job before all others, as if submitted so.
        """
        new = {job.id: job for job in jobs}

        def turn(job: Job) -> tuple[int, bool, int]:
            return -job.priority, not self._jobs[job.id].failures, job.id

        others = (job for job in self.waiting.values() if job.id not in new)
        in_order = [
            *merge(sorted(others, key=lambda job: -job.priority), sorted(new.values(), key=turn), key=turn)
        ]
        for job in in_order:
            self._jobs[job.id].job = self.waiting[job.id] = job
            self.waiting.move_to_end(job.id)
        self.ranked = True

    def _rank(self, job: Job) -> None:
        """Set ``overtaken`` if the job that is about to wait belongs before others."""
        if job.priority or self.ranked:
            self.ranked = True
            last = next(reversed(self.waiting.values()), None)
            if last is not None and last.priority < job.priority:
                self.overtaken = True

    # -- changes of running jobs ----------------------------------------------------------------------

    def resize(self, state: JobState, placement: Placement) -> None:
        """Give a running malleable job other units."""
        job, before, job_id = state.job, state.place, state.job.id
        if not job.malleable and placement.units != before.units:
            self.broken(job_id, "resize", "the job is not malleable")
        if placement.pool != before.pool:
            self.broken(
                job_id, "resize", f"it runs on {before.pool}: moving to {placement.pool} is a migration"
            )
        self._check_shape("resize", job, placement)
        self._settle(state)
        self._give(job, before)
        self._take("resize", job, placement, self._pools[before.pool].power_w(before.units, before.cap_w))
        self._run(state, placement, False)

    def set_cap(self, state: JobState, cap_w: float | None) -> None:
        """Give a running job's units another power cap."""
        before, job_id = state.place, state.job.id
        after = Placement(before.pool, before.units, before.nodes, cap_w, before.region, before.binding)
        self._settle(state)
        self._add_power(before, -1)
        why = self._power_obstacle(after, self._pools[before.pool].power_w(before.units, before.cap_w))
        if why:
            self.broken(job_id, "set power cap", why)
        self._add_power(after, 1)
        self._run(state, after, False)

    def check_running(self, rule: str, job_id: int) -> JobState:
        """Return the job if it runs and is not being stopped, else refuse."""
        state = self.running.get(job_id)
        if state is None or state.stage is not RUNNING:
            self._not(rule, job_id, "running")
        return state

    def expect(self, state: JobState, works_from_s: float) -> None:
        """Let the job make progress from ``works_from_s``; its believed end follows from its estimate."""
        placement = state.place
        state.works_from_s = works_from_s
        whole = state.whole_s = state.job.estimate_on(placement.pool, placement.units, placement.cap_w)
        state.expected_end_s = instant(works_from_s + (1.0 - state.done) * whole)

    def _not(self, rule: str, job_id: int, stage: str) -> NoReturn:
        state = self._jobs.get(job_id)
        is_ = f"the job is {state.stage}" if state else "there is no such job in the system"
        self.broken(job_id, rule, f"{is_}, not {stage}")

    def _run(self, state: JobState, placement: Placement, restart: bool) -> None:
        state.placement = placement
        state.stage = RUNNING
        now = state.since_s = self.now
        self.running[state.job.id] = state
        self.expect(state, now + self.costs.restart_s(state.job, placement.pool) if restart else now)

    def _settle(self, state: JobState) -> None:
        """Add what the current run has done so far."""
        if state.works and self.now > state.works_from_s:
            state.done = state.done_by(self.now)
            state.served_s += self.now - state.works_from_s
            state.works_from_s = self.now

    def _leave(self, state: JobState) -> None:
        del self.running[state.job.id]
        self._give(state.job, state.place)
        self._give_reserved(state)
        if self._has_power and not self.running:
            self.power_w = 0.0  # no rounding error outlives an idle machine

    def _give_reserved(self, state: JobState) -> None:
        if state.moves_to is not None:
            self._give(state.job, state.moves_to)
            state.moves_to = None
