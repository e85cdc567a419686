"""A rank of comprobe as a neighbour: ``mpiexec -n N python -P -m mpi4py -m probes.network.streamer PLAN``.

The ranks exchange over and over, at an intensity, until they are ended. Rank 0 writes one JSON object a line:
``preflight``, ``ready`` (the first exchanges are over), then a ``window`` every so often.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from probes.network.patterns import AllToAll
from probes.network.rank import preflight, say, world

if TYPE_CHECKING:
    from mpi4py import MPI

WARM_UP = 3


@dataclass(frozen=True)
class StreamPlan:
    """Orders for the ranks of a comprobe that is a neighbour.

    Attributes:
        message_bytes: from each rank to each other.
        intensity: share of the time in all-to-alls, above 0 up to 1.
        window_s: least time between two reports.
        limit_s: a rank that still runs then is ended by the kernel.
        preflight: see first that the messages leave their hosts.
    """

    ranks: int
    message_bytes: int
    intensity: float
    window_s: float
    limit_s: int
    preflight: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def stream(comm: MPI.Comm, plan: StreamPlan) -> None:
    """Exchange for ever; each pause follows from the slowest rank's last exchange."""
    exchange = AllToAll(comm, plan.message_bytes)
    exchange.check(plan.message_bytes)
    exchange.timed(plan.message_bytes, WARM_UP)
    if comm.rank == 0:
        say(event="ready")
    while True:
        begin, inside_s, exchanges = time.monotonic(), 0.0, 0
        while exchanges == 0 or comm.bcast(time.monotonic() - begin < plan.window_s, root=0):
            took_s = float(exchange.timed(plan.message_bytes, 1)[0])
            inside_s, exchanges = inside_s + took_s, exchanges + 1
            time.sleep(took_s * (1 / plan.intensity - 1))
        if comm.rank == 0:
            wall_s = time.monotonic() - begin
            say(event="window", wall_s=wall_s, inside_s=inside_s, exchanges=exchanges)


def main() -> int:
    plan = StreamPlan(**json.loads(sys.argv[1]))
    if comm := world(plan.ranks, plan.limit_s):
        if plan.preflight:
            preflight(comm)
        stream(comm, plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
