"""The node while it is measured: its lock, the conditions that may explain a difference, its storage."""

from __future__ import annotations

import errno
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from probes.folders import inspect_folder
from profiles.errors import Busy, Unavailable
from profiles.files.safe_files import credentials_of_peer, default_storage, make_folder, user_name
from profiles.records import Condition, Settings

# -- the lock, because two measurements at a time would disturb each other ---------------------------------
#
# All users of a machine share it. No file can be such a lock safely: what one user lays in a folder of all
# (a link, a pipe) the next one would open. So it is a name of Linux's abstract sockets, which one process
# can have at a time, and of which nothing is left when that ends. Anybody can hold it, as any lock of all;
# the kernel says who does. Machines with network namespaces of their own (containers) have locks of their
# own.


NAME = "tenbin-node"
LONGEST_COMMAND = 200  # characters


@contextmanager
def node_lock(name: str | None = None) -> Iterator[None]:
    """Hold the node while measuring; the kernel releases the lock however this process ends.

    Args:
        name: of another lock than the node's, for tests.

    Raises:
        Busy: another process holds it; the message says whose, since when and with which command.
    """
    address = "\0" + (name or NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise _busy(address) from None
        lock.listen()  # so that others can see who holds it
        yield


def _busy(address: str) -> Busy:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        try:
            line.connect(address)
            pid, user, _ = credentials_of_peer(line)
        except OSError:  # it is just beginning or ending, or too many have looked
            pid = 0
    if not pid:  # also where the holder is in another container
        return Busy("another profile is measuring this node", "wait for it to end")
    return Busy(
        f"another profile is measuring this node: pid {pid} of {user_name(user)}{_command_of(pid)}",
        f"wait for it, or stop it with: kill -INT {pid}",
    )


def _command_of(pid: int) -> str:
    """Say since when a process runs and with which command, as far as this user may see it."""
    try:
        process = psutil.Process(pid)
        since = datetime.fromtimestamp(process.create_time()).astimezone().isoformat(timespec="seconds")
        words = process.cmdline()
    except psutil.Error:
        return ""
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = [Path(words[1]).name, *words[2:]]
    text = "".join(letter if letter.isprintable() else "?" for letter in shlex.join(words)[:LONGEST_COMMAND])
    return f", since {since} ({text})"


# -- the conditions ----------------------------------------------------------------------------------------


REFERENCE_LOOP = 200_000


def reference_s() -> float:
    """Measure the machine's present speed: the fastest of 5 runs of a fixed CPU loop (about 5 ms each)."""

    def once() -> float:
        start = time.perf_counter()
        x = 0
        for i in range(REFERENCE_LOOP):
            x ^= i
        return time.perf_counter() - start

    return min(once() for _ in range(5))


@dataclass(frozen=True)
class Watch:
    """A reading of the CPU counters at the start of a probe; ``ended`` compares with the end."""

    probe: str
    round: int
    reference_s: float
    started: float
    total_s: float
    busy_s: float
    steal_s: float
    ours_s: float

    @classmethod
    def begin(cls, probe: str, round_: int) -> Watch:
        return cls(probe, round_, reference_s(), time.monotonic(), *_counters())

    def ended(self) -> Condition:
        """Return what happened since; to be called when the probe's process has been waited for."""
        total, busy, steal, ours = _counters()
        elapsed = max(total - self.total_s, 1e-9)
        others = (busy - self.busy_s) - (ours - self.ours_s)
        return Condition(
            probe=self.probe,
            round=self.round,
            duration_s=round(time.monotonic() - self.started, 3),
            reference_s=round(self.reference_s, 6),
            steal_ratio=round(min(max((steal - self.steal_s) / elapsed, 0.0), 1.0), 4),
            others_ratio=round(min(max(others / elapsed, 0.0), 1.0), 4),
        )


def _counters() -> tuple[float, float, float, float]:
    """CPU seconds since boot: all, busy, stolen; and those of this process with its ended children."""
    cpu = psutil.cpu_times()
    steal = float(getattr(cpu, "steal", 0.0))
    idle = cpu.idle + float(getattr(cpu, "iowait", 0.0))
    # guest time is contained in user time: summing all fields would count it twice.
    total = sum(cpu) - float(getattr(cpu, "guest", 0.0)) - float(getattr(cpu, "guest_nice", 0.0))
    own = psutil.Process().cpu_times()
    ours = own.user + own.system + own.children_user + own.children_system
    return total, total - idle - steal, steal, ours


# -- the folder whose storage is measured ------------------------------------------------------------------


def with_storage(settings: Settings) -> Settings:
    """Name the default folder where ``settings`` name none; the probe says what is wrong with it."""
    if settings.storage:
        return settings
    folder = default_storage()
    with suppress(OSError, Unavailable):
        inspect_folder(folder)  # first, because mkdir would wait for ever for a lost server
        make_folder(folder)
    return settings.model_copy(update={"storage": (folder,)})
