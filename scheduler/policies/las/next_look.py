"""The next time at which a node of ``las`` may decide anew although nothing has happened."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.model.jobs import instant
from scheduler.policies.las.node_las import TICK_S, Node, NodeTask, covers


def next_look_s(node: Node, now: float, spare_s: float, acted: bool) -> float:
    """Compute when the node should look again although nothing has happened; infinite: never.

    A node with waiting tasks looks W, 2W, ... after the start of each running task. Most of these looks find
    nothing new. A waiting task succeeds only if another running task has become a candidate for it and all
    candidates together free enough, or if the decision just made (``acted``) changed the running tasks. The
    first such look is returned; the next look, if a job with parts on other nodes waits, because those nodes
    may have made room.
    """
    waiting = (*node.new, *node.paused)
    if not waiting or not node.running:
        return math.inf
    if not acted:
        acted = any(len(task.gang) > 1 for task in waiting)
    change = now + TICK_S if acted else min(_next_chance_s(node, task, now) for task in waiting)
    if change == math.inf:
        return math.inf
    first = math.inf
    change -= TICK_S / 2  # the looks lie on the grid, up to the rounding of these sums
    for other in node.running:
        since_s = other.since_s
        look = since_s + max(1, math.ceil((change - since_s) / spare_s)) * spare_s
        if look < first:  # noqa: PLR1730 (min() is slower)
            first = look
    return instant(first)


def _next_chance_s(node: Node, task: NodeTask, now: float) -> float:
    """Compute from when on the task could displace others although it cannot now."""
    longer, started = task.above_s + TICK_S, task.started
    eligible = []
    for other in node.running:
        at = other.began_s + longer
        if started and other.ripe_s > at:
            at = other.ripe_s
        eligible.append((at, other.rank, other))
    eligible.sort()
    later = now + TICK_S / 2
    room: Sequence[float] = node.free
    for at, _, other in eligible:
        if other.job.stop not in node.keeps:
            room = [f + d for f, d in zip(room, other.demand, strict=True)]
            if at > later and covers(room, task.demand):
                return at
    return math.inf
