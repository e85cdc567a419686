"""The interface between policies and engines.

    engine --event--> Policy.decide(view, event) --actions--> engine

A policy reads no clock and nothing but events and its view. Equal events and seeds give equal actions, in
the simulator and on real nodes. A policy may keep what it derives from events (an index of the queue, a
plan), but must be able to rebuild it from a view (``begin``), because a coordinator may restart
at any instant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, get_args

from profiles.errors import BadInput
from scheduler.model.costs import Costs
from scheduler.model.events import Action, Event, Started
from scheduler.model.interference import Slowdowns
from scheduler.model.jobs import Cluster, Job, Placement, Region

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.model.jobs import JobState
    from scheduler.model.state import Nodes


class View(Protocol):
    """The cluster as a policy sees it: read-only, always current, and not to be kept.

    Mappings have a fixed order and O(1) look-ups; none is a copy. The first of ``waiting`` costs O(1) too.

    Attributes:
        now: the time in seconds, on the grid of ``jobs.instant``.
        upcoming: kind of the next event at this very instant, None at the last one. A policy that decides
            once an instant answers () while this is not None.
        waiting: jobs that wait, by priority and then in the order of submission. A failed job comes first of
            its priority. The policy must ``begin`` anew when a job goes before others.
        running: jobs that hold units, also while they stop or restart, in the order of their starts.
        suspended: stopped jobs, in the order of their stops.
        free: free units of each counted pool (for a pool with nodes: nodes on which nothing runs).
        in_service: units or nodes of each pool that are not down.
        nodes: what is free on each node, for each pool that has nodes.
        regions: the current regions of each partitioned pool.
        region_used: units charged to each region, as (pool, region).
        costs: predicted costs of stopping, restarting and changing jobs; ``move_s`` has quantiles.
        slowdowns: predicted slow-downs of programs that share nodes.
        power_w: power of all units in use. budget_w: their limit.
        profiles: measured profiles of the machine, by name of pool.
    """

    @property
    def now(self) -> float: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def upcoming(self) -> type[Event] | None: ...
    @property
    def waiting(self) -> Mapping[int, Job]: ...
    @property
    def running(self) -> Mapping[int, JobState]: ...
    @property
    def suspended(self) -> Mapping[int, JobState]: ...
    @property
    def free(self) -> Mapping[str, int]: ...
    @property
    def in_service(self) -> Mapping[str, int]: ...
    @property
    def nodes(self) -> Mapping[str, Nodes]: ...
    @property
    def regions(self) -> Mapping[str, tuple[Region, ...]]: ...
    @property
    def region_used(self) -> Mapping[tuple[str, str], int]: ...
    @property
    def costs(self) -> Costs: ...
    @property
    def slowdowns(self) -> Slowdowns: ...
    @property
    def power_w(self) -> float: ...
    @property
    def budget_w(self) -> float | None: ...
    @property
    def profiles(self) -> Mapping[str, Profile]: ...

    def state(self, job_id: int) -> JobState:
        """Return what is known of a job that waits, runs or is suspended; KeyError for any other."""


class Reason(NamedTuple):
    """Reason of a wait, as a sentence for the job's owner, and the expected start (None: not known).

    ``start_low_s``, ``start_high_s``: within these 8 of 10 such starts lay lately; a policy leaves them out.
    """

    sentence: str
    expected_start_s: float | None = None
    start_low_s: float | None = None
    start_high_s: float | None = None


@dataclass(frozen=True)
class NoParameters:
    """No parameters."""


class Policy(ABC):
    """Base of all policies: override ``decide``, and ``why`` where more can be said.

    Attributes:
        Parameters: frozen dataclass of the parameters, with the paper's defaults (raise ValueError in
            ``__post_init__`` for values that make no sense).
        ignores: kinds of event for which ``decide`` need not be called.
        promises: general properties that hold, which the tests check for every policy:
            "in-order" (no job starts before one submitted earlier), "no-delay" (later jobs never change
            when a job starts, when estimates are exact), "conserving" (no job waits while it fits).
        suits: kinds of machine and job mix (tests/support/scheduling/worlds.py) that it schedules: "counted",
            "classes" (two classes, migratable jobs), "nodes" (demand vectors), "power" (moldable, caps),
            "sharing" (nodes of cores, programs that slow each other down).
        fences: a job of a region runs on that region's own units only.
        fair: the machine is divided between users, by the weights that ``Job.share`` states.
        revises: ``revise`` is enough when more is known of waiting jobs; else the policy begins anew.
        resumes: it lets suspended jobs go on; after a restart under another policy they wait again.
    """

    Parameters: ClassVar[type] = NoParameters
    ignores: ClassVar[frozenset[type[Event]]] = frozenset({Started})
    promises: ClassVar[frozenset[str]] = frozenset()
    suits: ClassVar[frozenset[str]] = frozenset({"counted"})
    fences: ClassVar[bool] = False

    def __init__(self, parameters: object = None, seed: int = 0) -> None:
        self.parameters = self.Parameters() if parameters is None else parameters
        self.seed = seed

    revises: bool = False
    resumes: bool = False

    @property
    def fair(self) -> bool:
        return False

    def begin(self, view: View) -> None:  # noqa: B027 (a default, not a duty)
        """Prepare before the first event, and when all derived is void; ``view`` may already hold jobs."""

    def revise(self, jobs: Sequence[Job]) -> None:  # noqa: B027 (a default, not a duty)
        """Replace what is known of these waiting jobs, which keep their places; only if ``revises``."""

    def refuses(self, job: Job, cluster: Cluster) -> str:
        """Say why this policy can never run the job, as a clause ("it needs 8 units"); "" if it can."""
        return ""

    @abstractmethod
    def decide(self, view: View, event: Event) -> Sequence[Action]:
        """Choose actions now that ``event`` has happened (the view already shows it)."""

    def prices(self) -> Mapping[str, Mapping[str, float]]:
        """By pool: hours for which others wait for an hour of one of each resource; of a counted pool, "".

        Nothing, where the policy has no prices.
        """
        return {}

    def why(self, job: Job, view: View) -> Reason:
        """Explain why the waiting ``job`` waits."""
        return Reason(waits_for(job, view))


# -- answers of policies, whatever their authors have written --------------------------------------------


class NoAnswer(TypeError):
    """An answer of a policy that is none of those that the method may give.

    Attributes:
        module: that of the policy.
    """

    def __init__(self, policy: Policy, method: str, what: str) -> None:
        super().__init__(f"{method} returned {what}")
        self.module = type(policy).__module__


KINDS_OF_ACTION = frozenset(get_args(Action))
FIELDS = {"job_id": Integral, "placement": Placement, "at_s": Real, "cap_w": Real | None, "pool": str}


def actions_of(policy: Policy, answer: object) -> list[Action]:
    """Return what ``decide`` answered as a list.

    Raises:
        NoAnswer: it is no series of actions, or a field of an action is of another kind.
    """
    if not isinstance(answer, Iterable):
        raise NoAnswer(policy, "decide", f"{answer!r}, no series of actions")
    actions: list[Action] = list(answer)
    for action in actions:
        if type(action) not in KINDS_OF_ACTION:
            raise NoAnswer(policy, "decide", f"{action!r}, which is no action")
        for name, kind in FIELDS.items():
            if hasattr(action, name) and not isinstance(getattr(action, name), kind):
                raise NoAnswer(policy, "decide", f"{action!r}, whose {name} cannot be that")
    return actions


def reason_of(policy: Policy, answer: object) -> Reason:
    """Return what ``why`` answered.

    Raises:
        NoAnswer: it is no ``Reason``.
    """
    if not isinstance(answer, Reason):
        raise NoAnswer(policy, "why", f"{answer!r}, which is no Reason")
    return answer


def refusal_of(policy: Policy, answer: object) -> str:
    """Return what ``refuses`` answered.

    Raises:
        NoAnswer: it is no text.
    """
    if not isinstance(answer, str):
        raise NoAnswer(policy, "refuses", f"{answer!r}, which is no text")
    return answer


def prices_of(policy: Policy, answer: object) -> Mapping[str, Mapping[str, float]]:
    """Return what ``prices`` answered.

    Raises:
        NoAnswer: it is no table of numbers by pool and resource.
    """
    tables = list(answer.values()) if isinstance(answer, Mapping) else [None]
    if not all(isinstance(of, Mapping) and all(isinstance(p, Real) for p in of.values()) for of in tables):
        raise NoAnswer(policy, "prices", f"{answer!r}, no numbers by pool and resource")
    prices: Mapping[str, Mapping[str, float]] = answer  # type: ignore[assignment]
    return prices


def counted_pools(view: View, policy: str) -> tuple[str, ...]:
    """List the names of the cluster's pools, best first.

    Raises:
        BadInput: the nodes of one have identity.
    """
    for pool in view.cluster.pools:
        if not pool.counted:
            what = f"policy {policy} schedules units, {pool.name} has nodes"
            raise BadInput(what, "describe it by a count")
    return tuple(pool.name for pool in view.cluster.pools)


def check_kind(policy: Policy, cluster: Cluster) -> None:
    """See that the policy says it suits such a machine.

    Raises:
        BadInput: it says that it does not.
    """
    of_nodes = not all(pool.counted for pool in cluster.pools)
    kinds = {"nodes", "sharing"} if of_nodes else {"classes"} if len(cluster.pools) > 1 else set()
    if kinds and not kinds & policy.suits:
        has = "nodes" if of_nodes else "several classes"
        suits = " and ".join(sorted(policy.suits))
        what = f"policy {type(policy).__name__} suits {suits}, this cluster has {has}"
        raise BadInput(what, "choose another policy, or have it suit more, see docs/write-a-policy.md")
    if cluster.budget_w is None or not any(pool.has_power for pool in cluster.pools):
        return
    if of_nodes or not kinds | {"power"} <= policy.suits:
        on = "nodes" if of_nodes else "several classes" if kinds else "a class"
        able = [] if of_nodes else ["choose weigh"] if kinds else ["choose weigh or parm"]
        what = f"policy {type(policy).__name__} keeps no power budget on {on}"
        raise BadInput(what, " or ".join([*able, "leave budget_w out"]))


def only_counted_pool(view: View, policy: str) -> str:
    """Name of the cluster's one pool.

    Raises:
        BadInput: there are several, or its nodes have identity.
    """
    pools = view.cluster.pools
    if len(pools) != 1 or not pools[0].counted:
        names = ", ".join(pool.name for pool in pools)
        raise BadInput(
            f"policy {policy} schedules one class of units without identity; this cluster has {names}",
            "describe the cluster by a count, or choose a policy for several classes or nodes",
        )
    return pools[0].name


# -- the parts of a reason: "waits for 1 core (0 of 2 free); when job 5 ends" -------------------------------


MOST_NAMED = 3  # jobs whose ends a job waits for


def units(job: Job, cluster: Cluster) -> str:
    """Write ``"8 cores"``, ``"1 node"`` or ``"4 to 16 nodes"``."""
    if job.max_units is not None and job.max_units != job.units:
        return f"{job.units} to {cluster.amount(job.max_units)}"
    return cluster.amount(job.units)


def amounts(ways: Iterable[Job], cluster: Cluster) -> str:
    """Write ``"8 cores"``, or of alternatives ``"8 cores or 2 cores"``."""
    return " or ".join(dict.fromkeys(units(way, cluster) for way in ways))


def waits_for(job: Job, view: View, ways: Sequence[Job] = ()) -> str:
    """Write ``"waits for 1 core (0 of 2 free)"``; of several classes ``"0 of 2 gpu, 1 of 8 cpu free"``.

    Args:
        ways: in which the policy may start it; (): as it is.
    """
    ways = ways or (job,)
    pools = [pool.name for pool in view.cluster.pools if any(way.runs_on(pool.name) for way in ways)]
    names = [f" {name}" if len(view.cluster.pools) > 1 else "" for name in pools]
    free = [
        f"{view.free[pool]} of {view.in_service[pool]}{name}" for pool, name in zip(pools, names, strict=True)
    ]
    return f"waits for {amounts(ways, view.cluster)} ({', '.join(free)} free)"


def in_turn(job: Job, view: View, ends: Iterable[int] = (), needs: str = "") -> str:
    """Write ``"; when job 5 ends, behind job 7"``; "" for the first of the queue.

    Args:
        ends: the jobs whose ends let it start, running or waiting; where there are none, it is behind the
            first of the queue.
        needs: what that first one waits for itself.
    """
    first = next(iter(view.waiting.values()))
    if job.id == first.id:
        return ""
    ends = sorted(ends) or [first.id]
    running = [number for number in ends if number in view.running]
    waiting = [number for number in ends if number not in view.running]
    parts = [f"when {_named(running, view)} end{'s' * (len(running) == 1)}"] if running else []
    parts += [f"behind {_named(waiting, view)}"] if waiting else []
    parts += [f"which waits for {needs}"] if needs and ends == [first.id] else []
    return f"; {', '.join(parts)}"


def _named(jobs: Sequence[int], view: View) -> str:
    names = [view.state(number).job.name for number in jobs[:MOST_NAMED]]
    several, others = "s" * (len(jobs) > 1), " and others" * (len(jobs) > MOST_NAMED)
    return f"job{several} {', '.join(names)}{others}"


def where_paused(nodes: Iterable[str]) -> str:
    """Say that a job waits for the nodes on which its processes are paused."""
    return f"waits for its cores of {', '.join(nodes)}, where it is paused"


def would_delay(first: Job) -> Reason:
    """Explain that there is room for a job, and that the first of the queue would be late by its start."""
    return Reason(f"there is room, but its start would delay job {first.name}, which is first in the queue")


def fits_now(job: Job, view: View) -> bool:
    """Tell if the units of one of the job's ways are free on a counted pool that it can run on."""
    free = view.free.items()
    return any(way.units <= left and way.runs_on(pool) for pool, left in free for way in job.ways)


def any_alternatives(view: View) -> bool:
    """Tell if a waiting job may run in one of several ways."""
    return any(job.alternatives for job in view.waiting.values())
