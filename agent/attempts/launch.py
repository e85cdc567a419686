"""Starts the command of an order, with its streams, cores, working directory and environment.

By ``posix_spawn``, because after a fork the page faults of both processes cost more than two milliseconds.
``posix_spawn`` sets neither working directory nor cores nor limits, so this process takes those of the job
for a moment.
"""

from __future__ import annotations

import errno
import os

from agent.processes import tree
from agent.processes.fast_imports import signal, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import SimpleNamespace

    from agent.attempts.records import Order

NO_READER = "nobody reads this pipe; start its reader first, or name a file"
FIRST_LINE = 256  # bytes of it that Linux reads (BINPRM_BUF_SIZE)
DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)


def launch(order: Order | SimpleNamespace) -> tuple[int, list[int]]:
    """Start the command in a session of its own; the kernel kills it if this process dies.

    Returns: its process number, and descriptors to be closed when it is reaped.

    Raises:
        OSError: the command cannot be started; ``filename`` is the part of the order to blame.
    """
    cores = cpus_for(order, order.places)
    with _WorkingIn(order.folder), _Streams(order) as streams, _OnCores(cores), tree.Marking(order.mark):
        given = {name: value for name, value in os.environ.items() if name.startswith(order.inherit)}
        environment = {**given, **order.environment, tree.MARK: order.mark}
        program = _find(order.command[0], environment.get("PATH", os.defpath))
        try:
            pid = os.posix_spawn(
                program,
                order.command,
                environment,
                file_actions=streams,
                setsid=True,
                setsigmask=(),
                setsigdef=DEFAULT,
            )
        except (OSError, ValueError) as error:  # of a name in the environment, for instance
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            reason = error.strerror if isinstance(error, OSError) else str(error)
            blamed = order.command[0]
            if number in (errno.ENOENT, errno.EACCES) and os.access(program, os.X_OK):
                blamed = interpreter(program) or blamed
            raise OSError(number, reason, blamed) from error
    return pid, tree.die_with_me(pid)


def interpreter(program: str) -> str | None:
    """Return the program that the first line of a script names (``#!``); "": none. None: it is no script."""
    try:
        opened = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        before, mark, line = os.read(opened, FIRST_LINE).partition(b"\n")[0].partition(b"#!")
    except OSError:
        return None
    finally:
        os.close(opened)
    if before or not mark:
        return None
    words = line.replace(b"\t", b" ").split(b" ")
    return next((os.fsdecode(word) for word in words if word), "")


def cpus_for(order: Order | SimpleNamespace, places: tuple[int, ...]) -> tuple[int, ...]:
    """Return the logical CPUs to bind the job to; empty: do not bind it."""
    if not order.places:
        return tuple(order.cores)
    from agent.processes.binding import cpus_of  # needed by jobs that share a node of Slurm only

    return cpus_of(places)


def _find(command: str, path: str) -> str:
    """Find the program's file as a shell does."""
    if "/" in command:
        return command
    for folder in path.split(os.pathsep):  # nearly always enough, because importing shutil takes long
        file = f"{folder}/{command}"
        if not folder:
            break
        if os.access(file, os.X_OK) and not os.path.isdir(file):  # noqa: PTH112
            return file
    import shutil

    found = shutil.which(command, path=path)
    if found is None:
        number = errno.ENOENT if shutil.which(command, os.F_OK, path) is None else errno.EACCES
        raise OSError(number, os.strerror(number), command or "''")
    return found


class _WorkingIn:
    """Another working directory for this process, for a moment."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._before = os.open(".", os.O_PATH | os.O_CLOEXEC)
        try:
            os.chdir(self._folder)
        except OSError:
            os.close(self._before)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            os.fchdir(self._before)
        finally:
            os.close(self._before)


class _Streams:
    """The opened streams of a job, as file actions of ``posix_spawn``."""

    def __init__(self, order: Order | SimpleNamespace) -> None:
        self._order = order
        self._opened: list[int] = []

    def __enter__(self) -> list[tuple[int, int, int]]:
        appends = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        own = self._order.environment.get("TENBIN_JOB_FOLDER", os.devnull) + "/"  # private, as all of it
        streams = (os.devnull, os.O_RDONLY), (self._order.stdout, appends), (self._order.stderr, appends)
        try:
            for path, flags in streams:
                mode = 0o600 if path.startswith(own) else 0o666
                self._opened.append(os.open(path, flags | os.O_CLOEXEC, mode))
                os.set_blocking(self._opened[-1], True)
        except OSError as error:
            self.__exit__()
            if error.errno == errno.ENXIO:  # waiting for a reader could last for ever
                raise OSError(errno.ENXIO, NO_READER, error.filename) from None
            raise
        return [(os.POSIX_SPAWN_DUP2, opened, number) for number, opened in enumerate(self._opened)]

    def __exit__(self, *_: object) -> None:
        for opened in self._opened:
            os.close(opened)


class _OnCores:
    """Other cores for this process, for a moment; empty: no change."""

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._cores = cores

    def __enter__(self) -> None:
        if self._cores:
            self._before = os.sched_getaffinity(0)
            try:
                os.sched_setaffinity(0, self._cores)
            except OSError as error:
                named = f"cores {', '.join(map(str, self._cores))}"
                raise OSError(error.errno, error.strerror, named) from error

    def __exit__(self, *_: object) -> None:
        if self._cores:
            with suppress(OSError):  # they may have been taken away meanwhile
                os.sched_setaffinity(0, self._before)
