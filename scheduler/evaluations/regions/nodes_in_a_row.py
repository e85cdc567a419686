"""Jobs that need their nodes in a row, second reading of "no scattered allocation" in the paper's table 1.

A straight-line simulation beside the simulator, whose counted pools have no addresses: fcfs or first fit, and
each job takes the first hole that is wide enough.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from heapq import heappop, heappush

from scheduler.simulator.trace import Arrival


class NodeRow:
    """Nodes 0, 1, ... with holes between the jobs; a hole is (first node, number of nodes)."""

    def __init__(self, nodes: int) -> None:
        self.holes = [(0, nodes)]

    def widest(self) -> int:
        """Return the nodes of the widest hole."""
        return max((width for _, width in self.holes), default=0)

    def take(self, nodes: int) -> int:
        """Take the first hole that is wide enough (there must be one), and return its first node."""
        i = next(i for i, (_, width) in enumerate(self.holes) if width >= nodes)
        begin, width = self.holes[i]
        self.holes[i : i + 1] = [(begin + nodes, width - nodes)] if width > nodes else []
        return begin

    def give(self, begin: int, nodes: int) -> None:
        """Free nodes; holes that touch are joined."""
        end, i = begin + nodes, bisect(self.holes, (begin, 0))
        if i < len(self.holes) and self.holes[i][0] == end:
            end += self.holes.pop(i)[1]
        if i and sum(self.holes[i - 1]) == begin:
            i -= 1
            begin = self.holes.pop(i)[0]
        self.holes.insert(i, (begin, end - begin))


def starts_in_a_row(arrivals: Sequence[Arrival], nodes: int, may_pass: bool) -> dict[int, float]:
    """Find the start of each job on a row of nodes; with ``may_pass`` a later job that fits starts."""
    row, starts = NodeRow(nodes), dict[int, float]()
    queue: list[Arrival] = []
    ends: list[tuple[float, int, int]] = []  # end, first node, nodes
    coming = list(reversed(arrivals))
    while coming or queue:
        now = min(coming[-1].job.submit_s if coming else ends[0][0], ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now:
            row.give(*heappop(ends)[1:])
        while coming and coming[-1].job.submit_s <= now:
            queue.append(coming.pop())
        left: list[Arrival] = []
        widest = row.widest()
        for arrival in queue:
            job = arrival.job
            if job.units <= widest and (may_pass or not left):
                heappush(ends, (now + arrival.run_s, row.take(job.units), job.units))
                starts[job.id] = now
                widest = row.widest()
            else:
                left.append(arrival)
        queue = left
    return starts
