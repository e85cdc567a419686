"""From batches of an OpenCL device to its speeds, as medians with order-statistic intervals.

- ``device_bandwidth_gbs`` {device, kernel}: bytes that ``read``, ``write`` or ``copy`` move (a copy reads and
  writes), by their time. 1 GB = 1e9 B.
- ``device_gflops`` {device, precision}: multiply-adds in registers, two operations each.
- ``device_launch_s`` {device}: from the order of a launch to its end; ``device_queue_s``: until it begins.
- ``device_copy_gbs`` {device, direction, memory}: ``to_device`` or ``from_device``, host memory ``pinned`` or
  ``pageable``.
- ``device_copies_ratio`` {device}: time of a copy each way, one after the other, over that of both at once: 1
  where a device does one at a time, 2 where it does both at full speed.
"""

from __future__ import annotations

import pandas as pd

from profiles.models import constant
from profiles.records import Model

DIRECTIONS = {"to_device": "to_s", "from_device": "from_s"}
LABELS = ["device", "kernel", "precision", "direction", "memory"]
NUMBERS = ["bytes", "flops", "seconds", "queued_s", "to_s", "from_s", "both_s"]
UNITS = {  # of each quantity: the coefficient's name and unit
    "device_bandwidth_gbs": ("bandwidth", "GB/s"),
    "device_gflops": ("speed", "GFLOP/s"),
    "device_launch_s": ("launch", "s"),
    "device_queue_s": ("wait", "s"),
    "device_copy_gbs": ("bandwidth", "GB/s"),
    "device_copies_ratio": ("ratio", "ratio"),
}


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every speed of every device that the samples have."""
    models = []
    for quantity, name, unit in ((quantity, *words) for quantity, words in UNITS.items()):
        rows = speeds(samples, quantity)
        for _, group in rows.groupby(LABELS, dropna=False, sort=False):
            labels = group.iloc[0][LABELS].dropna()
            models.append(
                constant.fit(
                    group["value"].tolist(),
                    probe="device",
                    quantity=quantity,
                    name=name,
                    unit=unit,
                    labels={str(label): str(value) for label, value in labels.items()},
                    note=_note(group),
                )
            )
    return models


def speeds(samples: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Make a row an observation of ``quantity``: ``value`` and ``LABELS`` (some are empty).

    Missing columns become empty, because a run that was interrupted early has rows of one kind only.
    """
    columns = ["kind", *LABELS, *NUMBERS, "width", "timer", "array_bytes"]
    rows = samples.reindex(columns=columns).astype(dict.fromkeys(NUMBERS, float))
    if quantity == "device_copy_gbs":
        copies = rows[rows["kind"] == "copies"]
        ways = [
            copies.assign(direction=direction, value=copies["bytes"] / copies[column] / 1e9)
            for direction, column in DIRECTIONS.items()
        ]
        return pd.concat(ways)
    kind, values = {
        "device_bandwidth_gbs": ("bandwidth", rows["bytes"] / rows["seconds"] / 1e9),
        "device_gflops": ("flops", rows["flops"] / rows["seconds"] / 1e9),
        "device_launch_s": ("launch", rows["seconds"]),
        "device_queue_s": ("launch", rows["queued_s"]),
        "device_copies_ratio": ("both", (rows["to_s"] + rows["from_s"]) / rows["both_s"]),
    }[quantity]
    return rows.assign(value=values)[(rows["kind"] == kind) & values.notna()]


def _note(group: pd.DataFrame) -> str:
    """Say how it was measured: the vectors, the arrays, and whose clock took the time."""
    said = []
    if group["width"].notna().any():
        widths = sorted({int(width) for width in group["width"].dropna()})
        said.append(f"vectors of {' or '.join(map(str, widths))}")
    if group["array_bytes"].notna().any():
        said.append(f"arrays of {group['array_bytes'].median() / 2**20:.0f} MiB")
    if (group["timer"] == "host").any():
        said.append("by the host's clock")
    return ", ".join(said)
