"""Expected starts of jobs that are not submitted yet, and changes that would let a waiting job start sooner.

The policy is asked. Of jobs to come it goes on in virtual time as in 1. below, with them behind all that
wait. Of changes:

1. The policy goes on in virtual time from the cluster state as it is, until the job starts
   (``Continuation``).
2. The same for each variant of the job: fewer cores, tasks or nodes; a shorter limit, where earlier runs of
   the program tell one; another class of device. A variant is what its owner can do: submit the job so, and
   cancel the old one. It stands behind all that wait with its priority.
3. A variant is told if it starts earlier by ``LEAST_GAIN_S`` and by ``LEAST_SHARE`` of the wait, than in the
   first simulation and than the policy's own expected start. Of variants of one kind the smallest change is
   told, and a larger one if it gains as much again.

Guarantee: no variant that is told is later than the expected start of the job.
Cost: at most ``BUDGET_S`` of processor time, outside the event loop; copies of the jobs' states inside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from profiles.errors import BadInput, UserError
from scheduler.coordinator.admission import claim_of
from scheduler.coordinator.machine_state import why_held
from scheduler.jobs.dependencies import WaitsByPlace
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.literals import memory_text
from scheduler.jobs.machine_memory import TOLERANCE_MB
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import RUNNING, STOPPING, Job, JobState, Region, instant
from scheduler.model.state import ClusterState
from scheduler.policies.registry import create, fault_in_file
from scheduler.simulator.simulator import FINISH, STOPPED, SimulatedJob, Simulator
from scheduler.simulator.trace import Arrival, SimulationSettings

if TYPE_CHECKING:
    from scheduler.coordinator.coordinator import Coordinator

# -- a simulation that goes on from a cluster state as it is now -------------------------------------------
#
# Jobs take as long as they are believed to; one that takes longer ends at once, one of unknown run time
# never. Nothing is submitted, fails or comes back meanwhile. The policy begins anew, as after a restart.


NEVER_S = 1e10  # run time of a job of which nothing is known
HORIZON_S = 30 * 86_400.0  # nothing is said of what is farther off
SOON_S = 1e-6  # until the end of a job that takes longer than believed


class OutOfTime(Exception):
    """The simulation takes more processor time than it may."""


class _Over(Exception):
    """The jobs have started, or will not within the horizon."""


class _Unknown(Exception):
    """More jobs run than have their memory, of which the policy knows nothing."""


@dataclass(frozen=True)
class Present:
    """A cluster state to go on from, which does not change any more.

    Attributes:
        state: where costs, slow-downs and the like are taken from.
        jobs: running ones in the order of their starts, suspended ones, waiting ones in their order.
        down: units of each counted pool out of service. nodes_down: (pool, node).
        timers: those that the policy has asked for, as (time, tag).
        memory_mb: of the jobs that ask for some. room_mb: what all of them together may have.
    """

    state: ClusterState
    now: float
    budget_w: float | None
    regions: dict[str, tuple[Region, ...]]
    jobs: tuple[JobState, ...]
    down: dict[str, int]
    nodes_down: tuple[tuple[str, int], ...]
    timers: tuple[tuple[float, object], ...]
    memory_mb: Mapping[int, float] = field(default_factory=dict)
    room_mb: float = math.inf

    @classmethod
    def of(cls, state: ClusterState, timers: Iterable[tuple[float, object]] = ()) -> Present:
        """Keep a cluster state as it is now."""
        waiting = [state.state(job_id) for job_id in state.waiting]
        jobs = [
            copy(job_state) for job_state in (*state.running.values(), *state.suspended.values(), *waiting)
        ]
        counted = [pool for pool in state.cluster.pools if pool.counted]
        nodes = ((name, n, up) for name, of_pool in state.nodes.items() for n, up in enumerate(of_pool.up))
        return cls(
            state=state,
            now=state.now,
            budget_w=state.budget_w,
            regions=dict(state.regions),
            jobs=tuple(jobs),
            down={pool.name: pool.units - state.in_service[pool.name] for pool in counted},
            nodes_down=tuple((name, n) for name, n, up in nodes if not up),
            timers=tuple(timers),
        )


class Continuation(Simulator):
    """One simulation from the present on, in which neighbours on shared nodes slow nobody down.

    Args:
        policy: name and parameters.
        without: a job that is gone. new: jobs that are submitted now.
    """

    def __init__(self, present: Present, policy: str, *, without: int | None, new: Iterable[Job]) -> None:
        state = present.state
        settings = SimulationSettings(
            state.costs, kill_at_limit=False, slowdowns=state.slowdowns, profiles=state.profiles
        )
        super().__init__(state.cluster, (), create(policy), settings)
        self._present, self._without, self._new = present, without, new

    def _set_up(self) -> None:
        """Enter the jobs as they are."""
        present, state = self._present, self.state
        state.now, state.budget_w = present.now, None
        for pool, regions in present.regions.items():
            state.repartition(pool, regions)
        for job_state in present.jobs:
            if job_state.job.id != self._without:
                self._enter(copy(job_state))
        for job in self._new:
            self._cluster.submit(_arrival(job))
        state.arrange()
        state.budget_w = present.budget_w
        for pool, units in present.down.items():
            state.down(pool, units)
        for pool, node in present.nodes_down:
            state.set_node(pool, node, False)
        for at, tag in present.timers:
            self._queue.wake(max(at, state.now), tag)
        self._queue.wake(state.now, None)

    def _enter(self, job_state: JobState) -> None:
        """Enter one job; what runs ends as believed."""
        job, state, queue = job_state.job, self.state, self._queue
        simulated = self._cluster.jobs[job.id] = SimulatedJob(_arrival(job), job_state)
        state.restore(job_state)
        simulated.progress = simulated.saved = job_state.done
        simulated.saved_service_s = job_state.served_s
        if job_state.stage is RUNNING:
            simulated.set_out(job_state.works_from_s, 0.0)
            end = simulated.plan(False, 1.0)
            queue.push(max(end, instant(state.now + SOON_S)), FINISH, simulated, simulated.version)
        elif job_state.stage is STOPPING:
            simulated.set_out(state.now, 0.0)
            simulated.version += 1
            stop_s = state.costs.stop_s(job, job_state.place.pool)
            queue.push(instant(state.now + stop_s), STOPPED, simulated, simulated.version)


def start_of(
    job_id: int,
    present: Present,
    policy: str,
    *,
    without: int | None = None,
    new: Iterable[Job] = (),
    until_s: float = float("inf"),
) -> float | None:
    """Simulate until a waiting job starts, and return when; None: nothing that is known lets it start.

    Args, Raises: as of ``note_starts``.
    """
    starts: dict[int, float | None] = {job_id: None}
    note_starts(starts, present, policy, without=without, new=new, until_s=until_s)
    return starts[job_id]


def note_starts(
    starts: dict[int, float | None],
    present: Present,
    policy: str,
    *,
    without: int | None = None,
    new: Iterable[Job] = (),
    until_s: float = float("inf"),
) -> None:
    """Simulate until all of these waiting jobs have started, and note when, as far as that is known.

    Args:
        without, new: as of ``Continuation``.
        until_s: processor time of this thread (``time.thread_time``) at which to give up.

    Raises:
        OutOfTime: it is over.
    """
    simulation, left = Continuation(present, policy, without=without, new=new), set(starts)

    def look(view: object) -> None:
        state = simulation.state
        if time.thread_time() > until_s:
            raise OutOfTime
        if present.memory_mb:
            have = chain(state.running, state.suspended)
            if sum(present.memory_mb.get(number, 0.0) for number in have) > present.room_mb + TOLERANCE_MB:
                raise _Unknown
        if state.now > present.now + HORIZON_S:
            raise _Over
        for job_id in [job_id for job_id in left if job_id in state.running]:
            starts[job_id] = state.now
            left.remove(job_id)
        if not left:
            raise _Over

    simulation.observer = look
    try:
        with suppress(_Over, UserError, _Unknown):  # nothing is left to happen, or the policy cannot go on
            simulation.run()
    except Exception as error:
        if fault_in_file(policy, error) is None:
            raise


def _arrival(job: Job) -> Arrival:
    """Take what is believed of a job for the truth."""
    believed_s = [math.inf if way.estimate_s is None else way.estimate_s for way in job.ways]
    whole_s, *others_s = (NEVER_S if math.isinf(run_s) else run_s for run_s in believed_s)
    runs_s = {pool: NEVER_S if math.isinf(run_s) else run_s for pool, run_s in job.estimates_s.items()}
    return Arrival(job, whole_s, runs_s, others_s=tuple(others_s))


# -- jobs that are not submitted yet -----------------------------------------------------------------------


BUDGET_S = 0.25
MOST_WAITING = 2000  # jobs
MOST_REHEARSED = 20  # jobs of a submission


@dataclass(frozen=True)
class Prospect:
    """The outlook of a job if it were submitted now; of an array, that of its first member.

    Attributes:
        why: why it would be held; empty: it would not.
        ahead: how many jobs wait before it.
        expected_start_s: None: not known.
    """

    why: str
    ahead: int
    expected_start_s: float | None = None


@dataclass(frozen=True)
class Rehearsal:
    """All that the simulation of a submission needs: a job each, and what is known of it without.

    Attributes:
        jobs: those that would not be held, nor stand behind one of these that is short of memory.
        known: by the number that each job would have.
        at_once: others are short of memory, and in no simulation; so only who starts at once is known.
    """

    policy: str
    present: Present
    jobs: tuple[Job, ...]
    known: Mapping[int, Prospect]
    at_once: bool


def rehearsal(
    coordinator: Coordinator,
    specs: Sequence[JobSpec],
    waits_for: WaitsByPlace,
    arrays: Mapping[int, Sequence[int]],
) -> Rehearsal:
    """Check jobs as ``Coordinator.submit`` does, and prepare the question when they would start.

    Raises:
        BadInput: one cannot be submitted.
    """
    specs = coordinator.checked(specs, waits_for, arrays)
    m, table, now = coordinator.machine.state, coordinator.job_table, coordinator.cluster.now
    number, free_mb = table.journal.last_id() + 1, m.memory.free_mb
    present = Present.of(m.cluster, m.timers.pending())
    claims = [claim_of(m, table.entries[state.job.id]) for state in present.jobs]
    room_mb = free_mb + sum(claim.mb for claim in claims if m.memory.is_held(claim.job_id))
    at_once = m.memory.contended(())
    arrived, jobs, is_short = list[Job](), list[Job](), False
    known: dict[int, Prospect] = {}
    specs = specs[:MOST_REHEARSED]
    predictions = coordinator.run_times.expect(specs)
    for place in sorted(range(len(specs)), key=lambda place: -specs[place].priority):  # as they would arrive
        spec, predicted = specs[place], predictions[place]
        entry = Entry(number + place, spec, "", submit_s=now, stage=Stage.HELD)
        entry.array_index = next(iter(arrays.get(place, ())), None)
        others = "waits for others of these" if waits_for.get(place) else ""
        why = why_held(entry, m.holds.verdict(entry), now) or others or coordinator.why_held()
        claim = claim_of(m, entry)
        if not why and (claim.mb > free_mb or m.memory.lacking([claim])):
            free = f"{memory_text(max(free_mb, 0.0))} are free"
            turn = "" if claim.mb > free_mb else ", and others have the first turn"
            why, at_once = f"waits for {memory_text(claim.mb)} of memory; {free}{turn}", True
            is_short = True
        job = as_job(
            entry.id, now, spec, table.cluster, user=table.user, unit=table.unit, predicted=predicted
        )
        before = sum(other.priority >= job.priority for other in m.cluster.waiting.values())
        before += sum(other.priority >= job.priority for other in arrived)
        known[job.id] = Prospect(why, before)
        if not why:
            arrived.append(job)
            if not is_short:  # who is short may hold up those behind it
                jobs.append(job)
            claims.append(claim)
            free_mb -= claim.mb
    memory_mb = {claim.job_id: claim.mb for claim in claims if claim.mb}
    present = replace(present, memory_mb=memory_mb, room_mb=room_mb)
    in_order = dict(sorted(known.items()))
    return Rehearsal(coordinator.policy_text, present, tuple(jobs), in_order, at_once)


def prospects(query: Rehearsal) -> list[Prospect]:
    """Simulate, as long as there is time, and say when each job would start."""
    starts: dict[int, float | None] = {job.id: None for job in query.jobs}
    if starts and len(query.present.jobs) <= MOST_WAITING:
        until_s = time.thread_time() + BUDGET_S
        with suppress(OutOfTime):
            note_starts(starts, query.present, query.policy, new=query.jobs, until_s=until_s)
    if query.at_once:
        starts = {job: at if at == query.present.now else None for job, at in starts.items()}
    return [
        replace(prospect, expected_start_s=starts.get(job_id)) for job_id, prospect in query.known.items()
    ]


# -- variants of a waiting job -----------------------------------------------------------------------------


LEAST_GAIN_S, LEAST_SHARE = 30.0, 0.1
MOST_TOLD = 3
ABOVE = 1.5  # a limit over the 90 % quantile of earlier runs
SHORTER = 0.8  # a limit is worth a change if it is at most so much of the present one


class Change(NamedTuple):
    """A change of a job's specification.

    Attributes:
        kind: variants of one kind are told from the smallest change on.
        words: the change as people say it, ``2 cores in place of 4``.
        fields: the fields of the specification that differ.
        told_by: what the change rests on.
    """

    kind: str
    words: str
    fields: dict[str, Any]
    told_by: str = ""


class EarlierStart(NamedTuple):
    """A change of a waiting job, and when the job would start if it were submitted again so."""

    change: str
    fields: dict[str, Any]
    told_by: str
    expected_start_s: float


@dataclass(frozen=True)
class Question:
    """All that the simulations need; it does not change any more.

    Attributes:
        expected_start_s: as the policy says it; infinite: not known.
    """

    job_id: int
    policy: str
    present: Present
    expected_start_s: float
    variants: tuple[tuple[Change, Job], ...]


def question(coordinator: Coordinator, job_id: int) -> Question | None:
    """Prepare the question what would start a job sooner; None: nothing can be said of this job."""
    entry = coordinator.job_table.entries.get(job_id)
    if entry is None or not _can_be_varied(coordinator, entry):
        return None
    coordinator.set_clock()
    expected_s = coordinator.why_of_policy(entry).expected_start_s
    present = Present.of(coordinator.cluster, coordinator.machine.state.timers.pending())
    return Question(
        job_id,
        coordinator.policy_text,
        present,
        math.inf if expected_s is None else expected_s,
        tuple(_variants(coordinator, entry)),
    )


def earlier_starts(query: Question) -> list[EarlierStart]:
    """Simulate, and return the changes that are worth saying, the earliest start first."""
    until_s = time.thread_time() + BUDGET_S
    now, best_s = query.present.now, dict[str, float]()
    starts: list[EarlierStart] = []
    try:
        start_s = start_of(query.job_id, query.present, query.policy, until_s=until_s)
        limit_s = min(math.inf if start_s is None else start_s, query.expected_start_s)
        for change, job in query.variants:
            before_s = best_s.get(change.kind, limit_s)
            if not _gains(now, now, before_s):
                continue  # it starts at once, nearly
            start_s = start_of(
                job.id, query.present, query.policy, without=query.job_id, new=[job], until_s=until_s
            )
            if start_s is not None and _gains(start_s, now, before_s):
                best_s[change.kind] = start_s
                starts.append(EarlierStart(change.words, change.fields, change.told_by, start_s))
    except OutOfTime:
        pass
    return sorted(starts, key=lambda start: start.expected_start_s)[:MOST_TOLD]


def _gains(start_s: float, now: float, before_s: float) -> bool:
    """Return true if a start is earlier by a margin worth saying."""
    gain_s = before_s - start_s
    return gain_s >= LEAST_GAIN_S and (math.isinf(gain_s) or gain_s >= LEAST_SHARE * (before_s - now))


def _can_be_varied(coordinator: Coordinator, entry: Entry) -> bool:
    """Return true if all that a job waits for is its turn, and another submission would wait for no more.

    A lost job would lose its checkpoint, and a job that others wait for would take them with it. Places in
    arrays and memory are given by rules that no simulation knows. External jobs are submitted elsewhere.
    """
    m = coordinator.machine.state
    limited = entry.array is not None and entry.spec.array_limit is not None
    return (
        entry.stage is Stage.WAITING
        and entry.id in m.cluster.waiting
        and not entry.attempt
        and not entry.spec.external
        and not limited
        and not m.memory.contended(claim_of(m, m.jobs.entries[job_id]) for job_id in m.cluster.waiting)
        and not m.holds.waited_for(entry)
        and not coordinator.why_held()
        and len(m.cluster.waiting) <= MOST_WAITING
    )


def _variants(coordinator: Coordinator, entry: Entry) -> Iterator[tuple[Change, Job]]:
    """Yield the changed jobs that could run here."""
    table, now = coordinator.job_table, coordinator.cluster.now
    number = table.journal.last_id() + 1
    for change in changes(coordinator, entry.spec):
        try:
            spec = JobSpec.model_validate({**dict(entry.spec), **change.fields, "priority": entry.priority})
            coordinator.check(spec, now)
            (predicted,) = coordinator.run_times.expect([spec])
            job = as_job(
                number, now, spec, table.cluster, user=table.user, unit=table.unit, predicted=predicted
            )
        except (BadInput, ValueError):
            continue
        yield change, job


def changes(coordinator: Coordinator, spec: JobSpec) -> Iterator[Change]:
    """Yield changes of a specification, of each kind the smallest first."""
    yield from _smaller(spec)
    yield from _shorter(coordinator, spec)
    pools = coordinator.cluster.cluster.pools
    if pools[0].kind and spec.device != "any":
        for pool in pools:
            if spec.device not in (pool.kind, pool.name):
                words = f"--device {pool.name} in place of {spec.device}"
                yield Change(f"device {pool.name}", words, {"device": pool.name})


def _smaller(spec: JobSpec) -> Iterator[Change]:
    """Yield smaller sizes: of a job with a range those of the range alone, else a half, a quarter, one."""
    if spec.nodes or spec.max_tasks:
        what, least, most = (
            ("nodes", spec.nodes, spec.max_nodes) if spec.nodes else ("tasks", spec.tasks, spec.max_tasks)
        )
        assert least is not None
        if most is not None:
            for size in _halves(most, least):
                words = f"exactly {_counted(size, what)} in place of {least} to {most}"
                yield Change("size", words, {what: size, f"max_{what}": None, "speedup": {}})
            return
        size = least
    else:
        what, size = ("cores", spec.cores) if spec.cores > 1 else ("tasks", spec.tasks)
    of_a_task = " a task" if what == "cores" and spec.tasks > 1 else ""
    for smaller in _halves(size, 1):
        yield Change("size", f"{_counted(smaller, what)}{of_a_task} in place of {size}", {what: smaller})


def _halves(size: int, least: int) -> list[int]:
    """Return a half, a quarter, and the least size, as far as they are smaller than ``size``."""
    sizes = (max(size // 2, least), max(size // 4, least), least)
    return list(dict.fromkeys(smaller for smaller in sizes if smaller < size))


def _counted(number: int, what: str) -> str:
    return f"{number} {what if number != 1 else what.removesuffix('s')}"


def _shorter(coordinator: Coordinator, spec: JobSpec) -> Iterator[Change]:
    """Yield a shorter limit, if earlier runs of the program took far less than the present one."""
    if spec.time_s is None or spec.expect_s:
        return
    (predicted,) = coordinator.run_times.expect([spec.model_copy(update={"time_s": None})])
    runs = [run for run in (predicted or {}).get("run_s", {}).values() if run["basis"] != "user"]
    if not runs:
        return
    longest = max(runs, key=lambda run: float(run["high"]))
    limit_s = _rounded_up_s(ABOVE * longest["high"])
    if limit_s <= SHORTER * spec.time_s:
        words = f"--time {_time(limit_s)} in place of {_time(spec.time_s)}"
        told_by = f"by earlier runs at most {longest['high']:.3g} s in 9 of 10 cases; n = {longest['n']}"
        yield Change("time", words, {"time_s": limit_s}, told_by)


def _rounded_up_s(seconds: float) -> float:
    """Round a limit up to 10 s, a minute or ten minutes, whatever people would write."""
    step_s = 10.0 if seconds <= 60 else 60.0 if seconds <= 3600 else 600.0
    return max(math.ceil(seconds / step_s), 1) * step_s


def _time(seconds: float) -> str:
    """Write a time as ``--time`` takes it: ``4h``, ``90m``, ``50s``."""
    for size, unit in ((3600.0, "h"), (60.0, "m")):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
