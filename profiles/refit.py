"""Refit of a profile's checkpoint costs, from the checkpoints of real jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import pandas as pd

from profiles.errors import BadInput
from profiles.files.store import id_at
from profiles.fits import fit_samples
from profiles.fits.checkpoint import PROBE, completed
from profiles.records import Profile

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
        f"{profile.id}, refitted from {count.get('checkpoint', 0)} checkpoints and "
        f"{count.get('restart', 0)} restarts of jobs"
    )
    changes = {
        "id": id_at(created),
        "created": created,
        "duration_s": 0.0,
        "models": tuple(models),
        "samples": {probe: len(table) for probe, table in tables.items()},
        "origin": origin,
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
