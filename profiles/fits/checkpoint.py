"""Models of checkpoint, restart and migration (paper A, eq. 2-5) from the samples of
``probes.checkpoint.probe``.

==========================  ==================  ========================================================
quantity                    labels              form
==========================  ==================  ========================================================
``checkpoint_s``            device, storage     linear in ``memory_mb``: alpha_C (s/MB), beta_C (s)
``restart_s``               device, storage     linear in ``memory_mb``: alpha_R, beta_R; without K
``compile_s``               device, cache       constant: K of the probe's own program, cache cold or warm
``drain_s``                 device              linear in ``queued_kernels``: alpha_D (s/kernel), beta_D
``copy_out_s, copy_in_s``   device              linear in ``memory_mb``: alpha, beta
``copy_new_s``              device              the same, into memory allocated just now
``write_s, read_s``         storage             linear in ``memory_mb``: alpha, beta
``context_s``               device              constant
``migration_s``             device, to_device,  linear in ``memory_mb``: alpha_M, beta_M; with K (warm)
                            storage
``migration_error_ratio``   device, to_device,  constant: the paper's ``(M_p - M_r) / M_r`` of C + R against
                            storage             whole migrations, which the fits of C and R do not contain
==========================  ==================  ========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from profiles.models import constant, linear, predict
from profiles.models.linear import Names
from profiles.records import Model

PROBE = "checkpoint"

# What rows may have; a table in which no row has one of them lacks the column.
_TEXTS = ("kind", "phase", "device", "to_device", "costs_of", "to_costs_of", "storage", "cache", "io")
_NUMBERS = ("memory_mb", "queued_kernels", "seconds", "emulated")

_PHASES = {
    "copy_out": "device",
    "copy_in": "device",
    "copy_new": "device",
    "write": "storage",
    "read": "storage",
}


def fit(samples: pd.DataFrame) -> list[Model]:
    """Every model that the samples support; what they do not support is left out."""
    samples = completed(samples)
    models = [*_phases(samples), *_constants(samples), *_lines(samples)]
    return [*models, *_migrations(samples, models)]


def completed(samples: pd.DataFrame) -> pd.DataFrame:
    """``samples`` with every column that rows may have, empty where none has it."""
    return samples.reindex(columns=list(dict.fromkeys([*samples.columns, *_TEXTS, *_NUMBERS])))


def _lines(samples: pd.DataFrame) -> Iterator[Model]:
    where = ["device", "storage"]
    yield from _linear(samples, "checkpoint", where, "checkpoint_s", Names("alpha_C", "beta_C"))
    yield from _linear(samples, "restart", where, "restart_s", Names("alpha_R", "beta_R"))
    queue = Names("alpha_D", "beta_D", x_unit="kernel")
    yield from _linear(samples, "drain", ["device"], "drain_s", queue, "queued_kernels")


def _phases(samples: pd.DataFrame) -> Iterator[Model]:
    for phase, label in _PHASES.items():
        rows = _rows(samples, "phase", phase=phase)
        yield from _linear(rows, "phase", [label], f"{phase}_s", Names())


def _constants(samples: pd.DataFrame) -> Iterator[Model]:
    def compiling(rows: pd.DataFrame, labels: dict[str, str]) -> Model:
        return _median(rows, labels, "compile_s", "K", "s")

    def context(rows: pd.DataFrame, labels: dict[str, str]) -> Model:
        return _median(rows, labels, "context_s", "context", "s")

    yield from _groups(samples, "compile", ["device", "cache"], compiling)
    yield from _groups(_rows(samples, "phase", phase="context"), "phase", ["device"], context)


def _migrations(samples: pd.DataFrame, models: list[Model]) -> Iterator[Model]:
    where = ["device", "to_device", "storage"]
    yield from _linear(samples, "migration", where, "migration_s", Names("alpha_M", "beta_M"))
    yield from _groups(predictions(samples, models), "migration", where, _error)


def _error(rows: pd.DataFrame, labels: dict[str, str]) -> Model:
    """The median error rate; the nearer to 0 the better, so its interval is held against 1 (100 %)."""
    table = rows.assign(seconds=rows["error_ratio"])
    return _median(table, labels, "migration_error_ratio", "error", "", note=_share(rows), scale=1.0)


def predictions(samples: pd.DataFrame, models: list[Model]) -> pd.DataFrame:
    """The measured migrations with what the models predict for them.

    Returns:
        The rows of kind ``migration`` for which C, R and K are known, with ``predicted_s``, its 95 % interval
        ``low_s`` and ``high_s`` (errors of C and R added as independent), and ``error_ratio``.
    """
    samples = completed(samples)
    known = {model.key: model for model in models}
    rows = []
    for row in _rows(samples, "migration").to_dict("records"):
        storage = str(row["storage"])
        source, target = f"device={row['costs_of']}", f"device={row['to_costs_of']}"
        c = known.get((PROBE, "checkpoint_s", source, f"storage={storage}"))
        r = known.get((PROBE, "restart_s", target, f"storage={storage}"))
        k = known.get((PROBE, "compile_s", "cache=warm", target))
        if c is None or r is None or k is None or not row["memory_mb"] > 0:
            continue
        parts = [predict(c, row["memory_mb"]), predict(r, row["memory_mb"]), predict(k)]
        value = sum(part.value for part in parts)
        half = sum((part.high - part.value) ** 2 for part in parts) ** 0.5
        error = (value - row["seconds"]) / row["seconds"]
        rows.append(
            row | {"predicted_s": value, "low_s": value - half, "high_s": value + half, "error_ratio": error}
        )
    return completed(pd.DataFrame(rows))


def _linear(
    samples: pd.DataFrame, kind: str, labels: list[str], quantity: str, names: Names, x: str = "memory_mb"
) -> Iterator[Model]:
    def line(rows: pd.DataFrame, subject: dict[str, str]) -> Model:
        return linear.fit(
            rows[x].tolist(),
            rows["seconds"].tolist(),
            probe=PROBE,
            quantity=quantity,
            x_name=x,
            names=names,
            labels=subject,
            emulated=_emulated(rows),
            note=_buffered(rows),
        )

    yield from _groups(samples, kind, [*labels], line, needed=[x])


def _median(
    rows: pd.DataFrame,
    labels: dict[str, str],
    quantity: str,
    name: str,
    unit: str,
    note: str = "",
    scale: float | None = None,
) -> Model:
    return constant.fit(
        rows["seconds"].tolist(),
        probe=PROBE,
        quantity=quantity,
        name=name,
        unit=unit,
        labels=labels,
        emulated=_emulated(rows),
        note=note,
        scale=scale,
    )


def _groups(
    samples: pd.DataFrame,
    kind: str,
    labels: list[str],
    model: Callable[[pd.DataFrame, dict[str, str]], Model],
    needed: list[str] | None = None,
) -> Iterator[Model]:
    """One model for each group of rows that share the labels; none where a group is too small for it."""
    columns = ["seconds", *labels, *(needed or [])]
    rows = _rows(samples, kind)
    for subject, group in rows.dropna(subset=columns).groupby(labels):
        try:
            yield model(group, dict(zip(labels, map(str, subject), strict=True)))
        except ValueError:  # too few points for this form
            continue


def _rows(samples: pd.DataFrame, kind: str, phase: str = "") -> pd.DataFrame:
    """The rows of one kind (and phase)."""
    rows = samples[samples["kind"] == kind]
    return rows[rows["phase"] == phase] if phase else rows


def _emulated(rows: pd.DataFrame) -> bool:
    return bool((rows["emulated"] == True).any())  # noqa: E712  (a column of objects, with gaps)


def _buffered(rows: pd.DataFrame) -> str:
    if (rows["io"] == "buffered").any():
        return "direct I/O refused by this file system: through the page cache"
    return ""


def _share(rows: pd.DataFrame) -> str:
    """How many predictions were near, in the paper's terms, and whether the target is a logical twin."""
    errors = rows["error_ratio"].abs()
    note = f"{(errors <= 0.33).mean():.0%} within 0.33, {(errors <= 0.5).mean():.0%} within 0.5"
    for device, costs_of in (("device", "costs_of"), ("to_device", "to_costs_of")):
        twins = rows.loc[rows[device] != rows[costs_of], [device, costs_of]]
        if len(twins):
            note += (
                f"; {twins.iloc[0][device]} is a twin of {twins.iloc[0][costs_of]} and predicted by its costs"
            )
    return note
