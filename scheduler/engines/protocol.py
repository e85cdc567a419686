"""The contract of engines: ten methods that all have, capabilities that one declares, and its machine.

A capability that an engine lacks is one that does nothing: the base class of each.

An engine starts attempts of jobs and hands requests on to them. A coordinator that was killed repeats its
last calls when it starts again; the engine does nothing twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from agent.attempts.records import Result, RunState, Want
from agent.opencl_layer.trials import Trial
from profiles.errors import BadInput
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.sizes import CORE, Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.costs import FREE, LinearCosts
from scheduler.model.jobs import Cluster, Placement, Region
from scheduler.prediction.profiles import ProfiledSlowdowns

# -- external jobs: submitted by another way than tenbin, and taken over -----------------------------------


class Needs(NamedTuple):
    """The needs of an external job.

    Attributes:
        at_once: of an array the most tasks that may run at a time; None: any number.
    """

    spec: JobSpec
    at_once: int | None


class ExternalJob(NamedTuple):
    """A job as it is there now.

    Attributes:
        key: its name there; ``array`` is the part that all tasks of one array share.
        blocked: why it may not start whatever tenbin decides; "" if it may.
        limit_s: its limit of run time now; infinite: none.
        needs: None: not looked up any more, or not understood: ``unclear`` says why.
        nodes: where it runs, by number; None: on nodes that are not tenbin's.
        result: of one that has ended.
    """

    key: str
    state: Literal["waiting", "running", "ended"]
    submitted_s: float
    restarts: int
    blocked: str
    limit_s: float
    needs: Needs | None
    unclear: str
    nodes: tuple[int, ...] | None
    result: Result | None

    @property
    def array(self) -> str:
        return self.key.split("_")[0]


class ExternalJobSource:
    """The capability of an engine to take over jobs that came to the cluster another way, here none.

    Attributes:
        able: jobs are taken over.
        scheduler: name of the cluster's own scheduler. command: the command by which users submit there.
    """

    able = False
    scheduler = command = ""

    def look(self) -> Sequence[ExternalJob] | None:
        """Return all external jobs; None: as at the last look."""
        return None

    def has_room(self, placement: Placement) -> bool:
        """Return true if the nodes of a placement are free in the cluster state."""
        return True

    def let_go(self, key: str, remark: str) -> None:
        """Leave the job to the cluster's own scheduler, for that reason."""

    def drop(self, key: str) -> None:
        """Drop a job that was cancelled while it waited."""


class Report(NamedTuple):
    """A report of what happened to an attempt.

    "started"; "obeyed": request number ``done`` was carried out, or refused (``state``); "tried": a trial has
    ended, in vain without a ``trial`` (``trouble`` says why; ``for_now``: it may succeed later); "ended":
    ``result`` says how; "lost": its supervisor died without a result, nothing of it runs any more,
    ``trouble`` says why if it was not killed; "never": it was not and will not be started, ``trouble`` says
    why if it cannot be (``for_now``: the next attempt may).
    """

    job_id: int
    attempt: int
    what: Literal["started", "obeyed", "tried", "ended", "lost", "never"]
    at_s: float
    result: Result | None = None
    trouble: str = ""
    done: int = 0
    state: RunState | None = None
    trial: Trial | None = None
    for_now: bool = False


class JobChecks:
    """Checks of jobs before they are accepted, here none; both may take a second, in any thread."""

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        """Find what these jobs need besides their command.

        Raises:
            Unavailable: something is missing.
        """

    def check_paths(self, spec: JobSpec, path: str | None) -> None:
        """Refuse a job if its program, working directory or output cannot be used where it will run.

        Args:
            path: folders of its programs, with colons; None: the system's.

        Raises:
            BadInput: names the path.
        """

    def remarks(self, script: bytes, path: str | None) -> list[str]:
        """Say what will probably fail in a script, a sentence for each line."""
        return []


class Nodes:
    """Nodes with names, which can fail while others go on; here there are none but this machine.

    Attributes:
        named: there are some.
    """

    named = False

    def absent(self) -> Mapping[int, str]:
        """Return the nodes that cannot be used now, by number, and why; jobs may still be there."""
        return {}

    def names(self) -> Sequence[str]:
        """Name the nodes, by number."""
        return ()

    def others(self) -> Mapping[int, int]:
        """Count the cores that jobs outside tenbin hold, by node; a look that may be some seconds old."""
        return {}

    def out_of_service(self, pool: str) -> int:
        """Count the units of a counted pool that cannot be used now and that no job has."""
        return 0

    def where(self, job: Entry) -> list[str]:
        """Name the nodes that the job has."""
        return []

    def have_room(self, job: Entry) -> bool:
        """Tell if a paused job, which cannot leave its nodes, can go on there now."""
        return True

    def hindrance(self, job: Entry) -> str:
        """Say as a sentence why a job that was started does not get on; "" if nothing known hinders it."""
        return ""


class Regions:
    """Pools that can be cut into regions; a job whose placement names a region runs on its part only.

    Here regions are in the cluster state alone.
    """

    def cut(self, pool: str, regions: Sequence[Region]) -> None:
        """Cut a pool into regions; after a restart this comes before ``occupy``."""

    def places(self) -> Mapping[str, Mapping[str, int]]:
        """Count the units of each region, by name of the node (here: number of the core).

        Nothing where the pool is not cut.
        """
        return {}


class PowerCaps:
    """Power caps of running jobs, here none."""

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        """Lower (or raise) the caps of running jobs to those of their placements, before it returns."""

    def rest_w(self) -> float:
        """Return the power of all nodes at rest, where the cluster's budget does not contain it."""
        return 0.0


class GpuRow(NamedTuple):
    """A GPU as users are told of it: its name is the driver's, and says so if it is emulated.

    ``strangers``: processes that hold it and are of no job that has it, each as a clause. ``loss_ratio``: of
    its speed, by its last check (``profiles.checks``). ``failure``: why nobody gets it, as a clause: it does
    not answer, is not watched, or failed its check. ``used_mb``, ``share``: memory in use, and share of the
    time in which it works, as seen last. ``idle_s``: how long its job did nothing there. None: not known.
    """

    number: int
    uuid: str
    name: str
    memory_mb: float
    strangers: tuple[str, ...] = ()
    loss_ratio: float = 0.0
    failure: str = ""
    used_mb: float | None = None
    share: float | None = None
    idle_s: float | None = None


class JobGpuUse(NamedTuple):
    """Use of a job's GPUs so far.

    ``used``: how many of them worked on average for it. ``peak_mb``: the most memory that it had there.
    ``energy_j``: their energy since it began. None: not known. ``emulated``: all of it is.
    """

    used: float | None
    peak_mb: float | None
    energy_j: float | None
    emulated: bool


class IdleGpus(NamedTuple):
    """A job that has done nothing on a GPU for long: which as a clause, and what becomes of the job."""

    job: int
    which: str
    then: Literal["", "end", "park"] = ""


class GpuTable:
    """GPUs of this machine that jobs get by number, beside cores and memory; here there are none.

    Attributes:
        able: there are some.
    """

    able = False

    def rows(self) -> Sequence[GpuRow]:
        """Return the GPUs, by number."""
        return ()

    def withheld(self) -> Mapping[str, float]:
        """Count the GPUs of each resource that no job has and none gets: strangers hold it, or it fails."""
        return {}

    def idle(self) -> Sequence[IdleGpus]:
        """Return the jobs that have done nothing on a GPU for long, each once."""
        return ()

    def use(self, job: int) -> JobGpuUse | None:
        """Return what a job that runs does with its GPUs; None: it has none."""
        return None

    def news(self) -> Sequence[tuple[str, str]]:
        """Say once who holds a GPU outside of the queue ("stranger"), and which is lost ("gpu-lost")."""
        return ()


class DeviceTrials:
    """Trials of running programs on other devices, one at a time; here none.

    Attributes:
        able: programs can be tried.
    """

    able = False

    @property
    def busy(self) -> bool:
        """True while a trial is under way, or its report has not been taken."""
        return False

    def begin(self, job: Entry, state: RunState, pool: str) -> bool:
        """Try a job on an idle class of device, and report that; False: its program uses no device yet."""
        return False

    def give_up(self, why: str) -> None:
        """End the trial; the program is left alone as soon as the launch under way has ended."""


class DeviceMoves:
    """Programs on devices that know nothing of tenbin, and are parked and moved while they run; here none.

    Attributes:
        able: programs can be moved.
    """

    able = False
    trials = DeviceTrials()

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        """Say as a clause why an attempt that starts now cannot be moved like that; "" if it can.

        Args:
            devices: those that the attempt has, by number; (): not known yet.
        """
        return "this engine moves no programs"

    def readiness(self, job: Entry, state: RunState | None) -> str:
        """Say whether the programs of a job that runs can be moved now, or why not."""
        return self.why_not(job.spec)


class Engine(Protocol):
    """Contract of all engines.

    Attributes:
        cluster: the resources for jobs.
        moves: running jobs can be paused, or write a checkpoint and go on elsewhere.
        terminals: jobs can have the streams of a client, which is on this machine.
        left_to_others: what other users of this machine have of it, and how to have it too; "": nothing.
        extends: an attempt that was started can have more time than it was started with.
        external_jobs: jobs that came another way are taken over.
    """

    cluster: Cluster
    moves: bool = True
    terminals: bool = False
    left_to_others: str = ""
    extends: bool = True
    checks: JobChecks = JobChecks()
    nodes: Nodes = Nodes()
    regions: Regions = Regions()
    caps: PowerCaps = PowerCaps()
    device_moves: DeviceMoves = DeviceMoves()
    gpus: GpuTable = GpuTable()
    external_jobs: ExternalJobSource = ExternalJobSource()

    def place(self, job: Entry, placement: Placement) -> None:
        """Give the job the cores, or devices, of a placement; they are its own until ``free``."""

    def occupy(self, job: Entry) -> None:
        """After a restart: the job's cores and devices are its own again."""

    def free(self, job: Entry) -> None:
        """Take the job's cores and devices back."""

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        """Start the current attempts of jobs with their environments; OSError for no room: none starts."""

    def ask(self, job: Entry, want: Want) -> None:
        """Hand request number ``job.request`` on."""

    def recover(self, job: Entry) -> None:
        """After a restart: find out what became of the current attempt; a report follows, if it has ended."""

    def poll(self) -> list[Report]:
        """Return what has happened, without waiting."""

    def urgent(self) -> bool:
        """Return true if ``poll`` has something already."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``poll`` has something."""

    def close(self) -> None:
        """Let go; what runs goes on."""


# -- words on the layer below OpenCL programs, the same under each engine that has it ----------------------


NOT_BEGUN = "cannot be moved before it has begun"
LAYER_COMPILING = "the layer is being compiled{where}; jobs that start later can be moved"


def why_without_layer(spec: JobSpec) -> str:
    """Say as a clause why a job is to be without the layer; "" if it is to have it."""
    if not spec.move:
        return "it was submitted with --no-move"
    return "its ranks are started by mpiexec" if spec.mpi else ""


def where_parked(job: Entry, state: RunState) -> str:
    """Say where the contents of a parked job are, and what it waits for."""
    if state.parked_mb is None:
        return "cannot be moved while it is paused"
    parked = f"it is parked: {state.parked_mb:.3g} MB that it had on {state.device}"
    if job.stage is Stage.RUNNING and job.placement is not None:
        return f"{parked}; it goes on as soon as {job.placement.pool} takes it"
    return parked


# -- the resources that an engine has found, in the terms that a policy schedules in -----------------------


class Taken(BadInput):
    """Cores or devices belong to another coordinator of this machine."""


@dataclass(frozen=True)
class Machine(ABC):
    """The resources of one engine; each engine has a subclass with what it needs to know of its own.

    Attributes:
        costs: measured costs of moving jobs.
        unit: what one unit of the first pool is.
        job_profiles: slow-downs of jobs by each other, where jobs share nodes.
    """

    cluster: Cluster
    costs: LinearCosts = FREE
    unit: Unit = CORE
    job_profiles: ProfiledSlowdowns | None = None

    @abstractmethod
    def engine(self, store: Path, reports: Path) -> Engine:
        """Make the engine; ``reports`` is where supervisors on this machine report."""

    @property
    def emulated(self) -> str:
        """Name of the emulated machine whose power is capped; empty: it is real."""
        return ""

    @property
    def notes(self) -> Sequence[str]:
        """Say, sentence by sentence, what whoever starts a coordinator is to know of its resources."""
        return ()

    @property
    def rest_w(self) -> float:
        """Power of all nodes at rest, where the cluster's budget does not contain it."""
        return 0.0
