"""Schedules real jobs: the loop around one policy and one engine, with a durable journal.

A turn: what the engine reports and what users asked for changes the cluster state, the policy decides, the
journal is committed, and only then are the decisions carried out. So it can be killed at any instant: started
again it reads the journal, has the engine find out what became of each attempt, and completes the rest.
"""

from __future__ import annotations

import gc
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from agent.notifier import Notifier
from profiles.checks.check import slower
from profiles.errors import BadInput
from profiles.files.safe_files import sync, write_whole
from scheduler.coordinator import admission, decisions, ends, external_jobs, idle_gpus, machine_state
from scheduler.coordinator import events as ev
from scheduler.coordinator.job_table import JobTable, NoRoom
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.machine import StateMachine
from scheduler.coordinator.machine_state import MachineState
from scheduler.engines.common.job_folders import JobFolders
from scheduler.engines.protocol import Engine, Report
from scheduler.jobs.dependencies import WaitsByPlace, check_places, check_times, check_waits
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.gpus import settle_kind
from scheduler.jobs.job_list import LeftOut
from scheduler.jobs.policy_view import as_job, bound_to_node, results_differ
from scheduler.jobs.sizes import CORE, TooLarge, Unit, sized, under_caps, within_memory
from scheduler.jobs.specs import JobRefused, JobSpec, refuse_external
from scheduler.model import events as act
from scheduler.model.costs import FREE, LinearCosts
from scheduler.model.events import Timer
from scheduler.model.interference import NOTHING_KNOWN
from scheduler.model.jobs import Placement, Stop, instant
from scheduler.model.state import ClusterState, RuleBroken
from scheduler.policies.base import (
    Policy,
    Reason,
    fits_now,
    prices_of,
    reason_of,
    refusal_of,
    where_paused,
)
from scheduler.policies.registry import create, fault_in_file
from scheduler.prediction.predictions import StartTimes
from scheduler.prediction.profiles import ProfiledJobs, ProfiledSlowdowns
from scheduler.prediction.run_times import REMEMBERED, RunTimePredictor
from scheduler.prediction.tracker import REMEMBERED as OUTCOMES
from scheduler.prediction.tracker import CoLocationTracker, LearnedMigrationCosts, PredictionTracker

NO_ROOM = (sqlite3.Error, OSError)  # the next turn tries it again
WITHOUT_GPUS = {"gpus": None, "gpu_kind": "", "gpu_memory_mb": None, "alternatives": ()}
SUSPENDED = "queue-suspended"  # file in the home, there while the user has suspended the queue
OVER = ("ended", "lost", "never")  # reports of an attempt that is no more
STEP_S = 1.0  # so far a clock is moved without anybody having set it
log = logging.getLogger("tenbin")


class Update(NamedTuple):
    """Another limit of run time, or priority.

    Attributes:
        time_s: the limit; infinite: none. None: that of each job, and ``more_s`` to it.
        priority: None: as it is.
    """

    time_s: float | None = None
    more_s: float = 0.0
    priority: int | None = None


class Coordinator:
    """The scheduler of real jobs; call ``turn`` when the engine has something or a timer is due.

    Args:
        policy: name and parameters, as for the simulator.
        costs: what moving jobs costs as measured; corrected by what is measured of jobs.
        clock: seconds since 1970; somebody may set it.
        steady: seconds that nobody sets; None: of this machine, or of ``clock`` if that is another one.
        unit: what one unit of the cluster's pool is.
        profiles: job profiles, where jobs share nodes.
        measured: what job profiles say of jobs by themselves.
        on_event: a command of the shell, which is run when a job has ended, or does nothing on its GPUs, and
            when somebody else holds one, or one is lost; "": none.

    Raises:
        BadInput: jobs of the journal run on a machine that was divided otherwise.
    """

    def __init__(
        self,
        journal: Journal,
        engine: Engine,
        policy: str,
        costs: LinearCosts = FREE,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
        unit: Unit = CORE,
        profiles: ProfiledSlowdowns | None = None,
        measured: ProfiledJobs = ProfiledJobs(),  # noqa: B008 (it holds nothing)
        on_event: str = "",
    ) -> None:
        self.journal, self.engine, self.clock = journal, engine, clock
        self._steady = steady or (_since_boot_s if clock is time.time else clock)
        self._steady_s = self._steady()
        self.notifier = Notifier(journal.store)
        self.start_times = StartTimes()
        create(policy)  # a wrong name is refused before anything else
        self.profiles, self.measured = profiles, measured
        learned, now = LearnedMigrationCosts(costs), instant(clock())
        cluster = ClusterState(engine.cluster, learned, slowdowns=profiles or NOTHING_KNOWN, now=now)
        jobs = JobTable(journal, engine.cluster, unit)
        folders = JobFolders(journal.store)
        tracker = PredictionTracker(jobs, folders, learned, now)
        for outcome in journal.predictions(last=OUTCOMES):
            learned.recall(outcome)
        ended = journal.ended_lately(REMEMBERED)
        run_times = RunTimePredictor(ended, jobs.user, engine.cluster, measured.runs)
        beside = CoLocationTracker(jobs, profiles) if profiles is not None else None
        m = MachineState(
            engine, cluster, jobs, folders, tracker=tracker, run_times=run_times, co_location=beside
        )
        m.on_event = on_event
        m.hold.of_queue = (journal.store / SUSPENDED).exists()
        self.machine = StateMachine(policy, m)
        external_jobs.recall(m, [*ended, *jobs.entries.values()])
        self._early: list[Report] = []  # heard before the first turn
        self._recover()

    # What others read of the one state.

    @property
    def cluster(self) -> ClusterState:
        """The cluster state, which is the policy's view."""
        return self.machine.state.cluster

    @property
    def job_table(self) -> JobTable:
        return self.machine.state.jobs

    @property
    def folders(self) -> JobFolders:
        """The folders of the jobs."""
        return self.machine.state.folders

    @property
    def run_times(self) -> RunTimePredictor:
        return self.machine.state.run_times

    @property
    def policy(self) -> Policy:
        """The policy that decides now; it begins anew from time to time."""
        return self.machine.policy

    @property
    def policy_text(self) -> str:
        """Name and parameters of the policy."""
        return self.machine.policy_text

    # -- what users ask for ---------------------------------------------------------------------------

    def submit(
        self,
        specs: Sequence[JobSpec],
        environment: dict[str, str],
        waits_for: WaitsByPlace | None = None,
        arrays: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Entry]:
        """Accept jobs, all or none. When this returns they are safe.

        Args:
            arrays: by the place of a spec from 0 on, the ``array_index`` of each of its jobs; others are one.
            waits_for: which of the specs wait for which others, by their places from 0 on and the kind.

        Raises:
            BadInput: one can never run here, or waits for a job that does not exist or for itself.
            NoRoom: the journal cannot be written; nothing was taken in.
        """
        specs = self.checked(specs, waits_for or {}, arrays or {})
        gc.disable()  # all that is made here stays: to look for garbage in it takes a third of the time
        try:
            entries = self.job_table.add(
                specs,
                environment,
                self.cluster.now,
                waits_for or {},
                arrays=arrays,
                predicted=self.run_times.expect(specs),
            )
            self._arrive(sorted(entries, key=lambda entry: -entry.spec.priority))
            self.turn()
        finally:
            gc.enable()
        return entries

    def checked(
        self, specs: Sequence[JobSpec], waits_for: WaitsByPlace, arrays: Mapping[int, Sequence[int]]
    ) -> list[JobSpec]:
        """Fix the size of jobs that are to be submitted, and set the clock; the arguments are of ``submit``.

        Raises:
            BadInput: one can never run here, or waits for a job that does not exist or for itself.
        """
        self.set_clock()
        now, unit = self.cluster.now, self.job_table.unit
        specs = [sized(spec, self.measured.scaling, unit) for spec in specs]
        specs = [under_caps(spec, self.measured.caps, unit) for spec in specs]
        total_mb = self.cluster.cluster.memory_mb
        check_places(waits_for, arrays, len(specs))
        self.measured.check(spec.job_profile for spec in specs)
        if self.profiles is not None:
            self.profiles.introduce(spec.job_profile for spec in specs)
        requested = self.job_table.gpus_requested()
        for place, spec in enumerate(specs):
            try:
                refuse_external(spec)
                if spec.terminal and not self.engine.terminals:
                    raise BadInput("jobs of a cluster have no terminal", "tenbin run --keep")
                specs[place] = within_memory(settle_kind(spec, unit.gpus, requested), unit, total_mb)
                for number, way in enumerate(spec.ways[1:], 1):
                    within_memory(way, unit, total_mb, by=f" by its --or {number}")
                self.check(specs[place], now)
                check_waits(specs[place], arrays.get(place), self.job_table)
                check_times(specs[place], now)
            except TooLarge as error:
                remedy = "; ".join(filter(None, (error.remedy, self.engine.left_to_others)))
                raise JobRefused(BadInput(error.what, remedy), place, len(specs)) from error
            except BadInput as error:
                raise JobRefused(error, place, len(specs)) from error
        return specs

    def _arrive(self, entries: Iterable[Entry]) -> None:
        """Let jobs wait for their turn, when all that were submitted together are known."""
        for entry in entries:
            with self.machine.state.queue.sparing(entry, "as it was submitted"):
                self.machine.happen(ev.SubmittedByOwner(entry))

    def check(self, spec: JobSpec, now: float) -> None:
        """Raise BadInput if the job cannot be accepted."""
        seen = partial(
            as_job, 0, now, cluster=self.cluster.cluster, user=self.job_table.user, unit=self.job_table.unit
        )
        job = seen(spec)
        why = self.cluster.misfit(job)
        with self._faults_of_its_file():
            why = why or refusal_of(self.policy, self.policy.refuses(job, self.cluster.cluster))
        if why:
            raise TooLarge(f"the job can never run here: {why}", "ask for less")
        for number, way in enumerate(spec.ways[1:], 1):  # its GPUs may be those of another machine
            try:
                why = self.cluster.misfit(seen(way.model_copy(update=WITHOUT_GPUS)))
            except BadInput as error:
                why = error.what
            if why:
                what = f"the job can never run here by its --or {number}: {why}"
                raise TooLarge(what, "ask for less there")
        if (spec.account or spec.share is not None) and not self.policy.fair:
            what = f"--user-share: policy {self.policy_text} does not share between users"
            raise BadInput(what, "start for instance: tenbin up --policy las-drf")

    # Each of these acts on ``job_ids``, or on none of them; and on those of ``where_possible`` that the
    # request applies to. It returns the others of ``where_possible``, each with the reason. What it has
    # done is durable then, else it raises NoRoom.

    def cancel(self, job_ids: Sequence[int], where_possible: Sequence[int] = ()) -> dict[int, LeftOut]:
        """End jobs, whether they wait or run; BadInput if one has ended or never was."""
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible)
        for entry in entries:
            self.machine.happen(ev.CancelledByOwner(entry))
        self.settle()
        return left_out

    def suspend(self, job_ids: Sequence[int], where_possible: Sequence[int] = ()) -> dict[int, LeftOut]:
        """Pause jobs until their owner resumes them; their cores are free for others."""
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible, _can_be_held)
        for entry in entries:
            self.machine.state.queue.put(ev.SuspendedByOwner(entry))
        self.settle()
        return left_out

    def resume(self, job_ids: Sequence[int], where_possible: Sequence[int] = ()) -> dict[int, LeftOut]:
        """Let jobs that their owner has suspended go on as soon as the policy gives them a place."""
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible, self._resumable)
        for entry in entries:
            self.machine.happen(ev.ResumedByOwner(entry))
        self.settle()
        return left_out

    def retry(
        self, job_ids: Sequence[int], where_possible: Sequence[int] = ()
    ) -> tuple[list[Entry], dict[int, LeftOut]]:
        """Run jobs that did not succeed again, under the same number; return them, and those left out."""
        self.set_clock()
        m = self.machine.state
        entries, left_out = m.jobs.choose_ended(job_ids, where_possible, m.now)
        m.jobs.bring_back(entries)
        for entry in entries:
            self.machine.happen(ev.RetriedByOwner(entry))
        self._arrive(entries)
        self.settle()
        return entries, left_out

    def _resumable(self, entry: Entry) -> None:
        """Raise BadInput unless its owner has suspended the job, and this machine can run it."""
        if not entry.held_by_user:
            raise BadInput(f"job {entry.label} is {entry.shown}, not suspended by you", "see: tenbin jobs")
        _refuse_ending(entry)
        if why := admission.unfit(self.machine.state, entry):
            raise BadInput(f"job {entry.label}: {why}", "start tenbin up as before, or cancel the job")

    def migrate(
        self, job_ids: Sequence[int], to: str, where_possible: Sequence[int] = ()
    ) -> dict[int, LeftOut]:
        """Move running jobs to another class of device, or another node: checkpoint here, restart there.

        A job is left out for which there is no room any more because another of these moves there.

        Raises:
            BadInput: one does not run, cannot be checkpointed, or there is no room for it there.
        """
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible, partial(self._target, to=to))
        for entry in entries:
            try:
                self._move(entry, self._target(entry, to))
            except BadInput as error:
                left_out[entry.id] = self.job_table.omit(entry.id, error)
        self.settle()
        return left_out

    def _target(self, entry: Entry, to: str) -> Placement:
        """Return the placement to which a job can move; BadInput if it cannot."""
        _refuse_ending(entry)
        if entry.id not in self.cluster.running:
            raise BadInput(f"job {entry.label} is {entry.shown}, not running", "see: tenbin jobs")
        target = self._place(to, entry.place.units)
        why = self._why_it_stays(entry, target, to) or self.cluster.obstacle(entry.job, target)
        if why:
            raise BadInput(f"job {entry.label} cannot move to {to}: {why}", "see: tenbin nodes")
        try:
            decisions.check_stop(self.machine.state, "migrate", entry.id, Stop.CHECKPOINT)
        except RuleBroken as error:
            raise BadInput(
                f"job {entry.label} cannot move: {entry.fixed or error}", "submit it with --checkpoint"
            ) from error
        return target

    def _move(self, entry: Entry, target: Placement) -> None:
        """Apply the move of one job."""
        here, m = entry.place, self.machine.state
        if target.pool in results_differ(entry):  # policies may move it as its owner does
            entry.predicted = {**(entry.predicted or {}), "moved_by_hand": True}
            self.cluster.reconsider(m.jobs.renewed(entry))
        decisions.apply(m, act.Migrate(entry.id, target))
        entry.fallbacks = (here,)  # should that be gone by then: as before
        m.stale = True  # no policy has asked for this: it begins anew with what is there

    def _place(self, to: str, units: int) -> Placement:
        """Make a placement of ``to``: a class of device, or a node as ``tenbin nodes`` names it."""
        for pool in self.cluster.cluster.pools:
            if to in pool.names:
                return Placement(pool.name, units, ((pool.names.index(to), units),))
            number = to.removeprefix(pool.name)
            if not pool.counted and to != number and number.isdecimal():
                return Placement(pool.name, units, ((int(number), units),))
        return Placement(to, units)

    def _why_it_stays(self, entry: Entry, target: Placement, to: str) -> str:
        """Say as a clause why a job's owner cannot have it moved; "" if there only has to be room."""
        if bound_to_node(entry):
            return entry.fixed or f"its program stays on its device of {', '.join(entry.hosts or ())}"
        if not self._may_move(entry, target.pool):
            return f"it does not run on {to}"
        here = entry.place
        return "it runs there already" if (target.pool, target.nodes) == (here.pool, here.nodes) else ""

    def _may_move(self, entry: Entry, pool: str) -> bool:
        """Tell if a job's owner may have it moved to a class, also to one where a trial had other results."""
        if pool not in results_differ(entry):
            return entry.job.runs_on(pool)
        kinds = [known.kind for known in self.cluster.cluster.pools if known.name == pool]
        return bool(kinds) and entry.spec.device in ("any", pool, *kinds)

    def set_priority(
        self, job_ids: Sequence[int], priority: int, where_possible: Sequence[int] = ()
    ) -> tuple[dict[int, list[int]], dict[int, LeftOut]]:
        """Give jobs another priority, as if they had been submitted with it.

        Returns:
            The jobs by their priority before, and those left out with the reason.
        """
        self.set_clock()
        m = self.machine.state
        entries, left_out = m.jobs.choose(job_ids, where_possible)
        before: dict[int, list[int]] = {}
        for entry in entries:
            before.setdefault(entry.priority, []).append(entry.id)
        admission.prioritize(m, entries, priority)
        self.settle()
        return before, left_out

    def update(
        self, job_ids: Sequence[int], change: Update, where_possible: Sequence[int] = ()
    ) -> dict[int, LeftOut]:
        """Change the limit of jobs, or their priority, as if they had been submitted with it.

        Raises:
            BadInput: one has ended or is about to, or its limit is not this coordinator's to change.
        """
        self.set_clock()
        m = self.machine.state
        entries, left_out = m.jobs.choose(job_ids, where_possible, partial(self._new_limit_s, change=change))
        for entry in entries:
            limit_s = self._new_limit_s(entry, change)
            if limit_s != (entry.way.time_s or math.inf):
                admission.limit(m, entry, limit_s)
                if entry.phase is Phase.RUNNING:  # another one hears of it when it goes on
                    decisions.request(m, entry, "run" if entry.want == "run" else "limit")
        if change.priority is not None:
            admission.prioritize(m, entries, change.priority)
        self.settle()
        return left_out

    def _new_limit_s(self, entry: Entry, change: Update) -> float:
        """Return the limit of run time that a job would have, infinite: none; BadInput if it cannot."""
        before_s = math.inf if entry.way.time_s is None else entry.way.time_s
        limit_s = before_s if change.time_s is None else change.time_s
        if change.more_s and math.isinf(before_s):
            raise BadInput(f"job {entry.label} has no limit of its run time", "give it one: --time 4h")
        limit_s += change.more_s
        if limit_s == before_s:
            return limit_s
        _refuse_ending(entry)
        if limit_s <= 0:
            what = f"job {entry.label} has a limit of {before_s:g} s, not more than {-change.more_s:g} s"
            raise BadInput(what, "give the limit itself: --time 5m")
        if entry.spec.external:
            what = f"the limit of job {entry.label} is {self.engine.external_jobs.scheduler}'s"
            raise BadInput(what, f"scontrol update JobId={entry.spec.external.id} TimeLimit=...")
        if entry.phase.leaving:
            what = f"job {entry.label} is about to leave its place"
            raise BadInput(what, f"try again when it has: tenbin info {entry.label}")
        if entry.alive and limit_s > before_s and not self.engine.extends:
            what = f"job {entry.label} has started, and its batch job ends at the limit that it was given"
            raise BadInput(what, "only a limit that is shorter counts now")
        return limit_s

    def let_external_jobs_go(self, let_go: bool) -> int:
        """Count the external jobs that wait; with ``let_go`` leave them to the cluster's own scheduler."""
        if not self.engine.external_jobs.able:
            return 0
        m = self.machine.state
        count = len(external_jobs.waiting(m))
        if let_go:
            self.set_clock()
            external_jobs.leave(m, "tenbin down --let-go")
            self.turn()
        return count

    def hold(self, seconds: float) -> str:
        """Start no job for so long, 0: go on; return why none is started. A restart forgets it."""
        if self.engine.nodes.named:
            raise BadInput("a cluster holds its own nodes", "scontrol update State=DRAIN")
        self.set_clock()
        self.machine.state.hold.until_s = self.cluster.now + seconds
        self.turn()
        return self.why_held()

    def suspend_queue(self, suspended: bool) -> str:
        """Start no job until the queue is resumed, also after a restart; return why none is started.

        Raises:
            NoRoom: that cannot be noted; nothing has changed.
        """
        file = self.journal.store / SUSPENDED
        try:
            if suspended:
                write_whole(file, "")
            else:
                file.unlink(missing_ok=True)
                sync(file.parent)
        except OSError as error:
            raise NoRoom(f"{file}: {error.strerror}", "free some space") from error
        self.set_clock()
        self.machine.state.hold.of_queue = suspended
        self.turn()
        return self.why_held()

    def why_held(self) -> str:
        """Say why no job is started now; "" if jobs are."""
        return self.machine.state.hold.why(self.clock()) or self.machine.failure

    def hold_while_unfit(self, why: Callable[[], str]) -> None:
        """Start no job while ``why`` says that the machine is unfit for them; "": it is fit."""
        self.machine.state.hold.unfit = why

    def why(self, job_id: int) -> Reason:
        """Say why a job does not run, and when it should start; an empty sentence if it does."""
        reason, now = self._reason(job_id), self.clock()
        if reason.expected_start_s is None:
            return reason
        if reason.expected_start_s > (self.job_table.open(job_id).spec.deadline_s or math.inf):
            return Reason(f"{reason.sentence}; its deadline passes before it would start")
        wait_s = max(reason.expected_start_s - now, 0.0)
        waits_s = self.start_times.expect(job_id, self._steady(), wait_s)
        if waits_s is None:
            return reason
        return reason._replace(start_low_s=now + waits_s[0], start_high_s=now + waits_s[1])

    def _reason(self, job_id: int) -> Reason:
        entry, m = self.job_table.open(job_id), self.machine.state
        phase = entry.phase
        if phase is Phase.ENDING and not entry.stage.placed:
            return Reason("has been told to end, and is about to")
        if entry.held_by_user:
            return Reason(f"suspended; go on with: tenbin resume {entry.label}")
        if entry.blocked or phase is Phase.HELD:
            why = entry.blocked or machine_state.why_held(entry, m.holds.verdict(entry), self.clock())
            return Reason(why)
        if phase is Phase.WAITING:
            why = self._why_out_of_turn(entry)
            reason = Reason(why) if why else self.why_of_policy(entry)
            return reason._replace(sentence=reason.sentence + self._withheld_gpus(entry))
        if phase.queued:
            return Reason("paused by the policy in favour of other jobs")
        return Reason(self.engine.nodes.hindrance(entry) or self._slower_gpus(entry))

    def _why_out_of_turn(self, entry: Entry) -> str:
        """Say why a job that waits does not start whatever the policy decides; "": the policy knows."""
        m = self.machine.state
        why = self.why_held() or self._why_behind(entry.id) or m.memory.why(entry.id, self.job_table.name)
        if not why and entry.id in m.returning:
            why = where_paused(entry.hosts or ())
        return why

    def why_of_policy(self, entry: Entry) -> Reason:
        """Return what the policy says of a job that waits, or that it cannot say it."""
        try:
            with self._faults_of_its_file():
                return reason_of(self.policy, self.policy.why(self.job_table.job(entry), self.cluster))
        except BadInput as fault:
            return Reason(fault.what)

    def prices(self) -> Mapping[str, Mapping[str, float]]:
        """Return the prices of the policy (``Policy.prices``); none, if it cannot say them."""
        try:
            with self._faults_of_its_file():
                return prices_of(self.policy, self.policy.prices())
        except BadInput as fault:
            log.error("%s", fault.what)
            return {}

    @contextmanager
    def _faults_of_its_file(self) -> Iterator[None]:
        """Raise BadInput for an error of a policy that a user has written, which may be any."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if fault := fault_in_file(self.policy_text, error):
                raise fault from error
            raise

    def _why_behind(self, job_id: int) -> str:
        """Say why a member of an array waits for a place of it, and what those before it wait for; "": no."""
        limits = self.machine.state.array_limits
        for number in limits.ahead(job_id):
            if why := self._reason(number).sentence:
                return f"{limits.why(job_id)}; job {self.job_table.open(number).label} is ahead: {why}"
        return limits.why(job_id)

    def why_array(self, number: int) -> Reason:
        """Say why the first member of an array that waits does so; an empty sentence if none waits."""
        for job_id in range(number + 1, number + 1 + self.job_table.arrays.members(number)):
            entry = self.job_table.entries.get(job_id)
            if entry is not None and not entry.stage.placed:
                reason = self.why(job_id)
                return reason._replace(sentence=f"{entry.label}: {reason.sentence}")
        return Reason("")

    def _withheld_gpus(self, entry: Entry) -> str:
        """Say which GPUs are not given out and why, if too few are free for the job; "": none."""
        said = ""
        for row in self.engine.gpus.rows() if self._lacks_gpus(entry) else ():
            if row.strangers:
                said += f"; GPU {row.number} is held outside of the queue by {' and '.join(row.strangers)}"
            if row.failure:
                said += f"; GPU {row.number} {row.failure}"
        return said

    def _lacks_gpus(self, entry: Entry) -> bool:
        """Tell if for one of its ways the job wants more GPUs of a kind than a node has free, or devices."""
        if self.cluster.cluster.pools[0].kind:
            return not fits_now(self.job_table.job(entry), self.cluster)
        if not any(way.gpus_asked for way in entry.spec.ways):
            return False
        free = [nodes.free.max(axis=0) for nodes in self.cluster.nodes.values()]
        ways = self.job_table.job(entry).ways
        gpus = slice(2, 2 + len(self.job_table.unit.gpus))  # behind cores and memory
        return not free or any((row < way.demand)[gpus].any() for row in free for way in ways)

    def _slower_gpus(self, entry: Entry) -> str:
        """Say which GPUs of a job that runs are slower than they were; "": none."""
        rows = self.engine.gpus.rows() if entry.devices else ()
        own = [row for row in rows if row.number in entry.devices and row.loss_ratio]
        return "; ".join(slower(f"GPU {row.number}", row.loss_ratio) for row in own)

    # -- the turn -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let happen what a user has asked for.

        Raises:
            NoRoom: it happens when the journal can be written, and not if the coordinator ends before.
        """
        self.turn()
        if not self.job_table.is_durable:
            what = "the journal cannot be written: this is done when it can, unless tenbin up ends before"
            raise NoRoom(what, "free some space")

    def turn(self) -> None:
        """Let everything happen that is due, decide, make it durable, carry it out.

        On a full disk it stays decided; the next turn makes it durable and carries it out.
        """
        try:
            self._once()
            while self.engine.urgent() or self.machine.state.queue:
                self._once()
        except NO_ROOM as error:
            log.error("the journal or a job's folder cannot be written: %s", error)
        except Exception:
            log.exception("a fault of tenbin's: this turn is not complete")

    def next_timer_s(self) -> float | None:
        """Return when ``turn`` should be called at the latest, in seconds since 1970."""
        times = (self.machine.state.timers.next_s(), self.machine.state.holds.next_s())
        return min((at for at in times if at is not None), default=None)

    def set_clock(self) -> None:
        """Do so before anything changes the cluster state: the last turn may have been seconds ago.

        Where the clock was set meanwhile, what lies in the past moves with it, so that durations are as they
        were. Begins and deadlines are instants, by the clock as it is now.
        """
        now, steady_s, m = instant(self.clock()), self._steady(), self.machine.state
        step_s = now - m.now - (steady_s - self._steady_s)
        self._steady_s = steady_s
        if abs(step_s) < STEP_S:
            m.cluster.now = max(now, m.now)
            return
        log.warning("the clock was set by %+.1f s", step_s)
        m.cluster.now = now
        m.shift(step_s, now)
        m.tracker.since_s += step_s
        admission.set_alarms_anew(m)
        m.stale = True
        m.queue.put(ev.Applied(Timer(now)))

    def _once(self) -> None:
        reports, m = [*self._early, *self.engine.poll()], self.machine.state
        self._early.clear()
        self.set_clock()  # after the poll, so that nothing that is reported is yet to come
        for report in reports:
            with m.queue.sparing(m.jobs.entries.get(report.job_id), report.what):
                ends.note(m, report)
        with m.queue.sparing(None, "idle GPUs"):
            idle_gpus.look(m)
        with m.queue.sparing(None, "external jobs"):
            external_jobs.look(m, self.check)
        for change in m.update_nodes():
            m.queue.put(ev.Applied(change))
        with m.queue.sparing(None, "phases of programs"):
            m.tracker.look_around()
        for at, tag in m.timers.due(m.now):
            m.queue.put(ev.Applied(Timer(at, tag)))
        self.machine.look_at_times()
        effects = self.machine.handle()
        if m.co_location is not None:
            with m.queue.sparing(None, "jobs that share a node"):
                m.co_location.look(m.cluster)
        self.carry_out(effects)

    def carry_out(self, effects: Iterable[ev.Effect]) -> None:
        """Commit to the journal, then have the engine act. If there is no room, the next turn does.

        Raises:
            sqlite3.Error, OSError: the journal, or a job's folder, cannot be written.
        """
        self.machine.state.commit()
        for effect in effects:
            if isinstance(effect, ev.Start):
                self._start(effect)
            elif isinstance(effect, ev.Tell):
                self.notifier.tell(effect.notices)
                self.machine.settle(effect)
            elif isinstance(effect, ev.SetCaps):
                self.engine.caps.cap(effect.jobs, lower=effect.lower)
                self.machine.settle(effect)
            else:
                what = effect.want if isinstance(effect, ev.Ask) else "recover"
                with self.machine.state.queue.sparing(effect.job, what, NO_ROOM):
                    if isinstance(effect, ev.Ask):
                        self.engine.ask(effect.job, effect.want)
                    else:  # the engine reports that this attempt never was, and sees that it never is
                        self.engine.recover(effect.job)
                self.machine.settle(effect)

    def _start(self, effect: ev.Start) -> None:
        """Start jobs together, or one by one if there is one on which the engine chokes."""
        try:
            self._start_all(effect)
        except NO_ROOM:
            raise
        except Exception:
            log.exception("a fault of tenbin's: of several jobs one cannot be started")
            for entry in effect.jobs:  # the one stays, and is told to end
                with self.machine.state.queue.sparing(entry, "start", NO_ROOM):
                    self._start_all(ev.Start((entry,)))

    def _start_all(self, effect: ev.Start) -> None:
        self.engine.start([(entry, self.journal.environment(entry.environment)) for entry in effect.jobs])
        self.machine.settle(effect)
        for entry in effect.jobs:
            self.start_times.started(entry.id, self._steady())

    # -- after a restart ------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Take up what the journal left; the first turn hears what became of each attempt."""
        m = self.machine.state
        ahead_s = self.journal.last_event_s() - m.now
        if ahead_s >= STEP_S:  # the clock was set while no coordinator ran: nothing is yet to come
            log.warning("the clock was set back by %.1f s or more", ahead_s)
            m.shift(-ahead_s, m.now)
        regions = self.journal.regions()
        for pool in m.cluster.cluster.pools:
            cut = regions.get(pool.name, ())
            if cut and sum(region.units for region in cut) <= pool.units:  # else the policy cuts it anew
                m.cluster.repartition(pool.name, cut)
                self.engine.regions.cut(pool.name, cut)
        if self.profiles is not None:
            self.profiles.recall(entry.spec.job_profile for entry in m.jobs.entries.values())
        admission.recover(m)
        for entry in sorted(m.jobs.entries.values(), key=attrgetter("waits_from_s")):
            with m.queue.sparing(entry, "at the start", (BadInput, *NO_ROOM)):
                self._recover_job(entry)
        for entry in m.jobs.entries.values():
            decisions.reserve_again(m, entry)
        self.machine.begin()
        if not self.machine.policy.resumes:
            admission.let_suspended_wait(m)
        m.queue.put(ev.Applied(Timer(m.now)))

    def _recover_job(self, entry: Entry) -> None:
        m, displaced = self.machine.state, False
        if entry.alive:
            self.engine.recover(entry)  # first: whatever goes wrong, its end is heard of
        if placed := entry.stage.placed:
            self.engine.occupy(entry)
        if placed or entry.phase.queued:
            displaced = not self._restore(entry)
        m.holds.alarm(entry, entry.spec.deadline_s)
        if entry.phase is Phase.HELD and not (displaced and entry.alive):  # else at its attempt's end
            admission.admit(m, entry)
        if entry.alive:
            decisions.request_again(m, entry)
            m.caps.append(entry)  # what was decided may not have been set
        m.run_times.watch(entry)
        if not admission.unfit(m, entry):
            m.tracker.recover(entry)

    def _restore(self, entry: Entry) -> bool:
        """Enter a job in the cluster state as it was; one that this machine cannot run is held: False.

        One that runs keeps all that it has, also what is not there any more: nobody else gets it.

        Raises:
            BadInput: it runs where nothing is now.
        """
        m, placed = self.machine.state, entry.stage.placed
        why = "" if placed or entry.spec.external else admission.unfit(m, entry)
        try:
            if not why:
                if placed or not admission.waits_for_admission(m, entry):
                    m.jobs.job(entry)
                    m.cluster.restore(entry)
                return True
        except (RuleBroken, BadInput) as error:
            if entry.alive and (entry.moves_to is not None or not self._is_over(entry)):
                self._restore_beyond(entry, error)
                return True
            if placed:
                self.engine.free(entry)
        entry.stage, entry.fallbacks, entry.blocked = Stage.HELD, (), why
        m.jobs.mark_changed(entry)
        if not entry.alive:
            admission.give_back(m, entry)
        return False

    def _restore_beyond(self, entry: Entry, error: RuleBroken | BadInput) -> None:
        before = entry.place
        try:
            if entry.moves_to is not None:
                raise error
            self.job_table.without_gpus.add(entry.id)
            self.job_table.job(entry)
            self.cluster.restore(entry, beyond=True)
        except (RuleBroken, BadInput) as last:
            why = last.why if isinstance(last, RuleBroken) else last.what
            remedy = "start with the same --nodes, --unit, --devices, --power-budget as before"
            if pids := self.folders.attempt(entry).supervisors():
                remedy += f", or end it: kill {' '.join(map(str, pids))}"
            what = f"job {entry.id} runs on a machine that was divided otherwise ({why})"
            raise BadInput(what, remedy) from error
        if entry.place != before:
            self.machine.state.record(entry, "power cap", f"{entry.place.cap_w:g} W")
            log.warning("job %s goes on under its lowest cap: the budget is smaller", entry.label)
        else:
            log.warning("job %s has more than there is any more: it keeps that until its end", entry.label)

    def _is_over(self, entry: Entry) -> bool:
        """Tell whether the engine knows already that the job's attempt is over."""
        self._early += self.engine.poll()
        over = ((report.job_id, report.attempt) for report in self._early if report.what in OVER)
        return (entry.id, entry.attempt) in over


def _since_boot_s() -> float:
    """Return seconds that nobody sets, in which the machine may also have slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _can_be_held(entry: Entry) -> None:
    """Raise BadInput if its owner has suspended the job, or it is about to end."""
    if entry.held_by_user:
        raise BadInput(f"job {entry.label} is suspended already", f"tenbin resume {entry.label}")
    if entry.alive and entry.job.stop is Stop.NEVER:
        why = "would keep its memory on its GPUs" if entry.way.gpus_asked else "has more than is left for it"
        what = f"job {entry.label} cannot be suspended: it {why}"
        raise BadInput(what, f"end it: tenbin cancel {entry.label}")
    _refuse_ending(entry)


def _refuse_ending(entry: Entry) -> None:
    """Raise BadInput if the job is about to end, because somebody wants it to."""
    if entry.phase is Phase.ENDING:
        raise BadInput(f"job {entry.label} has been told to end", f"see: tenbin info {entry.label}")
