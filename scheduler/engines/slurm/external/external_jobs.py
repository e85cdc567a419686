"""Runs the external jobs: jobs of plain ``sbatch``, which Slurm starts where and when tenbin says.

There is no folder and no supervisor: all that is known of an attempt is what Slurm shows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent.attempts.records import How, Result, Usage, Want
from scheduler.engines.external_jobs import ExternalJob
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts.signals import resume
from scheduler.engines.slurm.client.heartbeats import Key
from scheduler.engines.slurm.client.poller import Outcome, SlurmPoller
from scheduler.engines.slurm.client.tools import SlurmSilent
from scheduler.engines.slurm.external.sbatch_queue import SbatchJob, SbatchQueue, SeenJob
from scheduler.engines.slurm.nodes.node_inventory import NodeInventory
from scheduler.jobs.entry import Entry
from scheduler.model.jobs import Placement

ENDS: Mapping[str, How] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "OUT_OF_MEMORY": "memory-limit",
}
LOST = {
    "NODE_FAIL": "its node was lost",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "it was preempted",
}
AGAIN_S = 3.0
# A node refuses a job that it was told to kill in this very second of slurmctld's clock, and the end of the
# run that was killed may be told late: Slurm takes either for a failure of the job. It waits longer itself
# before it starts one anew that was put back into the queue.
REST_S = 2.0
log = logging.getLogger("tenbin")


@dataclass(slots=True)
class ExternalAttempt:
    """An attempt of an external job.

    Attributes:
        cpus: on each node, in tenbin's cluster state.
        job: as Slurm had it last. paused: tenbin has suspended it since, which ``job`` need not show yet.
        restarts: how often Slurm had started it anew when this attempt began; None: found again.
        request, want: the last request, which has been carried out up to ``done``.
        leaves: what is to be reported when it waits for tenbin again.
        calling: a call for it is on its way; wait_until: monotonic time before which there is no other.
    """

    job_id: int
    number: int
    key: str
    cpus: dict[str, int]
    job: SbatchJob | None = None
    restarts: int | None = None
    started: bool = False
    request: int = 0
    want: Want | str = ""
    done: int = 0
    calling: bool = False
    paused: bool = False
    wait_until: float = 0.0
    leaves: tuple[Literal["lost", "never"], str] | None = None
    keys: Key = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.job_id, self.number


class ExternalAttempts:
    """The attempts of external jobs.

    Args:
        counted: whether policies count nodes, or parts of them, and do not name them.
    """

    scheduler, command = "Slurm", "sbatch"

    def __init__(
        self, sbatch: SbatchQueue, poller: SlurmPoller, inventory: NodeInventory, counted: bool
    ) -> None:
        self.sbatch, self.poller, self.inventory, self.counted = sbatch, poller, inventory, counted
        self.reports: list[Report] = []
        self.visits: dict[Key, ExternalAttempt] = {}
        self._seen: list[SeenJob] = []
        self._news = False
        self._refused: dict[str, str] = {}
        # Jobs that wait anew, and how often they have: the monotonic time at which that was seen.
        self._put_back: dict[tuple[str, int], float] = {}

    # -- what the coordinator asks for ----------------------------------------------------------------

    def start(self, job: Entry) -> None:
        visit = self._visit(job)
        visit.job = next((seen.job for seen in self._seen if seen.job.key == visit.key), None)
        visit.restarts = visit.job.restarts if visit.job else None
        self._start(visit)

    def recover(self, job: Entry) -> None:
        self._visit(job)

    def ask(self, job: Entry, want: Want) -> None:
        visit = self.visits.get((job.id, job.attempt))
        if visit is not None:
            visit.want, visit.request, visit.wait_until = want, job.request, 0.0
            self._steer(visit)

    def hindrance(self, job: Entry) -> str:
        visit = self.visits.get((job.id, job.attempt))
        seen = visit.job if visit else None
        if visit is None or seen is None:
            return ""
        if seen.pending:
            return f"waits in Slurm (job {seen.key}): {seen.reason}"
        if seen.state == "SUSPENDED" and visit.want != "pause":
            return f"suspended in Slurm by somebody else; go on with: scontrol resume {seen.key}"
        return ""

    def let_go(self, key: str, remark: str) -> None:
        """It is Slurm's own scheduler's from now on."""
        self._refused.pop(key, None)
        self._call((0, 0), "let go", lambda: self.sbatch.let_go(key, remark))

    def has_room(self, placement: Placement) -> bool:
        free = self.inventory.free_units if self.counted else None
        return free is None or all(free(node) >= units for node, units in placement.nodes)

    def drop(self, key: str) -> None:
        """It was cancelled while it waited."""
        self._call((0, 0), "cancel", lambda: self.sbatch.slurm.call("scancel", key))

    def look(self) -> list[ExternalJob] | None:
        """All that there are, if anything may be new."""
        if not self._news:
            return None
        self._news = False
        return [self._as_external(seen) for seen in self._seen]

    # -- what happens ---------------------------------------------------------------------------------

    def see(self, found: Sequence[SeenJob]) -> None:
        self._seen, self._news = list(found), True
        jobs = {seen.job.key: seen.job for seen in found}
        again = [(job.key, job.restarts) for job in jobs.values() if job.pending and job.restarts]
        now = time.monotonic()
        self._put_back = {which: self._put_back.get(which, now) for which in again}
        for visit in list(self.visits.values()):
            if not visit.calling:  # else it may be from before
                self._look(visit, jobs.get(visit.key))

    def settle(self, outcome: Outcome) -> bool:
        """A call was made; whether it was one of these."""
        visit, error = self.visits.get(outcome.key), outcome.error
        if visit is None:
            return outcome.key == (0, 0) or outcome.what.startswith("job")
        visit.calling = False
        if error is None:
            if outcome.what in ("job suspend", "job resume") and outcome.value is not False:
                visit.paused = outcome.what == "job suspend"
                if visit.want == ("pause" if visit.paused else "run"):
                    self._obeyed(visit)
                else:  # something else is wanted by now
                    self._steer(visit)
            elif outcome.what == "job hold" and outcome.value and visit.leaves:
                # As it was seen last tenbin itself had named its nodes: that is no need of its own.
                fresh = [
                    s._replace(needs=None, unclear="") if s.job.key == visit.key else s for s in self._seen
                ]
                self._seen = fresh
                self._end(visit, *visit.leaves)
            elif outcome.what == "job resume":
                visit.wait_until = time.monotonic() + 1.0  # its CPUs are not free yet
            self.poller.look(0.1 if outcome.what == "job start" else 0.0)
        elif outcome.what == "job start" and not isinstance(error, SlurmSilent):
            self._refused[visit.key] = f"Slurm refused to start it where tenbin wanted: {error.what}"
            self._end(visit, "lost", error.what)
            self._news = True
        else:
            visit.wait_until = time.monotonic() + AGAIN_S
        return True

    def _look(self, visit: ExternalAttempt, job: SbatchJob | None) -> None:
        before, visit.job = visit.job, job
        if job is None:
            if before is not None or self._seen or visit.restarts is None:
                self._end(visit, "never", f"Slurm does not know job {visit.key} any more")
            return
        if job.final:
            self._ended(visit, job)
        elif job.pending:
            self._waits(visit, job)
        else:
            self._runs(visit, job)

    def _waits(self, visit: ExternalAttempt, job: SbatchJob) -> None:
        """It was to run, and waits: not started yet, or not any more."""
        now = time.time()
        away = next((name for name in visit.cpus if self.inventory.number[name] in self.inventory.away), None)
        if visit.restarts is None:
            visit.restarts = job.restarts
        if visit.started or job.restarts > visit.restarts:
            self._back(visit, f"put back into the queue in Slurm ({job.reason})")
        elif job.blocked(now):
            self._back(visit, job.blocked(now))
        elif away is not None:
            trouble = self.inventory.away[self.inventory.number[away]]
            self._back(visit, f"{away} could not be used: {trouble}")
        elif visit.want in ("pause", "end"):
            self._steer(visit)
        elif job.gated(now) and not visit.calling:
            self._start(visit)  # the call was not heard, or not made before the last coordinator ended

    def _runs(self, visit: ExternalAttempt, job: SbatchJob) -> None:
        if job.nodes and set(job.nodes) != set(visit.cpus):
            where = ", ".join(job.nodes)
            self._end(visit, "lost", f"somebody has had Slurm start it on {where}")
            return
        if not visit.started:
            visit.started = True
            self.reports.append(Report(*visit.keys, "started", job.start_s or time.time()))
        self._steer(visit)

    def _steer(self, visit: ExternalAttempt) -> None:
        """Bring it closer to what is wanted."""
        job = visit.job
        if visit.calling or job is None or time.monotonic() < visit.wait_until or not visit.want:
            return
        if visit.want == "end":
            visit.wait_until = time.monotonic() + 15.0
            self._do(visit, "job cancel", lambda: self.sbatch.slurm.call("scancel", visit.key))
        elif job.pending:
            if visit.want == "pause":
                self._back(visit, "", what="never")
        elif visit.want == "pause" and job.state == "RUNNING":
            self._do(visit, "job suspend", lambda: self.sbatch.slurm.call("scontrol", "suspend", visit.key))
        elif visit.want == "run" and self._stopped(visit, job):
            each = math.ceil(job.cpus / len(visit.cpus))
            shares = dict.fromkeys(visit.cpus, each)
            self._do(visit, "job resume", lambda: resume(self.sbatch.slurm, visit.key, shares))
        elif visit.done < visit.request:
            self._obeyed(visit)

    def _stopped(self, visit: ExternalAttempt, job: SbatchJob) -> bool:
        """Whether tenbin has to let it go on: what somebody else has suspended he resumes himself."""
        return visit.paused or (job.state == "SUSPENDED" and visit.done < visit.request)

    def _obeyed(self, visit: ExternalAttempt) -> None:
        if visit.done < visit.request:
            visit.done = visit.request
            self.reports.append(Report(*visit.keys, "obeyed", time.time(), done=visit.done))

    def _ended(self, visit: ExternalAttempt, job: SbatchJob) -> None:
        result = result_of(job)
        self.reports.append(Report(*visit.keys, "ended", result.ended_s, result=result))
        del self.visits[visit.keys]

    def _back(self, visit: ExternalAttempt, trouble: str, what: Literal["lost", "never"] = "lost") -> None:
        """It is to wait for tenbin again; if Slurm has just started it, it runs after all."""
        visit.leaves = what, trouble
        self._do(visit, "job hold", lambda: self.sbatch.hold(visit.key))

    def _end(self, visit: ExternalAttempt, what: Literal["lost", "never"], trouble: str) -> None:
        self.reports.append(Report(*visit.keys, what, time.time(), trouble=trouble))
        self.visits.pop(visit.keys, None)
        self._news = bool(self._seen)

    def _visit(self, job: Entry) -> ExternalAttempt:
        assert job.spec.slurm is not None
        visit = ExternalAttempt(job.id, job.attempt, job.spec.slurm.id, self.inventory.shares(job.cores))
        self.visits[visit.keys] = visit
        return visit

    def _start(self, visit: ExternalAttempt) -> None:
        """At once; one that was put back into the queue a moment ago: at a later look."""
        seen_s = self._put_back.get((visit.key, visit.job.restarts)) if visit.job else None
        if seen_s is not None and (rest_s := seen_s + REST_S - time.monotonic()) > 0:
            self.poller.look(rest_s)
            return
        nodes = tuple(visit.cpus)
        self._do(visit, "job start", lambda: self.sbatch.start(visit.key, nodes))

    def _do(self, visit: ExternalAttempt, what: str, call: object) -> None:
        visit.calling = True
        self._call(visit.keys, what, call)

    def _call(self, key: Key, what: str, call: object) -> None:
        self.poller.do(key, what, call)  # type: ignore[arg-type]

    def _as_external(self, seen: SeenJob) -> ExternalJob:
        job = seen.job
        numbers = [self.inventory.number.get(name) for name in job.nodes]
        known = tuple(number for number in numbers if number is not None)
        return ExternalJob(
            job.key,
            "waiting" if job.pending else "ended" if job.final else "running",
            job.submitted_s,
            job.restarts,
            job.blocked(time.time()),
            job.limit_s,
            seen.needs,
            self._refused.get(job.key, seen.unclear) if job.pending else "",
            known if known and len(known) == len(numbers) else None,
            result_of(job) if job.final else None,
        )


def result_of(job: SbatchJob) -> Result:
    """How a job has ended, as Slurm tells it."""
    took = max(0.0, job.end_s - job.start_s) if job.start_s else 0.0
    usage = Usage(took, took, 0.0, 0.0, 0.0)
    if job.state in LOST:
        return Result("not-started", job.end_s, trouble=f"{LOST[job.state]} ({job.state})", usage=usage)
    how = ENDS.get(job.state)
    if how is not None:
        return Result(how, job.end_s or time.time(), usage=usage)
    code, number = job.status >> 8, job.status & 127
    trouble = (
        f"Slurm could not run it ({job.state}: {job.reason})"
        if job.state == "FAILED" and not job.status
        else ""
    )
    if number:
        return Result("signalled", job.end_s, signal=number, usage=usage)
    return Result("exited", job.end_s, code=code, trouble=trouble, usage=usage)
