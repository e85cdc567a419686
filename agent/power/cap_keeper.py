"""The power cap of one node: its range, its keeper, and the energy of the packages meanwhile.

The supervisor has a ``CapKeeper`` of its own for the node that it runs on. On each other node of a job of
Slurm runs a process,

    python -P -m agent.power.cap_keeper SYSFS STATES MARK

Its input are lines of JSON: ``{"cap_w": 40.0}``, or null for "restore". It answers each with the cap in force
and the energy so far; it also tells the energy once a second. When its input ends, the supervisor is gone: it
kills what is left of the job on this node, and then restores the limits. Without MARK it keeps nothing: it
restores what a crash has left changed, and prints the node's ``NodePower`` as JSON, or trouble and remedy.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from agent.journal import Journal, restore_leftovers
from agent.multi_node.lease import node_name
from agent.processes import tree
from probes.meters import Counter
from probes.powercap import Caps, Zone, find_caps, metered, zones
from profiles.errors import Busy, Unavailable, UserError
from profiles.files.safe_files import node_journal

# -- energy ------------------------------------------------------------------------------------------------


class Energy:
    """Counts energy from ``begin`` to ``end``, and again.

    ``joules`` must be read so often that no counter wraps unseen.
    """

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._counters: list[Counter] = []
        self._counted_j = 0.0
        self._known = False
        self._broken = False

    def begin(self, packages: Sequence[Zone]) -> None:
        """Count these packages, and their memory, from now on."""
        self.end()
        own = {zone.key for zone in packages}
        below = [z for z in metered(zones(self._sysfs)) if z.is_dram and z.parent in own]
        readable = [zone for zone in [*packages, *below] if zone.readable]
        self._known = bool(readable)
        self._counters = [
            Counter(zone.key, _reader(zone.energy_path), 1e-6, zone.energy_range_uj, stall_s=5.0)
            for zone in readable
        ]
        self._sample()

    def end(self) -> None:
        """Stop counting."""
        self._sample()
        self._counted_j += sum(counter.energy_j for counter in self._counters)
        for counter in self._counters:
            if counter.breaks:
                self._broken = True
                print(f"energy unknown: {counter.name} {dict(counter.troubles)}", file=sys.stderr, flush=True)
        self._counters = []

    @property
    def joules(self) -> float | None:
        """Energy so far; None if there is no counter, or a counter failed."""
        self._sample()
        total = self._counted_j + sum(counter.energy_j for counter in self._counters)
        broken = self._broken or any(counter.breaks for counter in self._counters)
        return total if self._known and not broken else None

    def _sample(self) -> None:
        for counter in self._counters:
            counter.update(time.monotonic)


def _reader(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_text())


# -- the range of caps, and the draw at rest ---------------------------------------------------------------

LOOKS_S = 1.0
EMULATED = "emulated"  # file beside emulated zones; names the machine
HERE = "%N"  # in a path: the node's name


def on_this_node(sysfs: str) -> Path:
    """Return the root of this node's tree of zones."""
    return Path(sysfs.replace(HERE, node_name()))


@dataclass(frozen=True)
class NodePower:
    """The packages of a node, all together.

    Attributes:
        lowest_w, highest_w: the range of caps that can be set.
        rest_w: power of packages and memory while nothing ran.
        beside_w: the memory's part of that.
        emulated: name of the emulated machine; empty: it is real.
    """

    lowest_w: float
    highest_w: float
    rest_w: float
    beside_w: float
    emulated: str = ""


def survey(sysfs: str, states: str) -> NodePower:
    """Survey this node.

    Raises:
        Unavailable: this user may set no caps here, or there is no energy counter.
    """
    restore_leftovers(node_journal(Path(states), node_name()))
    root = on_this_node(sysfs)
    marked = root / "class" / "powercap" / EMULATED
    caps = find_caps(root, lambda path, value: None)
    rest_w, packages_w = _draws_w(root, caps.packages)
    return NodePower(
        caps.lowest_w,
        caps.original_w,
        rest_w,
        rest_w - packages_w,
        marked.read_text().strip() if marked.exists() else "",
    )


def _draws_w(root: Path, packages: list[Zone]) -> tuple[float, float]:
    """Measure for a second the watts of packages with their memory, and of the packages alone."""
    whole, alone = Energy(root), Energy(root / "nothing")  # finds no memory there
    whole.begin(packages)
    alone.begin(packages)
    began = time.monotonic()
    time.sleep(LOOKS_S)
    joules, alone_j, seconds = whole.joules, alone.joules, time.monotonic() - began
    if joules is None or alone_j is None:
        raise Unavailable("its energy counters cannot be read", "run as root")
    return joules / seconds, alone_j / seconds


# -- the keeper --------------------------------------------------------------------------------------------


GIVES_WAY_S = 10.0  # a job that gives a node up restores its caps in milliseconds
SAMPLE_S = 1.0
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class CapKeeper:
    """Caps packages of this node, counts their energy meanwhile, and restores their limits.

    Args:
        sysfs: root of the tree with the packages.
        journal: folder of the restore journal.

    Attributes:
        control: changes a control file after journalling its original.
    """

    def __init__(self, sysfs: Path, journal: Path) -> None:
        self.sysfs = sysfs
        self._journal = Journal(journal, watchdog=False)
        self.control = self._journal.control
        self._energy = Energy(sysfs)
        self._counts = self._may_have_changed = False

    def retry_while_busy(self, step: Callable[[], None]) -> None:
        """Carry out ``step``, again for ten seconds while another process still has the packages.

        Raises:
            Unavailable, Busy: a limit cannot be written, or another process keeps it changed.
        """
        deadline = time.monotonic() + GIVES_WAY_S
        while True:
            try:
                return step()
            except Busy:
                self._journal.restore()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def hold(self, caps: Caps, cap_w: float | None) -> None:
        """Cap these packages together at ``cap_w`` (None: leave them), and count their energy.

        Raises:
            Unavailable, Busy: a limit cannot be written, or another process has changed it.
        """
        if cap_w is not None:
            self._may_have_changed = True
            if not self._counts:
                caps.remember()
            caps.set_w(cap_w)
        if not self._counts:
            self._energy.begin(caps.packages)
            self._counts = True

    def hold_node(self, cap_w: float) -> None:
        """Cap all packages of the node together; as ``hold``, and wait for a process that gives them up."""
        self.retry_while_busy(lambda: self.hold(find_caps(self.sysfs, self.control), cap_w))

    def release(self) -> bool:
        """Restore the limits as found and stop counting; what fails is tried at the next call.

        Returns: whether a limit may have been changed since the last successful restore.
        """
        self._energy.end()
        self._counts = False
        changed = self._may_have_changed
        if changed:
            self._may_have_changed = not all(restored.done for restored in self._journal.restore())
        return changed

    def release_node(self) -> None:
        """Restore the limits as found, and what an earlier crash has left on this node."""
        if self.release():
            restore_leftovers(self._journal.folder)

    @property
    def energy_j(self) -> float | None:
        """Energy of packages and memory while they were held, up to now; None if it is not known."""
        return self._energy.joules


def keeper_of_node(sysfs: str, states: str) -> CapKeeper:
    """Return the keeper of this node.

    Args:
        sysfs: root of the tree with the packages; ``%N`` in it is this node's name.
        states: folder of the restore journals of all nodes.
    """
    return CapKeeper(on_this_node(sysfs), node_journal(Path(states), node_name()))


def main() -> int:
    sysfs, states, *mark = sys.argv[1:]
    if not mark:
        try:
            surveyed = asdict(survey(sysfs, states))
        except UserError as error:
            surveyed = {"trouble": error.what, "remedy": error.remedy}
        print(json.dumps(surveyed), flush=True)
        return 0
    signal.pthread_sigmask(signal.SIG_SETMASK, ENDS)
    for number in ENDS:
        signal.signal(number, _leave)
    keeper = keeper_of_node(sysfs, states)
    holds = False
    try:
        for line in _lines():
            answer: dict[str, object] = {"node": node_name()}
            if line:
                cap_w = json.loads(line)["cap_w"]
                try:
                    if cap_w is None:
                        keeper.release_node()
                    else:
                        keeper.hold_node(cap_w)
                    holds = cap_w is not None
                    answer["cap_w"] = cap_w
                except UserError as error:
                    answer["trouble"] = str(error)
            answer["energy_j"] = keeper.energy_j
            print(json.dumps(answer), flush=True)
    except (SystemExit, OSError):
        pass  # ended by a signal, or its reader is gone
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    if holds:
        tree.kill_marked(mark[0], limit_s=2.0)
    keeper.release_node()
    return 0


def _lines() -> Iterator[str]:
    """Yield the lines of standard input, and an empty line every second."""
    left = b""
    while True:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # only here, so that no change is cut short
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
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
