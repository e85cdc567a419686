"""Schedules real jobs: the loop around one policy and one engine, with a durable journal.

A turn: what the engine reports and what users asked for changes the cluster state, the policy decides, the
journal is committed, and only then are the decisions carried out. So it can be killed at any instant: started
again it reads the journal, has the engine find out what became of each attempt, and completes the rest.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from profiles.errors import BadInput
from scheduler.coordinator import events as ev
from scheduler.coordinator import holds, node_availability
from scheduler.coordinator.dispatcher import NO_ROOM, Dispatcher
from scheduler.coordinator.handlers import Handlers
from scheduler.coordinator.job_table import JobTable, NoRoom
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.loop import EventLoop
from scheduler.coordinator.moves import why_it_stays
from scheduler.coordinator.retry import choose_ended, renew
from scheduler.coordinator.transitions.alarms import Alarms
from scheduler.coordinator.transitions.external_jobs import ExternalJobTracker
from scheduler.engines.common.job_folders import JobFolders
from scheduler.engines.protocol import Engine
from scheduler.jobs.choice.left_out import LeftOut
from scheduler.jobs.dependencies import WaitsByPlace
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.memory_admission import MemoryAdmission
from scheduler.jobs.order_checks import check_places, check_times, check_waits
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.sizes import CORE, Unit, sized, under_caps, within_memory
from scheduler.jobs.specs import JobRefused, JobSpec, refuse_external
from scheduler.model import actions as act
from scheduler.model.costs import FREE, LinearCosts
from scheduler.model.events import Timer
from scheduler.model.interference import NOTHING_KNOWN
from scheduler.model.jobs import Placement, instant
from scheduler.model.state import ClusterState, RuleBroken
from scheduler.policies.base import Policy, Reason
from scheduler.policies.registry import create
from scheduler.prediction.migration_costs import LearnedMigrationCosts
from scheduler.prediction.profiles import ProfiledJobs, ProfiledSlowdowns
from scheduler.prediction.run_times import REMEMBERED, RunTimePredictor
from scheduler.prediction.tracker import REMEMBERED as OUTCOMES
from scheduler.prediction.tracker import CoLocationTracker, PredictionTracker

STEP_S = 1.0  # so far a clock is moved without anybody having set it
log = logging.getLogger("tenbin")


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
    ) -> None:
        self.journal, self.engine, self.clock = journal, engine, clock
        self._steady = steady or (_since_boot_s if clock is time.time else clock)
        self._steady_s = self._steady()
        self.folders = JobFolders(journal.store)
        create(policy)  # a wrong name is refused before anything else
        self.profiles, self.measured = profiles, measured
        self.migration_costs = LearnedMigrationCosts(costs)
        slowdowns = profiles or NOTHING_KNOWN
        self.state = ClusterState(
            engine.cluster, self.migration_costs, slowdowns=slowdowns, now=instant(clock())
        )
        self.job_table = JobTable(journal, engine.cluster, unit)
        self.co_location = CoLocationTracker(self.job_table, profiles) if profiles is not None else None
        self.tracker = PredictionTracker(self.job_table, self.folders, self.migration_costs, self.state.now)
        for outcome in journal.predictions(last=OUTCOMES):
            self.migration_costs.recall(outcome)
        self.dispatcher = Dispatcher(self.state, self.job_table, engine, self.tracker)
        self.queue = self.dispatcher.queue
        ended = (entry for entry in journal.entries(REMEMBERED) if entry.stage.final)
        self.run_times = RunTimePredictor(ended, self.job_table.user, engine.cluster, measured.runs)
        self.memory = MemoryAdmission(engine.cluster.memory_mb)
        self.handlers = Handlers(self.dispatcher, self.run_times, self.memory, self.co_location)
        self.alarms = Alarms(self.handlers)
        self.loop = EventLoop(policy, self.handlers)
        self.external_jobs: ExternalJobTracker | None = None
        if engine.external_jobs is not None:
            past = [*journal.entries(REMEMBERED), *self.job_table.entries.values()]
            self.external_jobs = ExternalJobTracker(past, self.handlers, engine.external_jobs, self.check)
        self._recover()

    @property
    def policy(self) -> Policy:
        """The policy that decides now; it begins anew from time to time."""
        return self.loop.policy

    @property
    def policy_text(self) -> str:
        """Name and parameters of the policy."""
        return self.loop.policy_text

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
        self.set_clock()
        now, waits_for = self.state.now, waits_for or {}
        unit = self.job_table.unit
        specs = [sized(spec, self.measured.scaling, unit) for spec in specs]
        specs = [under_caps(spec, self.measured.caps, unit) for spec in specs]
        total_mb = self.state.cluster.memory_mb
        check_places(waits_for, arrays or {}, len(specs))
        self.measured.check(spec.job_profile for spec in specs)
        if self.profiles is not None:
            self.profiles.introduce(spec.job_profile for spec in specs)
        for place, spec in enumerate(specs):
            try:
                refuse_external(spec)
                specs[place] = within_memory(spec, unit, total_mb)
                self.check(specs[place], now)
                check_waits(specs[place], (arrays or {}).get(place), self.job_table)
                check_times(specs[place], now)
            except BadInput as error:
                raise JobRefused(error, place, len(specs)) from error
        gc.disable()  # all that is made here stays: to look for garbage in it takes a third of the time
        try:
            told = self.run_times.expect(specs)
            entries = self.job_table.add(specs, environment, now, waits_for, arrays=arrays, predicted=told)
            for entry in sorted(entries, key=lambda entry: -entry.spec.priority):
                with self.queue.sparing(entry, "as it was submitted"):
                    self.handlers.admit(entry)
            self.turn()
        finally:
            gc.enable()
        return entries

    def check(self, spec: JobSpec, now: float) -> None:
        """Raise BadInput if the job cannot be accepted."""
        job = as_job(0, now, spec, self.state.cluster, user=self.job_table.user, unit=self.job_table.unit)
        why = self.state.misfit(job) or self.policy.refuses(job, self.state.cluster)
        if why:
            raise BadInput(f"the job can never run here: {why}", "ask for less")
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
            self.job_table.record(entry, self.state.now, "cancel")
            if entry.alive:
                self.dispatcher.request(entry, "end")
            else:
                self.queue.put(ev.Ended(entry, Stage.CANCELLED))
        self.settle()
        return left_out

    def suspend(self, job_ids: Sequence[int], where_possible: Sequence[int] = ()) -> dict[int, LeftOut]:
        """Pause jobs until their owner resumes them; their cores are free for others."""
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible, _can_be_held)
        for entry in entries:
            self.queue.put(ev.SuspendedByOwner(entry))
        self.settle()
        return left_out

    def resume(self, job_ids: Sequence[int], where_possible: Sequence[int] = ()) -> dict[int, LeftOut]:
        """Let jobs that their owner has suspended go on as soon as the policy gives them a place."""
        self.set_clock()
        entries, left_out = self.job_table.choose(job_ids, where_possible, self._resumable)
        for entry in entries:
            entry.held_by_user = False
            if entry.phase.leaving and not entry.moves_to:
                entry.goals = (self.state.state(entry.id).place,)  # not every policy resumes jobs
            self.job_table.record(entry, self.state.now, "resumed")
            with self.queue.sparing(entry, "resumed"):
                self.handlers.admit(entry)
        self.settle()
        return left_out

    def retry(
        self, job_ids: Sequence[int], where_possible: Sequence[int] = ()
    ) -> tuple[list[Entry], dict[int, LeftOut]]:
        """Run jobs that did not succeed again, under the same number; return them, and those left out."""
        self.set_clock()
        entries, left_out = choose_ended(self.job_table, job_ids, where_possible, self.state.now)
        self.job_table.bring_back(entries)
        for entry in entries:
            renew(entry, self.state.now)
            self.job_table.record(entry, self.state.now, "retry", "by its owner")
        for entry in entries:
            with self.queue.sparing(entry, "retried"):
                self.handlers.admit(entry)
        self.settle()
        return entries, left_out

    def _resumable(self, entry: Entry) -> None:
        """Raise BadInput unless its owner has suspended the job, and this machine can run it."""
        if not entry.held_by_user:
            raise BadInput(f"job {entry.label} is {entry.shown}, not suspended by you", "see: tenbin jobs")
        _refuse_ending(entry)
        if why := self.handlers.unfit(entry):
            raise BadInput(f"job {entry.label}: {why}", "start tenbin up as before, or cancel the job")

    def migrate(
        self, job_ids: Sequence[int], to: str, where_possible: Sequence[int] = ()
    ) -> dict[int, LeftOut]:
        """Move running jobs to another class of device, or another node: checkpoint here, restart there.

        Raises:
            BadInput: one does not run, cannot be checkpointed, or there is no room for it there.
        """
        self.set_clock()
        _, left_out = self.job_table.choose(job_ids, where_possible, partial(self._move, to=to))
        self.settle()
        return left_out

    def _move(self, entry: Entry, to: str) -> None:
        """Apply the move of one job."""
        _refuse_ending(entry)
        state = self.state.running.get(entry.id)
        if state is None or state.placement is None:
            raise BadInput(f"job {entry.label} is {entry.shown}, not running", "see: tenbin jobs")
        target = self._place(to, state.placement.units)
        why = why_it_stays(self.handlers, entry, target, to) or self.state.obstacle(state.job, target)
        if why:
            raise BadInput(f"job {entry.label} cannot move to {to}: {why}", "see: tenbin nodes")
        self.handlers.allow_other_results(entry, target.pool)
        try:
            self.dispatcher.apply(act.Migrate(entry.id, target))
            entry.goals = (target, state.placement)  # should somebody else be quicker: as before
            self.handlers.stale = True  # no policy has asked for this: it begins anew with what is there
        except RuleBroken as error:
            raise BadInput(
                f"job {entry.label} cannot move: {entry.fixed or error}", "submit it with --checkpoint"
            ) from error

    def _place(self, to: str, units: int) -> Placement:
        """Make a placement of ``to``: a class of device, or a node as ``tenbin nodes`` names it."""
        for pool in self.state.cluster.pools:
            if to in pool.names:
                return Placement(pool.name, units, ((pool.names.index(to), units),))
            number = to.removeprefix(pool.name)
            if not pool.counted and to != number and number.isdecimal():
                return Placement(pool.name, units, ((int(number), units),))
        return Placement(to, units)

    def let_external_jobs_go(self, let_go: bool) -> int:
        """Count the external jobs that wait; with ``let_go`` leave them to the cluster's own scheduler."""
        if self.external_jobs is None:
            return 0
        count = len(self.external_jobs.waiting())
        if let_go:
            self.set_clock()
            self.external_jobs.leave("tenbin down --let-go")
            self.turn()
        return count

    def hold(self, seconds: float) -> str:
        """Start no job for so long, 0: go on; return why none is started. A restart forgets it."""
        if self.engine.nodes is not None:
            raise BadInput("a cluster holds its own nodes", "scontrol update State=DRAIN")
        self.set_clock()
        self.dispatcher.hold.until_s = self.state.now + seconds
        self.turn()
        return self.dispatcher.hold.why(self.state.now)

    def why(self, job_id: int) -> Reason:
        """Say why a job does not run; an empty sentence if it does."""
        entry = self.job_table.open(job_id)
        if entry.held_by_user:
            return Reason(f"suspended by its owner; go on with: tenbin resume {entry.label}")
        if entry.blocked:
            return Reason(entry.blocked)
        if entry.stage is Stage.HELD:
            return Reason(holds.why(entry, self.handlers.holds.verdict(entry), self.clock()))
        if entry.stage is Stage.WAITING:
            held = self.dispatcher.hold.why(self.clock())
            told = held or self.handlers.array_limits.why(job_id) or self.memory.why(job_id)
            return Reason(told) if told else self.policy.why(self.job_table.job(entry), self.state)
        if entry.stage is Stage.SUSPENDED:
            return Reason("paused by the policy in favour of other jobs")
        return Reason(self.engine.nodes.hindrance(entry) if self.engine.nodes is not None else "")

    # -- the turn -------------------------------------------------------------------------------------

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
            while self.engine.urgent() or self.queue:
                self._once()
        except NO_ROOM as error:
            log.error("the journal or a job's folder cannot be written: %s", error)
        except Exception:
            log.exception("a fault of tenbin's: this turn is not complete")

    def next_timer_s(self) -> float | None:
        """Return when ``turn`` should be called at the latest, in seconds since 1970."""
        times = (self.dispatcher.next_timer_s(), self.handlers.holds.next_s())
        return min((at for at in times if at is not None), default=None)

    def set_clock(self) -> None:
        """Do so before anything changes the cluster state: the last turn may have been seconds ago.

        Where the clock was set meanwhile, what lies in the past moves with it, so that durations are as they
        were. Begins and deadlines are instants, by the clock as it is now.
        """
        now, steady_s = instant(self.clock()), self._steady()
        step_s = now - self.state.now - (steady_s - self._steady_s)
        self._steady_s = steady_s
        if abs(step_s) < STEP_S:
            self.state.now = max(now, self.state.now)
            return
        log.warning("the clock was set by %+.1f s", step_s)
        self.state.now = now
        self.job_table.shift(step_s, now)
        self.tracker.since_s += step_s
        self.dispatcher.shift(step_s)
        self.loop.trials.shift(step_s)
        self.handlers.set_alarms_anew()
        self.handlers.stale = True
        self.queue.put(ev.Applied(Timer(now)))

    def _once(self) -> None:
        reports = self.engine.poll()
        self.set_clock()  # after the poll, so that nothing that is reported is yet to come
        for report in reports:
            with self.queue.sparing(self.job_table.entries.get(report.job_id), report.what):
                self.handlers.report(report)
        if self.external_jobs is not None:
            with self.queue.sparing(None, "external jobs"):
                self.external_jobs.look()
        for change in node_availability.update(self.state, self.engine, self.dispatcher.hold):
            self.queue.put(ev.Applied(change))
        with self.queue.sparing(None, "phases of programs"):
            self.tracker.look_around()
        for at, tag in self.dispatcher.due():
            self.queue.put(ev.Applied(Timer(at, tag)))
        self.alarms.look()
        self.loop.run()
        if self.co_location is not None:
            with self.queue.sparing(None, "jobs that share a node"):
                self.co_location.look(self.state)
        self.dispatcher.carry_out()

    # -- after a restart ------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Take up what the journal left; the first turn hears what became of each attempt."""
        ahead_s = self.journal.last_event_s() - self.state.now
        if ahead_s >= STEP_S:  # the clock was set while no coordinator ran: nothing is yet to come
            log.warning("the clock was set back by %.1f s or more", ahead_s)
            self.job_table.shift(-ahead_s, self.state.now)
            self.dispatcher.shift(-ahead_s)
        regions = self.journal.regions()
        for pool in self.state.cluster.pools:
            cut = regions.get(pool.name, ())
            if cut and sum(region.units for region in cut) <= pool.units:  # else the policy cuts it anew
                self.state.repartition(pool.name, cut)
                if self.engine.regions is not None:
                    self.engine.regions.cut(pool.name, cut)
        if self.profiles is not None:
            self.profiles.recall(entry.spec.job_profile for entry in self.job_table.entries.values())
        self.handlers.recover_admission()
        for entry in self.job_table.entries.values():
            with self.queue.sparing(entry, "at the start", (BadInput, *NO_ROOM)):
                self._recover_job(entry)
        self.loop.begin()
        self.queue.put(ev.Applied(Timer(self.state.now)))

    def _recover_job(self, entry: Entry) -> None:
        if entry.alive:
            self.engine.recover(entry)  # first: whatever goes wrong, its end is heard of
        if entry.stage in (Stage.RUNNING, Stage.STOPPING):
            self.engine.occupy(entry)
        if entry.stage is not Stage.HELD and not self.handlers.waits_for_admission(entry):
            try:
                self.job_table.job(entry)
                self.state.restore(entry)
            except (RuleBroken, BadInput) as error:
                why = error.why if isinstance(error, RuleBroken) else error.what
                raise BadInput(
                    f"job {entry.id} was started on a machine that was divided otherwise ({why})",
                    "start with the same --nodes, --cores, --unit, --devices, --power-budget as before",
                ) from error
        self.handlers.holds.alarm(entry, entry.spec.deadline_s)
        if entry.phase is Phase.HELD:
            self.handlers.admit(entry)
        if entry.alive:
            self.dispatcher.request_again(entry)
            self.dispatcher.cap_again(entry)
        self.run_times.watch(entry)
        if not self.handlers.unfit(entry):
            self.tracker.recover(entry)


def _since_boot_s() -> float:
    """Return seconds that nobody sets, in which the machine may also have slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _can_be_held(entry: Entry) -> None:
    """Raise BadInput if its owner has suspended the job, or it is about to end."""
    if entry.held_by_user:
        raise BadInput(f"job {entry.label} is suspended already", f"tenbin resume {entry.label}")
    _refuse_ending(entry)


def _refuse_ending(entry: Entry) -> None:
    """Raise BadInput if the job is about to end, because somebody wants it to."""
    if entry.phase is Phase.ENDING:
        raise BadInput(f"job {entry.label} has been told to end", f"see: tenbin info {entry.label}")
