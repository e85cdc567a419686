"""Models of a table of batches whose speeds are known."""

from __future__ import annotations

import pandas as pd
import pytest

from profiles.fits import fit_samples

BASE = {"round": 0, "emulated": False, "device": "gpu-0"}


def table() -> pd.DataFrame:
    """Make seven batches of each kind."""
    rows = []
    for n in range(-3, 4):
        off = 1 + 0.01 * n
        shape = {"width": 4, "timer": "device"}
        for kernel, gbs in (("read", 2000.0), ("copy", 1800.0)):
            size = {"bytes": 1e9, "seconds": off / gbs, "array_bytes": 512 << 20}
            rows.append(BASE | shape | size | {"kind": "bandwidth", "kernel": kernel})
        flops = {"flops": 5e12, "seconds": off * 0.1, "precision": "single"}
        rows.append(BASE | shape | flops | {"kind": "flops"})
        rows.append(BASE | {"kind": "launch", "seconds": off * 1e-5, "queued_s": None})
        copies = {"kind": "copies", "memory": "pinned", "bytes": 1e9, "to_s": off / 20, "from_s": off / 25}
        rows.append(BASE | copies)
        rows.append(BASE | {"kind": "both", "bytes": 1e9, "to_s": 3.0, "from_s": 5.0, "both_s": 4.0 * off})
    return pd.DataFrame(rows)


def test_every_speed_is_found_with_an_interval_that_holds_it() -> None:
    found = {m.title: m for m in fit_samples("device", table())}
    wanted = {
        "device_bandwidth_gbs{device=gpu-0,kernel=read}": 2000.0,
        "device_bandwidth_gbs{device=gpu-0,kernel=copy}": 1800.0,
        "device_gflops{device=gpu-0,precision=single}": 50_000.0,
        "device_launch_s{device=gpu-0}": 1e-5,
        "device_copy_gbs{device=gpu-0,direction=to_device,memory=pinned}": 20.0,
        "device_copy_gbs{device=gpu-0,direction=from_device,memory=pinned}": 25.0,
        "device_copies_ratio{device=gpu-0}": 2.0,
    }
    assert found.keys() == wanted.keys()  # device_queue_s is not known
    for title, value in wanted.items():
        (c,) = found[title].coefficients
        assert c.value == pytest.approx(value) and c.low < value < c.high and c.n == 7
    assert found["device_bandwidth_gbs{device=gpu-0,kernel=read}"].note == "vectors of 4, arrays of 512 MiB"


def test_an_interrupted_run_has_what_it_has() -> None:
    rows = table()
    (model,) = fit_samples("device", rows[rows["kind"] == "launch"].dropna(axis=1))
    assert model.quantity == "device_launch_s"
    assert fit_samples("device", rows[:0]) == []
