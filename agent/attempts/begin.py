"""The first steps of an attempt: claim its folder, and start its command.

Every job waits for this module, so it imports hardly anything (``agent.processes.fast_imports``) and names
folders by text. The supervisor's own imports take longer than the start of Python, on a shared disk much
longer. A batch process of Slurm (``agent.supervisor.allocation_reuse``) does them while the command runs.
"""

from __future__ import annotations

import errno
import os
import time
from types import SimpleNamespace

from agent.processes import tree
from agent.processes.fast_imports import parse, signal, suppress
from profiles.errors import UserError
from profiles.files.safe_files import read_plain, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from agent.attempts.records import Order
    from agent.attempts.terminal import Terminal

AWAITED = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGCONT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# Of an order: the supervisor prepares these.
PREPARED = ("memory_limit_mb", "sysfs", "capped_nodes", "hosts", "library", "closed")
NEEDED = ("environment", "folder", "stdout", "stderr", "mark", "lease_s", "terminal")
LISTS = ("command", "cores", "places", "inherit")
LOG = "supervisor.log"
RESULT_BYTES = 4096
ORDER_BYTES = 1 << 30  # more than an environment and a command can have
GOES_ON, FENCED = "go ", "end"


class AttemptRevoked(UserError):
    """The attempt must not start, because the job runs elsewhere."""


class ClaimedAttempt:
    """An attempt that this process has claimed and its supervisor takes over.

    Attributes:
        folder: the attempt's folder.
        alive: descriptor of the locked file ``alive``.
        order: the content of ``order.json``.
        mask: the signals that were blocked before.
        reserved: descriptor of the room for the result.
        since: when the attempt was claimed (monotonic clock).
        at, at_s: just before the command was started (monotonic clock; seconds since 1970).
        pid, ties: the command's process number, and descriptors as from ``launch``; 0 before the start.
        terminal: of a job in the foreground.
        error: why the command could not be started, if that was tried.
        ended: when the command ended, as ``at`` and ``at_s``, if this object has noticed it.
    """

    def __init__(self, folder: str, alive: int, order: dict[str, Any]) -> None:
        self.folder, self.alive, self.order = folder, alive, order
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        self.reserved = reserve(folder)
        self.since = self.at = time.monotonic()
        self.at_s = 0.0
        self.pid = 0
        self.ties: list[int] = []
        self.terminal: Terminal | None = None
        self.error: OSError | UserError | None = None
        self.ended: tuple[float, float] | None = None

    def start(self, order: Order | SimpleNamespace) -> None:
        """Start the command.

        Raises:
            OSError: the command cannot be started.
            AttemptRevoked: the job runs elsewhere.
        """
        if order.lease_s is not None and _is_revoked(self.folder):
            raise AttemptRevoked("it was given up before it had begun")
        if order.terminal:
            from agent.attempts.terminal import Terminal

            self.terminal = Terminal(order.terminal, self.folder)
        self.at, self.at_s = time.monotonic(), time.time()
        self.pid, self.ties = launch(order, self.terminal)

    def __enter__(self) -> ClaimedAttempt:
        """Note when the command ends, until the end of the block; nothing else waits for it there."""
        signal.signal(signal.SIGCHLD, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Note the time if the child that has ended is the command, and leave it to be reaped later."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.pid and self.ended is None and os.waitid(os.P_PID, self.pid, options) is not None:
            self.ended = time.monotonic(), time.time()


def begin(folder: str) -> ClaimedAttempt | None:
    """Claim the attempt, and start its command if that needs no preparation.

    Returns: None if another process has claimed the attempt.

    Raises:
        OSError: there is no room for the result, or no order.
        ValueError: the order cannot be read.
    """
    alive = try_lock(f"{folder}/alive")
    if alive is None:
        return None
    if not claim(folder):
        os.close(alive)
        return None
    order = parse(read_plain(f"{folder}/order.json", ORDER_BYTES).decode())
    tree.adopt_orphans()
    claimed = ClaimedAttempt(folder, alive, order)
    if _needs_no_preparation(order):
        try:
            claimed.start(SimpleNamespace(**order | {name: tuple(order[name]) for name in LISTS}))
        except (OSError, UserError) as error:
            claimed.error = error
    return claimed


def _needs_no_preparation(order: dict[str, Any]) -> bool:
    """Return whether the command can be started at once; an order of another version is left to ``Order``."""
    whole = all(name in order for name in NEEDED + LISTS)
    return whole and not any(order.get(name) not in (None, "", [], {}) for name in PREPARED)


def claim(folder: str) -> bool:
    """Return whether the caller is the first to claim the attempt, and so may run or revoke it."""
    try:
        os.close(os.open(f"{folder}/claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def reserve(folder: str) -> int:
    """Reserve room for the result, and return its descriptor; OSError if there is none."""
    descriptor = os.open(f"{folder}/.result.json", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESULT_BYTES)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def fenced(folder: str) -> bool:
    """Return whether the attempt must end; OSError if its folder or its fence cannot be read."""
    try:
        return read_plain(f"{folder}/fence", RESULT_BYTES) == FENCED.encode()
    except FileNotFoundError:  # attempts without a lease have no fence
        os.stat(folder)  # noqa: PTH116
        return False


def _is_revoked(folder: str) -> bool:
    try:
        return fenced(folder)
    except OSError:
        return True


# -- the start of the command, with its streams, cores, working directory and environment ------------------
#
# By ``posix_spawn``, because after a fork the page faults of both processes cost more than two
# milliseconds. ``posix_spawn`` sets neither working directory nor cores nor limits, so this process takes
# those of the job for a moment.


NO_READER = "nobody reads this pipe; start its reader first, or name a file"
FIRST_LINE = 256  # bytes of it that Linux reads (BINPRM_BUF_SIZE)
DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGCHLD,
)


def launch(order: Order | SimpleNamespace, terminal: Terminal | None = None) -> tuple[int, list[int]]:
    """Start the command in a session of its own; the kernel kills it if this process dies.

    Args:
        terminal: has its streams, in place of files.

    Returns: its process number, and descriptors to be closed when it is reaped.

    Raises:
        OSError: the command cannot be started; ``filename`` is the part of the order to blame.
    """
    cores = cpus_for(order, order.places)
    opened = _Streams(order) if terminal is None else terminal
    with _WorkingIn(order.folder), opened as streams, _OnCores(cores), tree.Marking(order.mark):
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
                setsigdef=DEFAULT_SIGNALS,
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
    return tree.cpus_of_places(places)


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

    program = shutil.which(command, path=path)
    if program is None:
        number = errno.ENOENT if shutil.which(command, os.F_OK, path) is None else errno.EACCES
        raise OSError(number, os.strerror(number), command or "''")
    return program


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
