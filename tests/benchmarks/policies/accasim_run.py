"""Runs AccaSim 1.1.3 in the current folder: ``accasim_run.py LOG NODES fifo|easy schedule|figures``.

Prints one line of JSON.
"""

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


def main(log: str, nodes: int, method: str, keep: bool) -> None:
    """Simulate and print the seconds it took."""
    from accasim.base.allocator_class import FirstFit
    from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut
    from accasim.base.simulator_class import Simulator

    config = {
        "groups": {"node": {"core": 1, "mem": 1_000_000}},
        "resources": {"node": nodes},
        "equivalence": {"processor": {"core": 1}},
        "start_time": 0,
    }
    Path("results").mkdir(exist_ok=True)
    Path("system.json").write_text(json.dumps(config))
    dispatcher = {"fifo": FirstInFirstOut, "easy": EASYBackfilling}[method](FirstFit())
    began = time.perf_counter()
    cpu = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        simulator = Simulator(
            log,
            "system.json",
            dispatcher,
            scheduling_output=keep,
            pprint_output=False,
            benchmark_output=False,
            statistics_output=True,
            show_statistics=False,
            RESULTS_FOLDER_PATH="results",
        )
        simulator.start_simulation()
    print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "schedule")
