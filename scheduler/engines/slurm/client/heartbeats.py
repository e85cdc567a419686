"""Heartbeats of attempts, so that a dead node is noticed before Slurm's own time-out.

Supervisors, and keepers of ranks, leave beats in the attempt's folder (``agent.multi_node.lease``). If there
is none for the time of the lease and a margin, nothing of the attempt may run on that node any more: the
lease has ended it, or the node is dead. But the node could be stopped, or short of memory or processors for
all that time. So it is asked for another sign of life, an answer at slurmd's port.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.attempts.checked import LASTING
from agent.multi_node.lease import MARGIN_S, WIDTH, beat_file, beats_every_s
from profiles.files.safe_files import read_plain
from scheduler.engines.slurm.client.parse import SlurmNode

KNOCK_S = 0.5  # in which a node has to answer
AGAIN_S = 10.0  # between knocks at one that did not
COST_S = 2e-3  # many attempts are looked at less often: so long for each
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
        found = [self.silent(key, host) for key in list(self._expected) if host in self._signs.get(key, {})]
        return all(found)

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
        found = bool(suspects - self._suspects)
        self._suspects = frozenset(suspects)
        return found

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
        asked = [
            name
            for name in self._suspects.union(self._doubted, self._mute, set_down) & nodes.keys()
            if now >= self._mute.get(name, 0.0) and (name in set_down or name not in slurms)
        ]
        answer = knock({n: (nodes[n].address or n, nodes[n].port or port()) for n in asked})
        for name in asked:
            if name in answer:
                self._mute.pop(name, None)
            else:
                self._mute[name] = now + AGAIN_S
        self._doubted.difference_update(asked, slurms)
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


def knock(asked: Mapping[str, tuple[str, int]]) -> frozenset[str]:
    """Find the nodes that listen at their port; ``asked`` has address and port by name."""
    found = set()
    with ExitStack() as stack:
        waiting: dict[int, tuple[str, socket.socket]] = {}
        poll = select.poll()
        for name, (address, port) in asked.items():
            try:
                family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                one = stack.enter_context(socket.socket(family, kind))
                one.setblocking(False)
                begun = one.connect_ex(where)
            except OSError:
                continue
            if begun == 0:
                found.add(name)
            elif begun == errno.EINPROGRESS:
                waiting[one.fileno()] = name, one
                poll.register(one, select.POLLOUT)
        deadline = time.monotonic() + KNOCK_S
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1e3):
                name, one = waiting.pop(descriptor)
                poll.unregister(descriptor)
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    found.add(name)
    return frozenset(found)
