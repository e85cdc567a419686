"""Models of checkpoint, restart and migration (paper A, eq. 2-5), from ``probes.checkpoint``.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pandas as pd

from profiles.errors import BadInput
from profiles.files.store import id_at
from profiles.fits import fit_samples
from profiles.models import constant, linear, predict
from profiles.models.linear import Names
from profiles.records import REFITTED, Model, Profile

PROBE = "checkpoint"
BUFFERED = "direct I/O refused by this file system: through the page cache"

# Columns of rows; a table lacks a column that no row has.
_TEXTS = ("kind", "phase", "device", "to_device", "costs_of", "to_costs_of", "storage", "cache", "io")
_NUMBERS = ("memory_mb", "queued_kernels", "seconds")


class _Line(NamedTuple):
    """A line to fit over ``x``: the quantity, and the rows of a kind (and phase), grouped by labels."""

    quantity: str
    kind: str
    labels: tuple[str, ...]
    names: Names = Names()
    phase: str = ""
    x: str = "memory_mb"


_WHERE = ("device", "storage")
_MIGRATION = ("device", "to_device", "storage")
_PHASES = (
    *(
        _Line(f"{phase}_s", "phase", ("device",), phase=phase)
        for phase in ("copy_out", "copy_in", "copy_new")
    ),
    *(_Line(f"{phase}_s", "phase", ("storage",), phase=phase) for phase in ("write", "read")),
)
_COSTS = (
    _Line("checkpoint_s", "checkpoint", _WHERE, Names("alpha_C", "beta_C")),
    _Line("restart_s", "restart", _WHERE, Names("alpha_R", "beta_R")),
    _Line("drain_s", "drain", ("device",), Names("alpha_D", "beta_D", x_unit="kernel"), x="queued_kernels"),
    _Line("migration_s", "migration", _MIGRATION, Names("alpha_M", "beta_M")),
)


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every model that the samples support; the others are left out."""
    samples = completed(samples)
    models = [*_lines(samples, _PHASES), *_constants(samples), *_lines(samples, _COSTS)]
    return [*models, *_errors(samples, models)]


def completed(samples: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that ``samples`` lack, empty."""
    return samples.reindex(columns=list(dict.fromkeys([*samples.columns, *_TEXTS, *_NUMBERS])))


def _lines(samples: pd.DataFrame, lines: Iterable[_Line]) -> Iterator[Model]:
    for line in lines:
        rows = _rows(samples, line.kind, line.phase)
        for labels, group in _groups(rows, line.labels, line.x):
            try:
                model = linear.fit(
                    group[line.x].tolist(),
                    group["seconds"].tolist(),
                    probe=PROBE,
                    quantity=line.quantity,
                    x_name=line.x,
                    names=line.names,
                    labels=labels,
                    note=BUFFERED if (group["io"] == "buffered").any() else "",
                )
            except ValueError:  # too few points for a line
                continue
            yield model


def _constants(samples: pd.DataFrame) -> Iterator[Model]:
    for quantity, name, rows, labels in (
        ("compile_s", "K", _rows(samples, "compile"), ("device", "cache")),
        ("context_s", "context", _rows(samples, "phase", "context"), ("device",)),
    ):
        for subject, group in _groups(rows, labels):
            yield constant.fit(
                group["seconds"].tolist(),
                probe=PROBE,
                quantity=quantity,
                name=name,
                unit="s",
                labels=subject,
            )


def _errors(samples: pd.DataFrame, models: list[Model]) -> Iterator[Model]:
    """Fit the median error rates; the nearer to 0 the better, so intervals are held against 1 (100 %)."""
    for labels, group in _groups(predictions(samples, models), _MIGRATION):
        yield constant.fit(
            group["error_ratio"].tolist(),
            probe=PROBE,
            quantity="migration_error_ratio",
            name="error",
            unit="",
            labels=labels,
            note=_share(group),
            scale=1.0,
        )


def predictions(samples: pd.DataFrame, models: list[Model]) -> pd.DataFrame:
    """Compare the measured migrations with the predictions of the models.

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


def _groups(
    rows: pd.DataFrame, labels: Sequence[str], *needed: str
) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """Group complete rows by the labels: their values, and the rows."""
    for values, group in rows.dropna(subset=["seconds", *labels, *needed]).groupby([*labels]):
        yield dict(zip(labels, map(str, values), strict=True)), group


def _rows(samples: pd.DataFrame, kind: str, phase: str = "") -> pd.DataFrame:
    """Select the rows of one kind (and phase)."""
    rows = samples[samples["kind"] == kind]
    return rows[rows["phase"] == phase] if phase else rows


def _share(rows: pd.DataFrame) -> str:
    """Note the share of near predictions, in the paper's terms, and whether a device is a logical twin."""
    errors = rows["error_ratio"].abs()
    note = f"{(errors <= 0.33).mean():.0%} within 0.33, {(errors <= 0.5).mean():.0%} within 0.5"
    for device, costs_of in (("device", "costs_of"), ("to_device", "to_costs_of")):
        twins = rows.loc[rows[device] != rows[costs_of], [device, costs_of]]
        if len(twins):
            note += (
                f"; {twins.iloc[0][device]} is a twin of {twins.iloc[0][costs_of]} and predicted by its costs"
            )
    return note


# -- the costs again, with the checkpoints of real jobs ----------------------------------------------------


_SUBJECT = ["kind", "phase", "device", "to_device", "storage", "cache"]


def refitted(
    profile: Profile, samples: Mapping[str, pd.DataFrame], seen: pd.DataFrame, created: datetime
) -> tuple[Profile, dict[str, pd.DataFrame]]:
    """Make a new profile, in which the jobs' checkpoints replace the probe's samples of the same subject.

    Args:
        samples: raw samples of ``profile``, by probe; without them its models stand.
        seen: rows as those of the checkpoint probe: kind, device, storage, memory_mb, seconds, ...
        created: of the new profile.

    Returns:
        The new profile and all its samples.

    Raises:
        BadInput: emulated and measured would be mixed, or the rows support no model.
    """
    if bool(seen["emulated"].any()) != profile.emulated:
        raise BadInput("emulated and measured never mix", "choose another profile to refit: --profile")
    rows = completed(seen.assign(round=0))
    new = fit_samples(PROBE, rows)
    fitted = {model.quantity for model in new}
    if not fitted & {"checkpoint_s", "restart_s"}:
        raise BadInput(
            "too few checkpoints of jobs to refit: a line needs 5, of at least 3 sizes",
            "move or suspend jobs of several sizes (tenbin migrate), or profile the node: tenbin profile",
        )
    keys = {model.key for model in new}
    models = [model for model in profile.models if model.key not in keys] + new
    tables = dict(samples)
    tables[PROBE] = _merged(samples.get(PROBE), rows)
    count = rows["kind"].value_counts()
    origin = (
        f"{profile.id}{REFITTED}{count.get('checkpoint', 0)} checkpoints and "
        f"{count.get('restart', 0)} restarts of jobs"
    )
    changes = {
        "id": id_at(created),
        "created": created,
        "duration_s": 0.0,
        "models": tuple(models),
        "samples": {probe: len(table) for probe, table in tables.items()},
        "origin": origin,
        "refit_of": profile.id,
    }
    return profile.model_copy(update=changes), tables


def _merged(before: pd.DataFrame | None, rows: pd.DataFrame) -> pd.DataFrame:
    """Append ``rows`` to the earlier rows of other subjects."""
    if before is None:
        return rows
    subjects = completed(before)[_SUBJECT].astype(object).apply(_subject, axis=1)
    superseded = subjects.isin(set(rows[_SUBJECT].astype(object).apply(_subject, axis=1)))
    return pd.concat([before[~superseded.to_numpy()], rows.dropna(axis=1, how="all")], ignore_index=True)


def _subject(row: pd.Series) -> tuple[str, ...]:
    return tuple("" if pd.isna(value) else str(value) for value in row)
