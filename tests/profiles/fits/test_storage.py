"""Fits and pictures of storage, from rows whose speeds and latencies are known."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from profiles.fits import fit_samples
from profiles.records import Model, Quality
from tenbin.report.probes.storage import EXPLANATION, figures

BLOCK, PAGE = 4 << 20, 4096
FOLDERS = ("/scratch", "/home/me")


def row(kind: str, folder: str, seconds: float, **others: Any) -> dict[str, Any]:
    large = kind in ("write", "read")
    base = {"round": 0, "emulated": False, "kind": kind, "storage": folder, "seconds": seconds}
    sizes = {"block_bytes": BLOCK if large else PAGE, "operations": 2 if large else 500}
    return base | sizes | {"p50_s": seconds / 500, "p99_s": None if large else seconds / 100} | others


def table() -> pd.DataFrame:
    """Nine batches of each kind and folder; the fifth slowest takes 0.1 s, on /home/me twice as long."""
    kinds = ("write", "read", "random_read", "random_write", "fsync")
    return pd.DataFrame(
        row(kind, folder, factor * (0.1 + 0.001 * (i - 4)))
        for factor, folder in enumerate(FOLDERS, 1)
        for kind in kinds
        for i in range(9)
    )


def find(models: list[Model], quantity: str, folder: str) -> Model:
    (model,) = [m for m in models if m.quantity == quantity and m.labels == {"storage": folder}]
    return model


@pytest.mark.parametrize(("factor", "folder"), list(enumerate(FOLDERS, 1)))
def test_medians_are_those_of_the_batches(factor: int, folder: str) -> None:
    models = fit_samples("storage", table())
    assert len(models) == 2 * (2 + 3 * 3)
    for quantity, value, unit in (
        ("storage_write_mbs", 2 * BLOCK / 1e6 / 0.1 / factor, "MB/s"),
        ("storage_read_mbs", 2 * BLOCK / 1e6 / 0.1 / factor, "MB/s"),
        ("storage_random_read_p50_s", factor * 0.1 / 500, "s"),
        ("storage_random_write_p99_s", factor * 0.1 / 100, "s"),
        ("storage_fsync_iops", 500 / 0.1 / factor, "1/s"),
    ):
        (coefficient,) = find(models, quantity, folder).coefficients
        assert coefficient.value == pytest.approx(value)
        assert (coefficient.unit, coefficient.n, coefficient.quality) == (unit, 9, Quality.GOOD)
    # Of nine values the second and the eighth bound the median with 96 % (binomial).
    (p50,) = find(models, "storage_fsync_p50_s", folder).coefficients
    assert (p50.low, p50.high) == pytest.approx((factor * 0.097 / 500, factor * 0.103 / 500))


def test_what_was_not_measured_has_no_model() -> None:
    rows = table()
    rows = rows[~((rows["kind"] == "fsync") & (rows["storage"] == "/home/me"))]
    rows.loc[rows["kind"] == "random_read", "p99_s"] = None
    models = fit_samples("storage", rows)
    names = {(m.quantity, m.labels["storage"]) for m in models}
    assert len(names) == len(models) == 2 * (2 + 3 * 3) - 3 - 2
    assert ("storage_random_read_p50_s", "/scratch") in names
    assert not {name for name in names if name[0] == "storage_random_read_p99_s"}
    assert fit_samples("storage", rows[:0]) == []


def test_pictures_show_every_batch_and_every_median() -> None:
    rows = table()
    models = fit_samples("storage", rows)
    large, small = figures(rows, models)
    for fig, dots, medians in ((large, 2 * 2 * 9, 2 * 2), (small, 2 * 3 * 2 * 9, 2 * 3 * 2)):
        diamonds = [trace for trace in fig.data if trace.marker.symbol == "diamond"]
        assert sum(len(trace.y) for trace in diamonds) == medians
        assert sum(len(trace.y) for trace in fig.data) - medians == dots
        assert {trace.name for trace in diamonds} == set(FOLDERS)
    assert "fsync" in EXPLANATION and figures(rows[:0], []) == []
    (only,) = figures(rows[rows["kind"] == "read"], [])
    assert "Large" in only.layout.title.text
