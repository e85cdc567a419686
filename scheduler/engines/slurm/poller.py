"""A thread that talks to Slurm, because a call may take seconds, and the heartbeats that it looks at."""

from __future__ import annotations

import errno
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.attempts.checked import LASTING
from agent.multi_node.lease import MARGIN_S, WIDTH, beat_file, beats_every_s
from agent.power.caps import IN_FORCE
from profiles.errors import Unavailable
from profiles.files.safe_files import read_plain
from scheduler.engines.slurm.sbatch_queue import SbatchQueue, SeenJob
from scheduler.engines.slurm.slurm_commands import Slurm, SlurmError, SlurmJob, SlurmNode

log = logging.getLogger("tenbin")


# -- heartbeats --------------------------------------------------------------------------------------------
#
# By them a dead node is noticed before Slurm's own time-out.
#
# Supervisors, and keepers of ranks, leave beats in the attempt's folder (``agent.multi_node.lease``). If
# there is none for the time of the lease and a margin, nothing of the attempt may run on that node any
# more: the lease has ended it, or the node is dead. But the node could be stopped, or short of memory or
# processors for all that time. So it is asked for another sign of life, an answer at slurmd's port.


KNOCK_S = 0.5  # in which a node has to answer
AGAIN_S = 10.0  # between knocks at one that did not
SET_DOWN = "tenbin: no sign of life"  # the reason in Slurm of a node that tenbin has set down
Key = tuple[int, int]  # job and attempt
NOBODY: Key = (0, 0)  # of calls that are for no attempt


class Answers(NamedTuple):
    """Answers of nodes that were asked.

    Attributes:
        mute: they answer nothing. back: they were, and were set down for it, and answer again.
    """

    mute: frozenset[str] = frozenset()
    back: frozenset[str] = frozenset()


@dataclass(slots=True)
class Sign:
    """Heartbeats of an attempt on one of its nodes.

    Attributes:
        beat: the last one; "": there was none yet.
        silent_s: for so long there was no other, though it should run.
    """

    file: Path
    beat: str = ""
    silent_s: float = 0.0


class Heartbeats:
    """Looks at beats, and asks nodes; ``look`` and ``ask`` in one thread, the rest in another.

    Silence counts in steps, none longer than twice the interval between looks. Time in which we could not
    look, because the disk did not answer, does not count as silence.
    """

    def __init__(self, lease_s: float) -> None:
        self.limit_s = lease_s + MARGIN_S
        self.due = 0.0  # when to look again (monotonic)
        self._every_s = beats_every_s(lease_s)
        self._signs: dict[Key, dict[str, Sign]] = {}
        self._expected: set[Key] = set()
        self._looked_at = 0.0
        self._suspects: frozenset[str] = frozenset()
        self._doubted: set[str] = set()  # for another reason, until they were asked
        self._mute: dict[str, float] = {}  # when to knock again

    # -- what runs ------------------------------------------------------------------------------------

    def watch(self, key: Key, folder: Path, hosts: Iterable[str]) -> None:
        self._signs[key] = {host: Sign(beat_file(folder, host)) for host in hosts}

    def forget(self, key: Key) -> None:
        self._signs.pop(key, None)
        self._expected.discard(key)

    def expect(self, key: Key, runs: bool) -> None:
        """Note whether it should run now: what waits, or is stopped, leaves no beats."""
        if runs:
            self._expected.add(key)
        else:
            self._expected.discard(key)
            for sign in self._signs.get(key, {}).values():
                sign.silent_s = 0.0

    def silent(self, key: Key, host: str) -> bool:
        """Say whether beats are missing there for a lease, though it should run."""
        sign = self._signs.get(key, {}).get(host)
        return sign is not None and sign.silent_s >= self.limit_s

    def begun(self, key: Key, host: str) -> bool:
        """Say whether there was ever a beat."""
        sign = self._signs.get(key, {}).get(host)
        return sign is not None and bool(sign.beat)

    def doubt(self, hosts: Iterable[str]) -> None:
        """Have nodes asked by the next snapshot, whatever beats say."""
        self._doubted.update(hosts)

    def still(self, host: str) -> bool:
        """Say whether nothing that should run on the node has left a beat lately."""
        silent = [self.silent(key, host) for key in list(self._expected) if host in self._signs.get(key, {})]
        return all(silent)

    # -- in the thread that looks ---------------------------------------------------------------------

    def look(self) -> bool:
        """Look for new beats; return whether there is a node that was not suspected before."""
        now, signs = time.monotonic(), list(self._signs.items())
        step_s = min(now - self._looked_at, 2 * self._every_s)
        self._looked_at, suspects = now, set[str]()
        for key, places in signs:
            for host, sign in places.items():
                _look(sign, step_s if key in self._expected else 0.0)
                if sign.silent_s >= self.limit_s:
                    suspects.add(host)
        self.due = now + max(self._every_s, COST_S * len(signs))
        has_news = bool(suspects - self._suspects)
        self._suspects = frozenset(suspects)
        return has_news

    def ask(self, nodes: Mapping[str, SlurmNode], port: Callable[[], int]) -> Answers:
        """Knock at nodes without a sign; those that Slurm has given up itself are its own business.

        Args:
            port: of slurmd, where a node has no other.
        """
        now = time.monotonic()
        slurms = {name for name, node in nodes.items() if node.lost or node.silent}
        # When Slurm takes one of those for good again, it is asked at once.
        self._mute = {name: 0.0 if name in slurms else at for name, at in self._mute.items() if name in nodes}
        set_down = {name for name, node in nodes.items() if node.lost and node.reason.startswith(SET_DOWN)}
        names = [
            name
            for name in self._suspects.union(self._doubted, self._mute, set_down) & nodes.keys()
            if now >= self._mute.get(name, 0.0) and (name in set_down or name not in slurms)
        ]
        answer = knock({n: (nodes[n].address or n, nodes[n].port or port()) for n in names})
        for name in names:
            if name in answer:
                self._mute.pop(name, None)
            else:
                self._mute[name] = now + AGAIN_S
        self._doubted.difference_update(names, slurms)
        return Answers(frozenset(self._mute), frozenset(answer & set_down))


def _look(sign: Sign, step_s: float) -> None:
    try:
        beat = read_plain(sign.file, WIDTH).decode(errors="replace").strip()
    except OSError as error:
        if error.errno not in (errno.ENOENT, *LASTING):
            return
        beat = sign.beat  # none from before there were beats; nor is what is no plain file a new one
    if beat != sign.beat:
        sign.beat, sign.silent_s = beat, 0.0
    else:
        sign.silent_s += step_s


def knock(addresses: Mapping[str, tuple[str, int]]) -> frozenset[str]:
    """Find the nodes that listen at their port; ``addresses`` has address and port by name."""
    listening = set()
    with ExitStack() as stack:
        waiting: dict[int, tuple[str, socket.socket]] = {}
        poll = select.poll()
        for name, (address, port) in addresses.items():
            try:
                family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                line = stack.enter_context(socket.socket(family, kind))
                line.setblocking(False)
                begun = line.connect_ex(where)
            except OSError:
                continue
            if begun == 0:
                listening.add(name)
            elif begun == errno.EINPROGRESS:
                waiting[line.fileno()] = name, line
                poll.register(line, select.POLLOUT)
        deadline = time.monotonic() + KNOCK_S
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1e3):
                name, line = waiting.pop(descriptor)
                poll.unregister(descriptor)
                if line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    listening.add(name)
    return frozenset(listening)


# -- the thread ---------------------------------------------------------------------------------------------

BUSY_S = 2.0  # between looks at Slurm while there is something to see
IDLE_S = 10.0
BELL_S = 0.25  # between looks whether somebody has submitted a job by sbatch
RINGS_S = 0.2  # until it is in the queue
LOOKS_S = 0.02, 0.1  # between looks at the folders of attempts: while there is news, and long after
COST_S = 2e-3  # so long again for each folder: many of them are looked at less often


class ClusterSnapshot(NamedTuple):
    """All that Slurm knew at one moment; ``answers`` of nodes without a sign of life."""

    jobs: list[SlurmJob]
    nodes: list[SlurmNode]
    external_jobs: list[SeenJob] | None = None
    answers: Answers = Answers()


class Outcome(NamedTuple):
    """The outcome of a call that was made for an attempt."""

    key: Key
    what: str
    value: object
    error: SlurmError | None


News = ClusterSnapshot | Outcome | Unavailable


class SlurmPoller:
    """A thread that makes calls one after the other, and looks at Slurm and at folders between them.

    ``news`` keeps the order of events: a snapshot behind an outcome was taken after the call.
    ``fileno`` is readable when there is news, or when a folder has changed.
    """

    def __init__(self, slurm: Slurm, lease_s: float, sbatch: SbatchQueue | None = None) -> None:
        self.slurm, self.sbatch, self.heartbeats = slurm, sbatch, Heartbeats(lease_s)
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.folders: dict[Key, Path] = {}  # entries come and go one at a time: no lock
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signs: dict[Key, tuple[int, bool]] = {}
        self._snapshot_at = self._look_at = self._bell_at = self._news_at = 0.0
        self._idle_s = min(IDLE_S, sbatch.gate_s / 4) if sbatch else IDLE_S
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def fileno(self) -> int:
        return self._bell

    def heard(self) -> None:
        """Reset the bell."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def do(self, key: Key, what: str, call: Callable[[], object]) -> None:
        """Make a call; its outcome comes as news."""
        self._tasks.put(lambda: self._tell(_try(key, what, call)))

    def look(self, after_s: float = 0.0) -> None:
        """Ask for a snapshot soon."""
        self._tasks.put(lambda: self._advance(time.monotonic() + after_s))

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join(self.slurm.timeout_s + 5.0)
        os.close(self._bell)

    # -- in the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=max(0.0, self._due() - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if task is None:
                    return
                task()
            self._look_where_due()

    def _look_where_due(self) -> None:
        if self.sbatch is not None and time.monotonic() >= self._bell_at:
            self._bell_at = time.monotonic() + BELL_S
            if self.sbatch.rung():
                self._advance(time.monotonic() + RINGS_S)
        if self.folders and time.monotonic() >= self.heartbeats.due and self.heartbeats.look():
            self._advance(time.monotonic())
        if time.monotonic() >= self._snapshot_at:
            self._take_snapshot()
        if self.folders and time.monotonic() >= self._look_at:
            self._look_around()

    def _due(self) -> float:
        due = [self._snapshot_at]
        if self.folders:
            due += [self._look_at, self.heartbeats.due]
        if self.sbatch is not None:
            due.append(self._bell_at)
        return min(due)

    def _look_around(self) -> None:
        folders, now = list(self.folders.items()), time.monotonic()
        signs = {key: _sign(folder) for key, folder in folders}
        if signs != self._signs:
            self._signs, self._news_at = signs, now
            self._ring()
        soon, late = LOOKS_S
        self._look_at = now + max(min(soon + (now - self._news_at) / 100, late), COST_S * len(folders))

    def _advance(self, at: float) -> None:
        self._snapshot_at = min(self._snapshot_at, at)

    def _take_snapshot(self) -> None:
        busy = bool(self.folders)
        try:
            external_jobs = self.sbatch.look() if self.sbatch else None
            busy = busy or any(seen.job.moves(time.time()) for seen in external_jobs or ())
            jobs, nodes = self.slurm.jobs(), self.slurm.nodes()
            answers = self.heartbeats.ask({node.name: node for node in nodes}, self.slurm.slurmd_port)
            self._tell(ClusterSnapshot(jobs, nodes, external_jobs, answers))
        except Unavailable as error:  # or an answer that cannot be read, a file that cannot be written
            self._tell(error)
        self._snapshot_at = time.monotonic() + (BUSY_S if busy else self._idle_s)

    def _tell(self, news: News) -> None:
        self.news.put(news)
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)


def _try(key: Key, what: str, call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(key, what, call(), None)
    except SlurmError as error:
        return Outcome(key, what, None, error)
    except Exception as error:  # a fault of ours must not end the thread: nothing would happen any more
        log.exception("slurm: %s", what)
        return Outcome(key, what, None, SlurmError(f"{what}: {error!r}"))


def _sign(folder: Path) -> tuple[int, bool]:
    """Return a value that changes when there is news in an attempt's folder."""
    path, changed_ns = os.fspath(folder), 0
    for name in ("state.json", IN_FORCE):
        with suppress(OSError):
            changed_ns += os.stat(f"{path}/{name}").st_mtime_ns  # noqa: PTH116 (a fifth of the time)
    return changed_ns, os.path.exists(f"{path}/result.json")  # noqa: PTH110 (no error where that may not be seen)
