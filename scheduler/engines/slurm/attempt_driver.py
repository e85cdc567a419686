"""Carries out steps: reads the evidence about each attempt, calls ``step``, and does what it says."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from agent.attempts.records import Request
from agent.multi_node.ranks import RankFiles
from scheduler.engines.common.job_folders import job_errors_logged, revoked
from scheduler.engines.protocol import ExternalJob, ExternalJobSource, Report
from scheduler.engines.slurm import attempt_step
from scheduler.engines.slurm.attempt_step import (
    Call,
    Cancel,
    ClusterView,
    Do,
    Effect,
    Expect,
    Fence,
    FolderView,
    Look,
    Next,
    PutBack,
    Refused,
    Revoke,
    SlurmAttempt,
    WaitsAgain,
    give_up,
    look_anew,
    read_folder,
    step,
)
from scheduler.engines.slurm.batch_jobs import AllocationReuse
from scheduler.engines.slurm.node_inventory import NodeInventory, Site
from scheduler.engines.slurm.node_states import NodeStates, Partitions
from scheduler.engines.slurm.poller import BUSY_S, NOBODY, ClusterSnapshot, Key, Outcome, SlurmPoller
from scheduler.engines.slurm.power_budget import PowerBudget
from scheduler.engines.slurm.sbatch_queue import SbatchJob, SbatchQueue, SeenJob, result_of
from scheduler.engines.slurm.slurm_commands import Slurm, SlurmError, SlurmJob, SlurmNotNow, SlurmNotSuspended
from scheduler.model.jobs import Placement

# -- the driver --------------------------------------------------------------------------------------------


ENDS = ("ended", "lost", "never")
log = logging.getLogger("tenbin")


class AttemptDriver:
    """All attempts that have not ended.

    Args:
        mark: how the comments of this coordinator's Slurm jobs begin.
    """

    def __init__(
        self,
        site: Site,
        poller: SlurmPoller,
        partitions: Partitions,
        nodes: NodeStates,
        *,
        external: SlurmExternalJobs | None,
        mark: str,
    ) -> None:
        self.site, self.poller, self.partitions = site, poller, partitions
        self.nodes, self.external, self.mark = nodes, external, mark
        self.attempts: dict[Key, SlurmAttempt] = {}
        self.reports: list[Report] = []
        self.reuse, self.orphans = AllocationReuse(), OrphanedJobs(mark)
        self.budget: PowerBudget | None = None
        self._snapshot = 0
        self._jobs: Mapping[str, SlurmJob] = {}
        self._allocated: Mapping[str, int] = {}  # CPUs of each node, to jobs of tenbin's and others

    # -- what the engine asks for ----------------------------------------------------------------------

    def watch(self, attempt: SlurmAttempt) -> SlurmAttempt:
        """Follow an attempt from now on."""
        attempt = replace(attempt, snapshot=self._snapshot)
        self.attempts[attempt.key] = attempt
        if attempt.folder is not None:
            self.poller.folders[attempt.key] = attempt.folder.path
            self.poller.heartbeats.watch(attempt.key, attempt.folder.path, attempt.cpus)
        return attempt

    def submit(self, key: Key) -> None:
        self._next(key, lambda attempt, view: (replace(attempt, calling=True), [Do("submit")]))

    def start_external(self, key: Key) -> None:
        """Have Slurm start an external job."""

        def begin(attempt: SlurmAttempt, view: ClusterView) -> Next:
            effects: list[Effect] = []
            job = self.external.jobs.get(attempt.external) if self.external else None
            attempt = replace(attempt, seen=job, restarts=job.restarts if job else None)
            return attempt_step.start_external(attempt, view, effects), effects

        self._next(key, begin)

    def request(self, key: Key, request: Request) -> None:
        """Hand a request on; OSError if there is no room for it."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if attempt.folder is not None:
            with job_errors_logged(attempt.job_id, room=False):
                attempt.folder.write_request(request)
        self._next(key, lambda attempt, view: attempt_step.requested(attempt, request, view))
        self.look(key)

    def give_up(self, key: Key, trouble: str) -> None:
        self._next(key, lambda attempt, view: give_up(attempt, trouble, view.now))

    def wake(self, key: Key) -> None:
        """Have the supervisor of an attempt signalled at the next step, whenever it was last."""
        if key in self.attempts:
            self.attempts[key] = replace(self.attempts[key], wake_at=0.0)

    # -- what happens ----------------------------------------------------------------------------------

    def see(self, snapshot: ClusterSnapshot) -> None:
        """Take a snapshot into account, of which ``nodes`` and ``external`` know already."""
        self._snapshot += 1
        self._jobs = {job.comment: job for job in snapshot.jobs}
        self._allocated = {node.name: node.cpus_used for node in snapshot.nodes}
        for key in list(self.attempts):
            self.look(key)
        known = {attempt.comment for attempt in self.attempts.values()} | self.reuse.comments()
        for job in self.orphans.find(snapshot.jobs, known):
            log.warning("Slurm job %d is of no attempt any more: cancelled (%s)", job.id, job.comment)
            self._cancel(NOBODY, job.id, job.comment)
        if self.orphans.seen:
            self.poller.look(BUSY_S)

    def others(self) -> dict[str, int]:
        """Count the CPUs that jobs outside tenbin hold, by node, as seen last; 0 where that is not clear.

        It is not clear where Slurm still has a job of an attempt that is over.
        """
        others, comments = Counter(self._allocated), set[str]()
        for attempt in self.attempts.values():
            comments.add(attempt.comment)
            job = self._job(attempt)
            if job is None or job.state != "SUSPENDED":  # Slurm has not freed its CPUs
                most = 0 if attempt.external else max(attempt.cpus.values(), default=0)  # as of its batch job
                others.subtract({name: max(cpus, most) for name, cpus in attempt.cpus.items()})
        for left in self._jobs.values():
            if left.comment.startswith(self.mark) and not left.final and left.comment not in comments:
                for name in left.nodes or list(others):  # one that was requeued may be about to begin
                    others[name] = 0
        return dict(+others)

    def look(self, key: Key) -> None:
        """Make a step of an attempt; what cannot be looked at now is the next time."""
        attempt = self.attempts.get(key)
        if attempt is not None:
            with job_errors_logged(attempt.job_id):
                job = self._job(attempt)
                folder = self._read(attempt)
                self._next(key, lambda attempt, view: step(attempt, folder, job, view))

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome of a call into account."""
        key, error = outcome.key, outcome.error
        if key in self.attempts:
            with job_errors_logged(key[0]):
                self._next(key, lambda attempt, view: attempt_step.settled(attempt, outcome, view))
        elif outcome.what == "submit" and isinstance(outcome.value, int):  # it was revoked meanwhile
            self._cancel(key, outcome.value, f"{self.mark}{key[0]}:{key[1]}")
        if error is not None and not isinstance(error, SlurmNotNow):
            whose = f"job {key[0]}: " if key[0] else ""
            log.error("%s%s: %s", whose, outcome.what, error)

    def _job(self, attempt: SlurmAttempt) -> SlurmJob | SbatchJob | None:
        if attempt.external:
            return self.external.jobs.get(attempt.external) if self.external else None
        return self._jobs.get(attempt.comment)

    def _read(self, attempt: SlurmAttempt) -> FolderView | None:
        """Read the folder: closely on a new snapshot by which the attempt may be over."""
        if attempt.folder is None:
            return None
        heartbeats, key = self.poller.heartbeats, attempt.key
        job, fresh = self._jobs.get(attempt.comment), attempt.snapshot != self._snapshot
        if fresh and job is not None and job.final:
            with suppress(OSError):
                look_anew(attempt.folder.path)
        silent = frozenset(name for name in attempt.cpus if heartbeats.silent(key, name))
        closely = attempt.given_up or (fresh and (job is None or job.final or bool(silent)))
        folder = read_folder(attempt.folder, closely=closely)
        ranks = RankFiles(attempt.folder)
        return replace(
            folder,
            silent=silent,
            begun=frozenset(name for name in attempt.cpus if heartbeats.begun(key, name)),
            ended=frozenset(name for name in attempt.cpus if closely and ranks.read_report(name).ended),
            recap=self.budget is not None and self.budget.unconfirmed(key),
        )

    def _view(self) -> ClusterView:
        nodes = self.nodes
        put_back = self.external.put_back if self.external else {}
        return ClusterView(
            number=self._snapshot,
            now=time.monotonic(),
            time_s=time.time(),
            lease_s=self.site.lease_s,
            away=nodes.away,
            lost=nodes.lost,
            mute=nodes.mute,
            put_back=put_back,
        )

    # -- effects ---------------------------------------------------------------------------------------

    def _next(self, key: Key, change: Callable[[SlurmAttempt, ClusterView], Next]) -> None:
        """Note the next record of an attempt, and carry out the effects."""
        if key not in self.attempts:
            return
        attempt, effects = change(self.attempts[key], self._view())
        self.attempts[key] = attempt
        for effect in effects:
            self._carry_out(attempt, effect)

    def _carry_out(self, attempt: SlurmAttempt, effect: Effect) -> None:
        match effect:
            case Report():
                self.report(attempt, effect)
            case Do(call):
                self.poller.do(attempt.key, call, self._call(attempt, call))
            case Cancel(number):
                self._cancel(attempt.key, number, attempt.comment)
            case Revoke(report):
                if revoked(attempt.files):
                    if attempt.slurm is not None:
                        self._cancel(attempt.key, attempt.slurm, attempt.comment)
                    unbegun = report._replace(what="never", for_now=True)
                    self.report(attempt, unbegun if report.what == "lost" else report)
            case Fence():
                with job_errors_logged(attempt.job_id):
                    attempt.files.fence_off()  # where that cannot be its lease is over as well
            case Expect(beats):
                self.poller.heartbeats.expect(attempt.key, beats)
            case Look(after_s, ask):
                self.poller.heartbeats.doubt(ask)
                self.poller.look(after_s)
            case PutBack():
                self._put_back(attempt)
            case Refused(why):
                assert self.external is not None
                self.external.refuse(attempt.external, why)
            case WaitsAgain():
                assert self.external is not None
                self.external.wait_again(attempt.external)

    def report(self, attempt: SlurmAttempt, report: Report) -> None:
        """Report what happened to an attempt, and forget it if it is over."""
        self.reports.append(report)
        if report.what not in ENDS or self.attempts.pop(attempt.key, None) is None:
            return
        if attempt.external:
            if self.external is not None and report.result is None:
                self.external.ended()
            return
        if report.result is not None:
            self.reuse.offer(attempt, report.result)
        self.poller.folders.pop(attempt.key, None)
        self.poller.heartbeats.forget(attempt.key)
        if self.budget is not None:
            self.budget.leave(attempt.key)

    def _cancel(self, key: Key, number: int, comment: str) -> None:
        self.poller.do(key, "cancel", partial(cancel_job, self.poller.slurm, number, comment))

    def _put_back(self, attempt: SlurmAttempt) -> None:
        """Restore the caps that a killed supervisor has left on its nodes, if they are free."""
        power = self.site.power
        if power is not None:
            program = [sys.executable, "-P", "-m", "agent.power.cap_keeper", power.sysfs, str(power.states)]
            nodes, partition = tuple(attempt.cpus), self.site.partition
            run = partial(self.poller.slurm.run_on, nodes, partition, program)
            self.poller.do(attempt.key, "put back", run)

    def _call(self, attempt: SlurmAttempt, call: Call) -> Callable[[], object]:
        """Make the call of Slurm that is meant, to be made in the poller's thread."""
        if attempt.external:
            assert self.site.sbatch is not None
            return partial(call_for_external, self.site.sbatch, attempt, call)
        if call == "submit":
            assert attempt.batch is not None
            return partial(self.partitions.submit, attempt.batch)
        return partial(call_for_own, self.poller.slurm, attempt, call)


# -- calls of Slurm, made in the poller's thread -----------------------------------------------------------


def call_for_own(slurm: Slurm, attempt: SlurmAttempt, call: Call) -> object:
    """Make a call for tenbin's own job, if what has its number in Slurm is that job still."""
    number = attempt.slurm
    assert number is not None
    if not slurm.ours(number, attempt.comment):
        raise SlurmError(f"Slurm's job {number} is another's now")
    if call == "resume":
        return resume_job(slurm, number, attempt.cpus if attempt.want == "run" else {})
    (slurm.suspend if call == "suspend" else slurm.wake)(number)
    return None


def call_for_external(sbatch: SbatchQueue, attempt: SlurmAttempt, call: Call) -> object:
    """Make a call for an external job, if what has its number in Slurm is that job still."""
    key, slurm = attempt.external, sbatch.slurm
    if not sbatch.is_still(key):
        raise SlurmError(f"Slurm's job {key} is another's now")
    if call == "start":
        sbatch.start(key, tuple(attempt.cpus))
    elif call == "hold":
        return sbatch.hold(key)
    elif call == "cancel":
        slurm.cancel(key)
    elif call == "suspend":
        slurm.suspend(key)
    elif isinstance(attempt.seen, SbatchJob):
        of_node = math.ceil(attempt.seen.cpus / len(attempt.cpus))
        return resume_job(slurm, key, dict.fromkeys(attempt.cpus, of_node))
    return None


def cancel_job(slurm: Slurm, number: int, comment: str) -> None:
    """Cancel the job of that number and comment, if there is one."""
    if slurm.ours(number, comment):
        slurm.cancel(number)


def resume_job(slurm: Slurm, number: int | str, shares: Mapping[str, int]) -> bool:
    """Let a suspended job go on if its CPUs are free, which Slurm does not check; return whether it does.

    Its supervisor was stopped as well: it looks for requests when it goes on.
    """
    if shares:
        room = {node.name: node.cpus - node.cpus_used for node in slurm.nodes()}
        if any(cpus > room.get(name, 0) for name, cpus in shares.items()):
            return False
    with suppress(SlurmNotSuspended):
        slurm.resume(number)
    return True


# -- orphaned jobs -----------------------------------------------------------------------------------------
#
# Slurm jobs of this coordinator that belong to no attempt any more.
#
# A slurmctld that was killed may have forgotten a cancellation, and a lost node may come back with a job.
# Only a job in two snapshots counts, because one snapshot may be older than the end of an attempt.


class OrphanedJobs:
    """The orphaned jobs in the last snapshot.

    Attributes:
        mark: how the comments of this coordinator's jobs begin. seen: numbers of the orphaned jobs.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: set[int] = set()

    def find(self, jobs: Iterable[SlurmJob], known: Collection[str]) -> list[SlurmJob]:
        """Find the jobs to be cancelled, again in each snapshot until they are gone.

        Args:
            known: comments of the attempts that there are.
        """
        orphans = [
            job
            for job in jobs
            if job.comment.startswith(self.mark)
            and job.comment not in known
            and not (job.final or job.state == "COMPLETING")
        ]
        before, self.seen = self.seen, {job.id for job in orphans}
        return [job for job in orphans if job.id in before]


# -- external jobs -----------------------------------------------------------------------------------------


class SlurmExternalJobs(ExternalJobSource):
    """The external jobs of a partition in the last snapshot.

    Args:
        counted: policies count nodes, or parts of them, and do not name them.

    Attributes:
        put_back: for jobs that wait anew, by name and count of restarts: since when (monotonic).
    """

    able, scheduler, command = True, "Slurm", "sbatch"

    def __init__(
        self, sbatch: SbatchQueue, poller: SlurmPoller, inventory: NodeInventory, counted: bool
    ) -> None:
        self.sbatch, self.poller, self.inventory, self.counted = sbatch, poller, inventory, counted
        self.jobs: Mapping[str, SbatchJob] = {}
        self.put_back: dict[tuple[str, int], float] = {}
        self._seen: list[SeenJob] = []
        self._news = False
        self._refused: dict[str, str] = {}

    def look(self) -> list[ExternalJob] | None:
        if not self._news:
            return None
        self._news = False
        return [self._external_job(seen) for seen in self._seen]

    def let_go(self, key: str, remark: str) -> None:
        named = self._refused.pop(key, None) is not None
        self._steer("let go", key, lambda: self.sbatch.let_go(key, remark, named=named))

    def has_room(self, placement: Placement) -> bool:
        free = self.inventory.free_units
        return not self.counted or all(free(node) >= units for node, units in placement.nodes)

    def drop(self, key: str) -> None:
        self._steer("cancel", key, lambda: self.sbatch.slurm.cancel(key))

    def _steer(self, what: str, key: str, call: Callable[[], object]) -> None:
        """Have a job changed if it is there still."""
        self.poller.do(NOBODY, what, lambda: self.sbatch.is_still(key) and call())

    # -- what the engine notes ------------------------------------------------------------------------

    def see(self, jobs: Sequence[SeenJob]) -> None:
        """Note a snapshot."""
        self._seen, self._news = list(jobs), True
        self.jobs = {seen.job.key: seen.job for seen in jobs}
        again = [(job.key, job.restarts) for job in self.jobs.values() if job.pending and job.restarts]
        now = time.monotonic()
        self.put_back = {which: self.put_back.get(which, now) for which in again}

    def refuse(self, key: str, why: str) -> None:
        """Note that Slurm does not start a job where tenbin wants."""
        self._refused[key] = why

    def wait_again(self, key: str) -> None:
        """Forget the needs of a job that waits for tenbin again: tenbin itself had named its nodes."""
        self._seen = [
            seen._replace(needs=None, unclear="") if seen.job.key == key else seen for seen in self._seen
        ]

    def ended(self) -> None:
        """Note that an attempt is over: the coordinator looks again."""
        self._news = bool(self._seen)

    def _external_job(self, seen: SeenJob) -> ExternalJob:
        job, now = seen.job, time.time()
        numbers = [self.inventory.number.get(name) for name in job.nodes]
        known = tuple(number for number in numbers if number is not None)
        return ExternalJob(
            key=job.key,
            state="waiting" if job.pending else "ended" if job.final else "running",
            submitted_s=job.submitted_s,
            restarts=job.restarts,
            blocked=job.blocked(now),
            limit_s=job.limit_s,
            needs=seen.needs,
            unclear=self._refused.get(job.key, seen.unclear) if job.pending else "",
            nodes=known if known and len(known) == len(numbers) else None,
            result=result_of(job, now) if job.final else None,
        )
