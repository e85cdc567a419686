"""Keeps the power cap of one node that a job of a cluster has whole.

On the node of its supervisor that is an object there. On each other node it is a process,

    python -P -m agent.power.cap_keeper SYSFS STATES MARK

which is told by lines of JSON: ``{"cap_w": 40.0}``, or null for "put back", and answers each with what is in
force and the energy so far; the energy also once a second. Is whoever started it gone, then so is the job:
what is left of it on this node is killed, and then the caps are put back.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from agent.journal import Journal, restore_leftovers
from agent.multi_node.node_name import node_name
from agent.paths import node_journal
from agent.power.energy import Energy
from agent.processes import tree
from probes.power.caps import find_caps
from profiles.errors import Busy, UserError

GIVES_WAY_S = 10.0  # who had the node before puts its caps back in milliseconds
SAMPLE_S = 1.0
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HERE = "%N"  # in a path: the node's name


def on_this_node(sysfs: str) -> Path:
    """The root of this node's tree of zones."""
    return Path(sysfs.replace(HERE, node_name()))


class CapKeeper:
    """Caps this node, counts its energy meanwhile, and puts everything back.

    Args:
        sysfs: root of the tree with the packages, ``%N`` in it is this node's name.
        states: folder of what is to be put back, of all nodes.
    """

    def __init__(self, sysfs: str, states: str) -> None:
        self._sysfs = on_this_node(sysfs)
        self._folder = node_journal(Path(states), node_name())
        self._journal = Journal(self._folder, watchdog=False)
        self._energy = Energy(self._sysfs)
        self._holds = False

    def hold(self, cap_w: float) -> None:
        """The packages of the node together are capped at that.

        Raises:
            Unavailable, Busy: a limit cannot be written, or somebody else has changed it.
        """
        deadline, begins = time.monotonic() + GIVES_WAY_S, not self._holds
        self._holds = True  # from here on there may be something to put back
        while True:
            try:
                caps = find_caps(self._sysfs, self._journal.control)
                if begins:
                    caps.remember()
                caps.set_w(cap_w)
                break
            except Busy:
                self._journal.restore()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if begins:
            self._energy.begin(caps.packages)

    def release(self) -> None:
        """Put back what was found, also what a crash before had left; what fails is tried the next time."""
        self._energy.end()
        if self._holds:
            self._holds = not all(one.done for one in self._journal.restore())
            restore_leftovers(self._folder)

    @property
    def energy_j(self) -> float | None:
        """Of packages and memory while they were capped, up to now; None: not known."""
        return self._energy.joules


def main() -> int:
    sysfs, states, mark = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_SETMASK, ENDS)
    for number in ENDS:
        signal.signal(number, _leave)
    keeper = CapKeeper(sysfs, states)
    holds = False
    try:
        for line in _lines():
            answer: dict[str, object] = {"node": node_name()}
            if line:
                cap_w = json.loads(line)["cap_w"]
                try:
                    if cap_w is None:
                        keeper.release()
                    else:
                        keeper.hold(cap_w)
                    holds = cap_w is not None
                    answer["cap_w"] = cap_w
                except UserError as error:
                    answer["trouble"] = str(error)
            answer["energy_j"] = keeper.energy_j
            print(json.dumps(answer), flush=True)
    except (SystemExit, OSError):
        pass  # ended, or there is nobody who listens
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    if holds:
        tree.kill_marked(mark, limit_s=2.0)
    keeper.release()
    return 0


def _lines() -> Iterator[str]:
    """What comes on standard input, and an empty line every second."""
    left = b""
    while True:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # here alone: what is begun is brought to its end
        ready = select.select([0], [], [], SAMPLE_S)[0]
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        if not ready:
            yield ""
            continue
        piece = os.read(0, 65536)
        if not piece:
            return
        *whole, left = (left + piece).split(b"\n")
        for line in whole:
            yield line.decode()


def _leave(number: int, frame: FrameType | None) -> None:
    for one in ENDS:
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
