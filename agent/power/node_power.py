"""The survey of a node's power caps, started on each node of a cluster.

    python -P -m agent.power.node_power SYSFS STATES

It first restores what a crash has left changed, then measures for a second how much the node draws at rest.
It prints one line of JSON: ``NodePower``, or ``{"trouble": ..., "remedy": ...}``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.journal import restore_leftovers
from agent.multi_node.lease import node_name
from agent.power.cap_keeper import Energy, on_this_node
from agent.users import node_journal
from probes.powercap import Zone, find_caps
from profiles.errors import Unavailable, UserError

LOOKS_S = 1.0
EMULATED = "emulated"  # file beside emulated zones; names the machine


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


def look(sysfs: str, states: str) -> NodePower:
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


def main() -> int:
    try:
        answer = asdict(look(*sys.argv[1:]))
    except UserError as error:
        answer = {"trouble": error.what, "remedy": error.remedy}
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
