"""Runs AccaSim 1.1.3 on a log, in the current folder: ``accasim_run.py LOG NODES fifo|easy`` prints one line of JSON."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import io
import json
import sys
import time
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]  # gone since Python 3.10


def main(log: str, nodes: int, method: str) -> None:
    """Simulate, and print the seconds it took and the schedule's makespan."""
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    config = {
        "groups": {"node": {"core": 1, "mem": 1_000_000}},
        "resources": {"node": nodes},
        "equivalence": {"processor": {"core": 1}},
        "start_time": 0,
    }
    Path("system.json").write_text(json.dumps(config))
    dispatcher = {"fifo": FirstInFirstOut, "easy": EASYBackfilling}[method](FirstFit())
    began = time.perf_counter()
    cpu = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        simulator = Simulator(
            log,
            "system.json",
            dispatcher,
            scheduling_output=False,
            pprint_output=False,
            benchmark_output=False,
            statistics_output=True,
            show_statistics=False,
            RESULTS_FOLDER_PATH="results",
        )
        files = simulator.start_simulation()
    found = {"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    found["files"] = {key: str(value) for key, value in dict(files or {}).items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
