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
Want = Literal["run", "pause", "park", "move", "checkpoint", "limit", "end"]
ENDED = {"exited": "code", "signalled": "signal"}  # the field that such a result must have


@dataclass(frozen=True)
class Order:
    """The command of an attempt, and what its supervisor has to know.

    Attributes:
        job_id, attempt: the job, and which attempt this is (1, 2, ...).
        mark: value of ``TENBIN_MARK`` in the job's environment, by which its processes are found.
        command, environment, folder: as for ``execvpe``, in that working directory.
        stdout, stderr: files that output is appended to.
        terminal: socket of the client whose streams the command has in their place
            (``agent.attempts.terminal``); empty: it has files.
        cores: logical CPUs that the job may use; empty: all.
        places: the job's whole cores on a node whose CPU numbers only the node itself knows, counted from 0
            (``tree.cpus_of_places``); empty: ``cores`` counts.
        time_limit_s: running time without pauses; None: unlimited.
        memory_limit_mb: resident memory of the whole process tree; None: unlimited.
        checkpoint_signal: signal that asks the job for a checkpoint; None: the job makes none.
        checkpoint_code: exit code of a job that leaves after a checkpoint.
        grace_s: time from SIGTERM to SIGKILL.
        mpi: the command is an mpiexec, whose ranks have guards.
        sysfs: root of the tree with the packages that the job has to itself (``agent.power.caps``);
            empty: the job has none.
        emulated: these packages are emulated.
        capped_nodes: nodes of a cluster that the job has to itself (``agent.power.caps``); in ``sysfs``
            stands ``%N`` for a node's name.
        states: folder of the restore journals of these nodes.
        inherit: prefixes of environment variables that the command inherits from its supervisor.
        lease_s: seconds without a look at the folder after which the attempt ends itself; None: no lease.
        hosts: ranks by node, if there are several nodes (``agent.multi_node.ranks``).
        closed: device files that the job may not open.
        layer: folder of the sockets of the layer below OpenCL programs; empty: the command is without it.
        library, device: of the layer, and the key of the device, on a node of a cluster; empty: whoever has
            written the order has set the layer's variables.
        journalled: the job's row of the journal at its placement, from which a lost journal is rebuilt.
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
    closed: tuple[str, ...] = ()
    layer: str = ""
    library: str = ""
    device: str = ""
    terminal: str = ""
    hosts: dict[str, int] = field(default_factory=dict)
    journalled: dict[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Tell if the supervisor only waits for the command, without thread, control group or package."""
        return not (
            self.mpi
            or self.sysfs
            or self.memory_limit_mb is not None
            or self.lease_s is not None
            or self.layer
            or self.closed
        )


@dataclass(frozen=True)
class Request:
    """A request to a running attempt; ``run`` may name cores or places (empty: as before).

    ``device``: the key of the one to go on on, which parked programs need; with ``park``, where they are to
    go on at once. ``reserved``: the job has that device besides its own, so that a program may move there
    while it runs, in place of being parked. ``limit``: nothing but its limit has changed. ``time_limit_s``:
    the limit from now on; 0: none. None: that of the order.
    """

    number: int
    want: Want
    cores: tuple[int, ...] = ()
    device: str = ""
    reserved: bool = False
    time_limit_s: float | None = None


@dataclass(frozen=True)
class RunState:
    """The state of a running attempt.

    Attributes:
        done: number of the last request that was carried out.
        memory_limit_by: "cgroup v1" or "cgroup v2" if the kernel holds the memory limit, "looking" if the
            supervisor watches the resident memory, "" without a limit.
        parked_mb: device memory of the programs that are parked; None: none is.
        device: the device on which programs were parked, or to which they were moved, last.
        pause_s: how long the program stood at its last move; expected_pause_s: as predicted right before.
            None: it was not moved while it ran.
        refused: why the last request to park, or to go on after it, was refused; for_now: it may succeed
            later.
        unused: it was refused because its programs have nothing on a device so far.
        moves: of programs on a node of a cluster, as they said last: ``requests.MOVABLE``, or why they cannot
            be parked; empty: not known.
    """

    supervisor_pid: int
    pid: int
    started_s: float
    paused: bool = False
    done: int = 0
    memory_limit_by: str = ""
    parked_mb: float | None = None
    device: str = ""
    refused: str = ""
    for_now: bool = False
    pause_s: float | None = None
    expected_pause_s: float | None = None
    moves: str = ""
    unused: bool = False


@dataclass(frozen=True)
class Usage:
    """The resources that the whole process tree of an attempt used.

    Attributes:
        peak_memory_mb: resident memory; if the kernel ended the job at its limit, the kernel's count. 0: the
            job ended before the first sample, and had less than its supervisor.
        memory_limit_by: as in ``RunState``.
        energy_j: of the packages that the job had to itself; None: it had none, or they have no counter.
        emulated: whether that energy is emulated.
        gpus_used: how many of its GPUs worked on average; None: it had none, or ended before they were seen.
        peak_gpu_memory_mb: the most memory in use there. gpu_energy_j: of them; None: it is not known.
        gpus_emulated: whether all that of GPUs is emulated.
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
    emulated: bool = False
    gpus_used: float | None = None
    peak_gpu_memory_mb: float | None = None
    gpu_energy_j: float | None = None
    gpus_emulated: bool = False


@dataclass(frozen=True)
class Result:
    """The end of an attempt: its exit code, the signal that killed it, or why it never started."""

    how: How
    ended_s: float
    code: int | None = None
    signal: int | None = None
    trouble: str = ""
    usage: Usage = field(default_factory=lambda: Usage(0.0, 0.0, 0.0, 0.0, 0.0))


def as_order(values: dict[str, Any]) -> Order:
    """Make an order of the JSON object in its file."""
    lists = {name: tuple(values[name]) for name in ("command", "cores")}
    more = {name: tuple(values.get(name, ())) for name in ("inherit", "places", "capped_nodes", "closed")}
    return Order(**{**values, **lists, **more})
