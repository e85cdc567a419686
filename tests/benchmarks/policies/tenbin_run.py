"""Runs tenbin's simulator: ``tenbin_run.py LOG NODES POLICY schedule|figures`` prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(log: str, nodes: int, name: str, keep: bool) -> None:
    """Simulate, and print the seconds it took, reading and metrics included."""
    from scheduler.model.jobs import Cluster, Pool
    from scheduler.policies.registry import create
    from scheduler.simulator.metrics import Accumulator
    from scheduler.simulator.simulator import Simulator
    from scheduler.simulator.trace import OutcomeRecorder, Sink
    from scheduler.workloads.logs import swf

    cluster = Cluster((Pool("node", nodes),))
    metrics, record = Accumulator(cluster), OutcomeRecorder()
    policy = create(name)
    sinks: list[Sink] = [metrics, record] if keep else [metrics]
    began = time.perf_counter()
    cpu = time.process_time()
    Simulator(cluster, swf.Swf().read(Path(log)).arrivals, policy, sinks=sinks).run()
    found = metrics.metrics()
    seconds = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    print(json.dumps({**seconds, "jobs": found.jobs, "makespan_s": found.makespan_s}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "schedule")
