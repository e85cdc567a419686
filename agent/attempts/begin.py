"""The first steps of an attempt, up to its command's first instruction; who supervises it comes after that.

The supervisor's imports take a Python that has just started longer than its own start, on a shared disk much
longer. So a batch process (``relay``) imports them while the command runs already, and this here, with what
it needs, imports hardly anything (``light``); folders are text.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

from agent.attempts.launch import launch
from agent.processes import tree
from agent.processes.fast_imports import parse, signal
from profiles.errors import UserError
from profiles.files import read_plain, try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from agent.attempts.records import Order

AWAITED = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGCONT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
BEFOREHAND = ("memory_limit_mb", "sysfs", "capped_nodes", "hosts")  # of an order: prepared by the supervisor
NEEDED = ("environment", "folder", "stdout", "stderr", "mark", "lease_s")
LISTS = ("command", "cores", "places", "inherit")
LOG = "supervisor.log"
RESULT_BYTES = 4096
GOES_ON, FENCED = "go ", "end"


class AttemptRevoked(UserError):
    """It must not begin: it runs somewhere else, or will."""


class ClaimedAttempt:
    """An attempt that this process has claimed; the supervisor goes on with it.

    Attributes:
        folder: of the attempt.
        alive: descriptor of its sign of life, locked.
        order: as it is in the folder.
        mask: the signals that were blocked before.
        reserved: descriptor of the room for its result.
        since: when it was claimed (monotonic).
        at, at_s: when (monotonic, since 1970) the command was started, just before: no run is taken for
            shorter than it was.
        pid, ties: of the command, as from ``launch``; 0: it was not started yet.
        error: why it could not be; None: nobody has tried, or it was.
        ended: when the command ended, as in ``at``; None: not seen, somebody waits for it.
    """

    def __init__(
        self, folder: str, alive: int, order: dict[str, Any], mask: set[int | signal.Signals], reserved: int
    ) -> None:
        self.folder = folder
        self.alive, self.order, self.mask, self.reserved = alive, order, mask, reserved
        self.since = self.at = time.monotonic()
        self.at_s = 0.0
        self.pid = 0
        self.ties: list[int] = []
        self.error: OSError | UserError | None = None
        self.ended: tuple[float, float] | None = None

    def start(self, order: Order | SimpleNamespace) -> None:
        """Start the command.

        Raises:
            OSError: it cannot be.
            AttemptRevoked: it may not.
        """
        if order.lease_s is not None and _given_up(self.folder):
            raise AttemptRevoked("it was given up before it had begun")
        self.at, self.at_s = time.monotonic(), time.time()
        self.pid, self.ties = launch(order)

    def __enter__(self) -> ClaimedAttempt:
        """Until the end of the block nobody waits for the command: when it ends is noted."""
        signal.signal(signal.SIGCHLD, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Some child has ended; if it is the command, it is still there to be waited for."""
        if self.pid and self.ended is None:
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.pid, look) is not None:
                self.ended = time.monotonic(), time.time()


def begin(folder: str) -> ClaimedAttempt | None:
    """Claim the attempt, and start its command if nothing is to be prepared for that.

    Returns: None: somebody else has it, or had it.

    Raises:
        OSError: there is no room for its result, or no order.
        ValueError: the order cannot be read.
    """
    alive = try_lock(f"{folder}/alive")
    if alive is None:
        return None
    if not claim(folder):
        os.close(alive)
        return None
    with open(f"{folder}/order.json") as file:  # noqa: PTH123
        order = parse(file.read())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    tree.adopt_orphans()
    begun = ClaimedAttempt(
        folder, alive, order, mask, reserve(folder)
    )  # its room is there since the order is
    if _plain(order):
        try:
            begun.start(SimpleNamespace(**order | {name: tuple(order[name]) for name in LISTS}))
        except (OSError, UserError) as error:
            begun.error = error
    return begun


def _plain(order: dict[str, Any]) -> bool:
    """Whether it can be started at once; one that another version has written the supervisor understands."""
    whole = all(name in order for name in NEEDED + LISTS)
    return whole and not any(order.get(name) not in (None, "", [], {}) for name in BEFOREHAND)


def claim(folder: str) -> bool:
    """Whether the caller is the first: only then it may run, or revoke, the attempt."""
    try:
        os.close(os.open(f"{folder}/claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def reserve(folder: str) -> int:
    """Set room aside for the result; a descriptor to note it with. OSError if there is none."""
    descriptor = os.open(f"{folder}/.result.json", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESULT_BYTES)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def fenced(folder: str) -> bool:
    """Whether the attempt must end. OSError if its folder cannot be seen, or something else lies there."""
    try:
        return read_plain(f"{folder}/fence", RESULT_BYTES) == FENCED.encode()
    except FileNotFoundError:  # an order from before there were such files
        os.stat(folder)  # noqa: PTH116
        return False


def _given_up(folder: str) -> bool:
    try:
        return fenced(folder)
    except OSError:
        return True
