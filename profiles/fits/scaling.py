"""Downey's model of every built-in load, from its run times over cores."""

from __future__ import annotations

import pandas as pd

from profiles.models import downey
from profiles.records import Model


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit a model ``run_s`` a load, labelled by load and size; x is the count of cores.

    Runs with a wrong answer do not count. Where a load was measured in two sizes (a machine near the border
    between them), the size with more runs is kept. A load needs runs on one core and on more.
    """
    if not {"load", "size", "cores", "run_s"} <= set(samples.columns):
        return []
    right = samples[samples["verified"].astype(bool)] if "verified" in samples else samples
    models = []
    for load, every in right.groupby("load", sort=True):
        size = every["size"].mode().iloc[0]
        runs = every[every["size"] == size]
        counts = set(runs["cores"])
        if 1 not in counts or len(counts) < 2:
            continue
        models.append(
            downey.fit(
                runs["cores"].tolist(),
                runs["run_s"].tolist(),
                probe="scaling",
                quantity="run_s",
                labels={"load": str(load), "size": str(size)},
                emulated=bool(runs["emulated"].any()) if "emulated" in runs else False,
            )
        )
    return models
