"""The records in the files of an attempt (``agent.attempts.folder``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

How = Literal[
    "exited",
    "signalled",
    "not-started",
    "time-limit",
    "memory-limit",
    "cancelled",
    "interrupted",
    "checkpointed",
]
Want = Literal["run", "pause", "checkpoint", "end"]
ENDED = {"exited": "code", "signalled": "signal"}  # what a result has that says so


@dataclass(frozen=True)
class Order:
    """What to run.

    Attributes:
        job_id, attempt: which job, and its how manieth attempt.
        mark: value of ``TENBIN_MARK`` in the job's environment; its processes are found by it.
        command, environment, folder: as for ``execvpe``, in that working directory.
        stdout, stderr: files that output is appended to.
        cores: numbers of the logical CPUs that it may use; empty: all.
        places: its whole cores of this node, counted from 0 (``agent.processes.binding``), where only the
            node knows which CPUs these are; empty: ``cores`` says all.
        time_limit_s: of running, without the time it was paused; None: none.
        memory_limit_mb: resident memory of the whole process tree; None: none.
        checkpoint_signal: asks the job for a checkpoint; None: it cannot make one.
        checkpoint_code: exit code by which the job says that it left after a checkpoint.
        grace_s: from SIGTERM to SIGKILL.
        mpi: the command is an mpiexec, whose ranks have guards.
        sysfs: root of the tree with the packages that it has to itself (``agent.power.package_caps``); empty:
            none.
        emulated: these are emulated.
        capped_nodes: nodes of a cluster that it has to itself (``agent.power.node_caps``): ``%N`` in
            ``sysfs`` is the name of each.
        states: where each of them keeps what is to be put back.
        inherit: beginnings of the names of variables that the command gets from its supervisor's environment.
        lease_s: it ends itself when the folder could not be looked at for so long; None: it never does.
        hosts: how many ranks on which node, if it has more than one (``agent.multi_node.remote_ranks``).
        journalled: the job's row of the journal when this was placed; a lost journal is made anew by that.
    """

    job_id: int
    attempt: int
    mark: str
    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    stdout: str
    stderr: str
    cores: tuple[int, ...] = ()
    time_limit_s: float | None = None
    memory_limit_mb: float | None = None
    checkpoint_signal: int | None = None
    checkpoint_code: int = 85
    grace_s: float = 10.0
    mpi: bool = False
    sysfs: str = ""
    emulated: bool = False
    inherit: tuple[str, ...] = ()
    lease_s: float | None = None
    places: tuple[int, ...] = ()
    capped_nodes: tuple[str, ...] = ()
    states: str = ""
    hosts: dict[str, int] = field(default_factory=dict)
    journalled: dict[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether it needs nothing of its supervisor but that it waits: no thread, group or package."""
        return not (self.mpi or self.sysfs or self.memory_limit_mb is not None or self.lease_s is not None)


@dataclass(frozen=True)
class Request:
    """What is wanted of a running attempt, and for ``run`` on which cores or places (none: as before)."""

    number: int
    want: Want
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunState:
    """What runs now.

    Attributes:
        done: number of the last request that was carried out.
        memory_limit_by: what holds the memory limit: "cgroup v1", "cgroup v2" (the kernel), or "looking" (the
            supervisor, at the resident memory); "" if there is none.
    """

    supervisor_pid: int
    pid: int
    started_s: float
    paused: bool = False
    done: int = 0
    memory_limit_by: str = ""


@dataclass(frozen=True)
class Usage:
    """What an attempt used: the whole process tree.

    ``peak_memory_mb`` is resident memory; of a job that the kernel ended at its limit what it counted; 0: the
    job ended before anybody looked, and had less than its supervisor.
    ``memory_limit_by`` as in ``RunState``.
    ``energy_j`` is of the packages that it had to itself; None: it had none, or they have no counter.
    """

    wall_s: float
    running_s: float
    user_s: float
    system_s: float
    peak_memory_mb: float
    read_mb: float = 0.0
    written_mb: float = 0.0
    memory_limit_by: str = ""
    energy_j: float | None = None
    emulated: bool = False  # the energy


@dataclass(frozen=True)
class Result:
    """How an attempt ended: exit code, or signal that killed it, or why it never started."""

    how: How
    ended_s: float
    code: int | None = None
    signal: int | None = None
    trouble: str = ""
    usage: Usage = field(default_factory=lambda: Usage(0.0, 0.0, 0.0, 0.0, 0.0))


def as_order(found: dict[str, Any]) -> Order:
    """What its file says."""
    lists = {name: tuple(found[name]) for name in ("command", "cores")}
    more = {name: tuple(found.get(name, ())) for name in ("inherit", "places", "capped_nodes")}
    return Order(**{**found, **lists, **more})
