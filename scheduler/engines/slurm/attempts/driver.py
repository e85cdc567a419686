"""Carries out steps: reads the evidence about each attempt, calls ``step``, and does what it says."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from agent.attempts.records import Request
from agent.multi_node.remote_ranks import RankFiles
from scheduler.engines.common import spoiled
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts import calls, external_step, settled
from scheduler.engines.slurm.attempts.allocation_reuse import AllocationReuse
from scheduler.engines.slurm.attempts.attempt import Next, SlurmAttempt
from scheduler.engines.slurm.attempts.effects import (
    Call,
    Cancel,
    Do,
    Effect,
    Expect,
    Fence,
    Look,
    PutBack,
    Refused,
    Revoke,
    WaitsAgain,
)
from scheduler.engines.slurm.attempts.evidence import ClusterView, FolderView, look_anew, read_folder
from scheduler.engines.slurm.attempts.orphaned_jobs import OrphanedJobs
from scheduler.engines.slurm.attempts.power_budget import PowerBudget
from scheduler.engines.slurm.attempts.step import give_up, step
from scheduler.engines.slurm.client.heartbeats import NOBODY, Key
from scheduler.engines.slurm.client.parse import SlurmJob
from scheduler.engines.slurm.client.poller import BUSY_S, ClusterSnapshot, Outcome, SlurmPoller
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob
from scheduler.engines.slurm.client.tools import SlurmSilent
from scheduler.engines.slurm.external.external_jobs import SlurmExternalJobs
from scheduler.engines.slurm.nodes.node_states import NodeStates
from scheduler.engines.slurm.nodes.partitions import Partitions
from scheduler.engines.slurm.site import Site

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
            return external_step.start(attempt, view, effects), effects

        self._next(key, begin)

    def request(self, key: Key, request: Request) -> None:
        """Hand a request on; OSError if there is no room for it."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        if attempt.folder is not None:
            with spoiled.of_one(attempt.job_id, room=False):
                attempt.folder.write_request(request)
        self._next(key, lambda attempt, view: settled.requested(attempt, request, view))
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
        for key in list(self.attempts):
            self.look(key)
        known = {attempt.comment for attempt in self.attempts.values()} | self.reuse.comments()
        for job in self.orphans.find(snapshot.jobs, known):
            log.warning("Slurm job %d is of no attempt any more: cancelled (%s)", job.id, job.comment)
            self._cancel(NOBODY, job.id, job.comment)
        if self.orphans.seen:
            self.poller.look(BUSY_S)

    def look(self, key: Key) -> None:
        """Make a step of an attempt; what cannot be looked at now is the next time."""
        attempt = self.attempts.get(key)
        if attempt is not None:
            with spoiled.of_one(attempt.job_id):
                job = self._job(attempt)
                folder = self._read(attempt)
                self._next(key, lambda attempt, view: step(attempt, folder, job, view))

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome of a call into account."""
        key, error = outcome.key, outcome.error
        if key in self.attempts:
            with spoiled.of_one(key[0]):
                self._next(key, lambda attempt, view: settled.settled(attempt, outcome, view))
        elif outcome.what == "submit" and isinstance(outcome.value, int):  # it was revoked meanwhile
            self._cancel(key, outcome.value, f"{self.mark}{key[0]}:{key[1]}")
        if error is not None and not isinstance(error, SlurmSilent):
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
                if spoiled.revoked(attempt.files):
                    if attempt.slurm is not None:
                        self._cancel(attempt.key, attempt.slurm, attempt.comment)
                    unbegun = report._replace(what="never", for_now=True)
                    self.report(attempt, unbegun if report.what == "lost" else report)
            case Fence():
                with spoiled.of_one(attempt.job_id):  # where no fence can be put up its lease is over as well
                    attempt.files.fence_off()
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
        self.poller.do(key, "cancel", partial(calls.cancel, self.poller.slurm, number, comment))

    def _put_back(self, attempt: SlurmAttempt) -> None:
        """Restore the caps that a killed supervisor has left on its nodes, if they are free."""
        power = self.site.power
        if power is not None:
            program = [sys.executable, "-P", "-m", "agent.power.node_power", power.sysfs, str(power.states)]
            nodes, partition = tuple(attempt.cpus), self.site.partition
            run = partial(self.poller.slurm.run_on, nodes, partition, program)
            self.poller.do(attempt.key, "put back", run)

    def _call(self, attempt: SlurmAttempt, call: Call) -> Callable[[], object]:
        """Make the call of Slurm that is meant, to be made in the poller's thread."""
        if attempt.external:
            assert self.site.sbatch is not None
            return partial(calls.steer_external, self.site.sbatch, attempt, call)
        if call == "submit":
            assert attempt.batch is not None
            return partial(self.partitions.submit, attempt.batch)
        return partial(calls.steer, self.poller.slurm, attempt, call)
