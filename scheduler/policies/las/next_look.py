"""The next time at which a node of ``las`` may decide anew although nothing has happened."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.model.jobs import instant
from scheduler.policies.las.node_las import TICK_S, Node, NodeTask, Refused, covers, gives_way


def next_look_s(node: Node, now: float, spare_s: float) -> float:
    """Compute when the node should look again although nothing has happened; infinite: never.

    A node with waiting tasks looks W, 2W, ... after the start (or the end of the restart) of each running
    task. Most of these looks find nothing new. A waiting task succeeds only if another running task became a
    candidate for it since the last decision and all candidates together free enough, or if that decision
    changed the running tasks. The first such look is returned; the next look, if a job with parts on other
    nodes waits, because those nodes may have made room.
    """
    if not node.running or not (node.new or node.paused):
        return math.inf
    decided_s = node.decided_s
    change = decided_s + TICK_S if node.acted else math.inf
    for waiting in (node.new, node.paused) if change == math.inf else ():
        refused = Refused()
        for task in waiting:
            if len(task.gang) > 1:
                change = decided_s + TICK_S
                break
            if not refused.covers(task):
                change = min(change, _next_chance_s(node, task, decided_s))
    if change == math.inf:
        return math.inf
    change = max(change, now)
    first = math.inf
    change -= TICK_S / 2  # the looks lie on the grid, up to the rounding of these sums
    for other in node.running:
        since_s = other.since_s
        look = since_s + max(1, math.ceil((change - since_s) / spare_s)) * spare_s
        if look < first:  # noqa: PLR1730 (min() is slower)
            first = look
    return instant(first)


def _next_chance_s(node: Node, task: NodeTask, decided_s: float) -> float:
    """Compute from when on the task could displace others although it could not at ``decided_s``."""
    longer, started = task.above_s + TICK_S, task.started
    eligible = [(-math.inf, other.rank, other) for other in node.restarting if gives_way(other, task)]
    for other in node.running:
        at = other.began_s + longer
        if started and other.ripe_s > at:
            at = other.ripe_s
        eligible.append((at, other.rank, other))
    eligible.sort()
    later = decided_s + TICK_S / 2
    room: Sequence[float] = node.free
    for at, _, other in eligible:
        if other.job.stop not in node.keeps:
            room = [f + d for f, d in zip(room, other.demand, strict=True)]
            if at > later and covers(room, task.demand):
                return at
    return math.inf
