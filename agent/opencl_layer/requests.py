"""Requests to the layer in running programs: status, estimate, park, resume, move, try.

Each program with the layer listens on a Unix socket of its process ID, in a folder of its user.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.opencl_layer import loader
from profiles.errors import BadInput, Unavailable, UserError
from profiles.files import safe_files
from profiles.quantities import stamp

if TYPE_CHECKING:
    from agent.opencl_layer.trials import Trial

SHARED = "/tmp"  # not TMPDIR, which need not be the same for the program and who asks it
OF_JOBS = "opencl"  # folder of the sockets of jobs, beside those of their coordinator
FIXED_S = 1e-5  # of a pause in which nothing is copied, with PoCL
PATIENCE_S = 30.0  # how long a move waits for what postpones it
WATCH_S = 2.0  # how long a trial awaits launches
UNUSED = "cannot be moved yet: it has not used OpenCL"
MOVABLE = "can be moved"
NO_DEVICE_MEMORY, NO_HOST_MEMORY = "device-memory", "host-memory"  # codes of the layer
LONGEST = 107  # bytes of a socket's path (unix(7))
MOST_PROCESSES = 1 << 22  # the greatest process ID of Linux
_ANSWER_S = 5.0  # a status needs no device
_SOON_S = 0.5


class LayerRefused(UserError):
    """The layer does not carry out a request; the program runs on as before.

    Attributes:
        trouble: why not. postponed: what hinders it passes by itself.
        code: NO_DEVICE_MEMORY or NO_HOST_MEMORY if there is too little of it; else empty.
    """

    def __init__(self, pid: int, answer: Mapping[str, Any]) -> None:
        self.trouble, self.postponed = str(answer["trouble"]), bool(answer.get("postponed"))
        self.code = str(answer.get("code", ""))
        super().__init__(f"process {pid}: {self.trouble}", "try again later" if self.postponed else "")


@dataclass(frozen=True)
class MoveEstimate:
    """Figures on a move right before its pause.

    Attributes:
        bytes: of device memory. dirty_bytes: written again since they were copied, within ``dirty_s``.
        prepare_s: time for contexts, programs and first launches.
        copy_s: for contents; the program ran meanwhile.
        drain_s: until work under way had ended. bytes_per_s: speed of copies; None: nothing was copied.
    """

    bytes: float
    dirty_bytes: float
    dirty_s: float
    prepare_s: float
    copy_s: float
    drain_s: float
    bytes_per_s: float | None

    @property
    def pause_s(self) -> float:
        """Predict the pause; all memory counts where nothing could be copied before."""
        copied_s = self.dirty_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return FIXED_S + self.drain_s + copied_s

    @property
    def total_s(self) -> float:
        """Predict the time from the request to the end of the pause."""
        return self.prepare_s + self.copy_s + self.pause_s


@dataclass(frozen=True)
class LayerStatus:
    """Status of a program below the layer, as the layer tells it.

    Attributes:
        pid: process ID. state: ``running`` or ``parked``.
        device: key of the device that the program is on, or was.
        devices: ``key`` and ``name`` of each device that it may use.
        movable: nothing hinders a move.
        hindrances: what it ``uses`` that cannot be moved, ``since`` when (Unix time).
        postponed: a request waits for a user event, or for a build. parked_in: ``memory``, ``file``, or "".
        parked_bytes: contents of the device while parked.
        moves, parks, failures: how many so far. last_trouble: why the last one failed.
        last_pause_s, last_total_s: of the last move; None: there was none.
        last_park_s: how long the program stood while it was parked last.
        estimate: of the last move, or of the last request for an estimate.
        last_steps: number of steps of the last request.
        last_warmed: kernels and sizes launched on the target of the last move before the program was there.
    """

    pid: int
    state: str
    device: str
    devices: list[dict[str, str]]
    movable: bool
    hindrances: list[dict[str, Any]]
    postponed: bool
    parked_in: str
    parked_bytes: float
    moves: int
    parks: int
    failures: int
    last_trouble: str
    last_pause_s: float | None
    last_total_s: float | None
    last_park_s: float | None
    estimate: MoveEstimate | None
    last_steps: int
    last_warmed: int = 0  # of a layer of before


def default_folder() -> Path:
    """Return the folder of the sockets: ``$TENBIN_OPENCL_FOLDER``, or one of this user alone."""
    named = os.environ.get("TENBIN_OPENCL_FOLDER")
    if named:
        return Path(named)
    run = os.environ.get("XDG_RUNTIME_DIR")
    return Path(run) / "tenbin-opencl" if run else Path(SHARED) / f"tenbin-opencl-{os.getuid()}"


def own_folder(folder: Path) -> Path:
    """Make the folder, for this user alone.

    Raises:
        BadInput: it belongs to somebody else, others may write to it, or its name is too long.
    """
    check_length(folder)
    return safe_files.own_folder(folder, "name another: TENBIN_OPENCL_FOLDER")


def check_length(folder: Path) -> None:
    """Raise BadInput if paths of sockets there are too long for the system."""
    length = len(os.fsencode(folder.absolute() / str(MOST_PROCESSES)))
    if length > LONGEST:
        more = f"{length - LONGEST} bytes too long for sockets"
        raise BadInput(f"{folder}: {more}", "name a shorter folder: TENBIN_OPENCL_FOLDER")


def environment(
    library: Path, folder: Path, devices: Sequence[str] = (), own: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Give the variables of a program that can be moved; its own layers stay above.

    Args:
        library: the layer. folder: of the sockets.
        devices: keys of those that the program may use, that to start on first; empty: all.
        own: the environment that the program has otherwise.
    """
    layers = (own.get("OPENCL_LAYERS", ""), str(library))
    variables = {
        "OPENCL_LAYERS": ":".join(filter(None, layers)),
        "TENBIN_OPENCL_FOLDER": str(folder.absolute()),
    }
    return {**variables, "TENBIN_OPENCL_DEVICES": ",".join(devices)} if devices else variables


def programs(folder: Path, among: Iterable[int]) -> list[int]:
    """Return the processes that have used OpenCL below the layer."""
    return [pid for pid in among if (folder / str(pid)).is_socket()]


def status(folder: Path, pid: int, *, patience_s: float = _ANSWER_S) -> LayerStatus:
    """Ask a program for its status."""
    return _ask(folder, pid, "status", patience_s)


def moves(folder: Path, among: Iterable[int]) -> str:
    """Say whether the programs among these processes can be moved now, or why not."""
    processes = list(among)
    pids = programs(folder, processes)
    if not pids:
        why = loader.outside(processes)
        return f"cannot be moved: {why}" if why else UNUSED
    try:
        statuses_now = [status(folder, pid, patience_s=_SOON_S) for pid in pids]
    except UserError as error:
        return f"cannot be moved now: {error}"
    used = [
        f"{hindrance['uses']} since {stamp(hindrance['since'])}"
        for answer in statuses_now
        for hindrance in answer.hindrances
    ]
    return f"cannot be moved: uses {', '.join(used)}" if used else MOVABLE


def outsiders(folder: Path) -> Iterator[tuple[int, str]]:
    """Find programs that were started with the layer and use OpenCL without it, with the reason."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        pid = int(process.name)
        own = loader.variables(pid)
        if own.get("TENBIN_OPENCL_FOLDER") == str(folder.absolute()) and (why := loader.outside([pid])):
            yield pid, why


def statuses(folder: Path, silent: list[tuple[int, str]] | None = None) -> Iterator[LayerStatus]:
    """Ask every program; what a killed one has left behind is removed.

    Args:
        silent: gets the processes that do not answer, as one that is stopped, with the reason.

    Raises:
        BadInput: the folder is there and not this user's alone.
    """
    if not os.path.lexists(folder):
        return
    own_folder(folder)
    for path in sorted(folder.glob("[0-9]*"), key=lambda path: path.name.zfill(12)):
        if path.name.isdecimal():
            try:
                yield status(folder, int(path.name))
            except Unavailable as error:
                if silent is not None:
                    silent.append((int(path.name), str(error)))
            except UserError:  # it has just ended
                pass


def park(folder: Path, pid: int, to: Path | None = None, *, patience_s: float = PATIENCE_S) -> LayerStatus:
    """Stop a program at its next call and free its device; contents go to memory, or to a file in ``to``."""
    where = f" {to.absolute()}" if to else ""
    if "\n" in where:
        raise BadInput(f"--to {to!s}: a line feed", "name a folder without one")
    return _ask(folder, pid, f"park {patience_s:g}{where}", None)


def resume(folder: Path, pid: int, device: str = "") -> LayerStatus:
    """Let a parked program go on; ``device``: the key of another device."""
    return _ask(folder, pid, f"resume {device}".rstrip(), None)


def move(folder: Path, pid: int, device: str, *, patience_s: float = PATIENCE_S) -> LayerStatus:
    """Move a running program to the device of this key."""
    return _ask(folder, pid, f"move {device} {patience_s:g}", None)


def estimate(folder: Path, pid: int, device: str) -> MoveEstimate:
    """Predict a move to the device of this key: all is done and let go but its pause."""
    predicted = _ask(folder, pid, f"estimate {device}", None).estimate
    assert predicted is not None
    return predicted


def try_on(
    folder: Path,
    pid: int,
    device: str,
    progress: Callable[[str], None] = lambda text: None,
    *,
    watch_s: float = WATCH_S,
    memory_mib: int = 0,
    opened: Callable[[socket.socket], object] = lambda line: None,
) -> Trial:
    """Replay launches of a running program on the device of this key; the program stays where it is.

    Args:
        progress: is told what is under way. watch_s: how long launches are awaited.
        memory_mib: of copies on each device; 0: an eighth of the smaller device's memory.
        opened: is given the connection; the trial ends when that is shut down.
    """
    from agent.opencl_layer.trials import trial_from  # late: not for every move

    request = f"try {device} {watch_s:g} {memory_mib}"
    line = folder / str(pid)
    answer = _checked(_exchange(line, pid, request, None, progress=progress, opened=opened), pid)
    return trial_from(answer, time.time())


def _ask(folder: Path, pid: int, request: str, timeout_s: float | None) -> LayerStatus:
    """Send a line and read the answer.

    Raises:
        BadInput: there is no such program. LayerRefused: the program runs on as before.
    """
    answer = _checked(_exchange(folder / str(pid), pid, request, timeout_s), pid)
    known = {field.name for field in fields(LayerStatus)}
    predicted = answer.get("estimate")
    answer["estimate"] = MoveEstimate(**predicted) if predicted else None
    return LayerStatus(**{key: value for key, value in answer.items() if key in known})


def _checked(answer: dict[str, Any], pid: int) -> dict[str, Any]:
    if "trouble" in answer:
        raise LayerRefused(pid, answer)
    return answer


def is_stopped(pid: int) -> bool:
    """Tell if a process is stopped (SIGSTOP), or held by a debugger; False where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "tT"
    except OSError:
        return False


def _exchange(
    path: Path,
    pid: int,
    request: str,
    timeout_s: float | None,
    *,
    progress: Callable[[str], None] = lambda text: None,
    opened: Callable[[socket.socket], object] = lambda line: None,
) -> dict[str, Any]:
    if os.path.lexists(path.parent):
        own_folder(path.parent)  # what others lay there is neither asked nor removed
    if is_stopped(pid):  # it would carry out the request when it goes on
        raise Unavailable(f"process {pid} is stopped", f"let it go on first: kill -CONT {pid}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(timeout_s)
        try:
            line.connect(str(path))
        except FileNotFoundError as error:
            if why := loader.outside([pid]):
                raise BadInput(f"process {pid} cannot be moved: {why}") from error
            hint = "it was not started by tenbin opencl run, or has not used OpenCL yet: tenbin opencl status"
            raise BadInput(f"no OpenCL program with process ID {pid} can be moved", hint) from error
        except ConnectionRefusedError as error:
            if loader.variables(pid).get("TENBIN_OPENCL_FOLDER") == str(path.parent.absolute()):
                raise Unavailable(f"process {pid} does not listen; has it closed all its files?") from error
            path.unlink(missing_ok=True)  # of a process that was killed
            raise BadInput(f"process {pid} has ended", "see: tenbin opencl status") from error
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from error
        opened(line)
        try:
            line.sendall(f"{request}\n".encode())
            with line.makefile(encoding="ascii") as lines:
                answer = dict(json.loads(lines.readline() or "{}"))
                while "progress" in answer:
                    progress(answer["progress"])
                    answer = dict(json.loads(lines.readline() or "{}"))
        except TimeoutError as error:
            raise Unavailable(f"process {pid} does not answer") from error
        except OSError as error:
            raise UserError(f"process {pid} has ended meanwhile") from error
    if not answer:
        raise UserError(f"process {pid} has ended meanwhile")
    return answer
