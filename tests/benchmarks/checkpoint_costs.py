"""What checkpoints cost on this machine, for benchmarks that predict moves."""

from __future__ import annotations

import subprocess
from pathlib import Path

from profiles.files.store import Store
from tests.benchmarks import FULL, SMALL
from tests.scheduler.prediction.test_measured import checkpoints, model, profile
from tests.support.programs import TENBIN, opencl_devices


def store_costs(storage: Path) -> None:
    """Keep a profile of checkpoints on this storage; in the small its costs are made up."""
    if SMALL:
        keys = [str(device["key"]) for device in opencl_devices()]
        costs = [model("context_s", {"device": key}, context=0.1) for key in keys]
        for key in keys:
            costs += checkpoints(key)
        Store().save(profile(costs), {})
        return
    command = [*TENBIN, "profile", "--only", "checkpoint", "--storage", str(storage)]
    for options in ([], []) if FULL else (["--quick"], []):  # a busy machine needs longer than quick allows
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if Store().load().find("checkpoint_s") is not None:
            return
    raise AssertionError("the machine is too busy to measure what checkpoints cost")
