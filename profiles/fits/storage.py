"""From batches of I/O operations to speeds and latencies of each folder, as medians over the batches.

===================================  ==========  =====================================================
quantity                             unit        of
===================================  ==========  =====================================================
``storage_write_mbs``                MB/s        sequential blocks of 4 MiB
``storage_read_mbs``                 MB/s        the same
``storage_random_read_p50_s``        s           the median time of 4 KiB in a batch
``storage_random_read_p99_s``        s           the 99th percentile; batches of 100 operations or more
``storage_random_read_iops``         1/s         operations per second of a batch, one at a time
``storage_random_write_...``                     the same three of writes
``storage_fsync_p50_s``, ``_p99_s``  s           a write of 4 KiB and its fsync together
``storage_fsync_iops``               1/s         such writes per second
===================================  ==========  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from profiles.models import constant
from profiles.records import MB, Model

SEQUENTIAL = ("write", "read")
SMALL = ("random_read", "random_write", "fsync")
_COLUMNS = ("kind", "storage", "block_bytes", "operations", "seconds", "p50_s", "p99_s")


class _Figure(NamedTuple):
    """A number of a folder: the quantity, and the rows and column whose median it is."""

    quantity: str
    kind: str
    column: str
    name: str
    unit: str


_FIGURES = (
    *(_Figure(f"storage_{kind}_mbs", kind, "mbs", "speed", "MB/s") for kind in SEQUENTIAL),
    *(
        _Figure(f"storage_{kind}_{column}", kind, column, name, unit)
        for kind in SMALL
        for column, name, unit in (
            ("p50_s", "p50", "s"),
            ("p99_s", "p99", "s"),
            ("iops", "rate", "1/s"),
        )
    ),
)


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every number of every folder that the samples support."""
    return list(_fitted(completed(samples)))


def completed(samples: pd.DataFrame) -> pd.DataFrame:
    """Add ``mbs`` (MB/s) and ``iops`` (1/s) to the rows, and the columns that the rows lack, empty."""
    rows = samples.reindex(columns=list(dict.fromkeys([*samples.columns, *_COLUMNS])))
    numbers = rows[["block_bytes", "operations", "seconds"]].astype(float)
    iops = numbers["operations"] / numbers["seconds"]
    return rows.assign(iops=iops, mbs=iops * numbers["block_bytes"] / MB)


def _fitted(rows: pd.DataFrame) -> Iterator[Model]:
    for folder, here in rows.groupby("storage", sort=False):
        for figure in _FIGURES:
            group = here[here["kind"] == figure.kind].dropna(subset=[figure.column])
            if group.empty:
                continue
            yield constant.fit(
                group[figure.column].astype(float).tolist(),
                probe="storage",
                quantity=figure.quantity,
                name=figure.name,
                unit=figure.unit,
                labels={"storage": str(folder)},
                note=f"{int(group['operations'].sum())} operations",
            )
