"""From the slices of a check to its figures.

Neighbours and other guests only ever slow a slice down, most of them for a moment. So the value of a round is
the best tenth of its slices (``BEST``): it stays where it was while one slice in ten is undisturbed, but a
fault slows all slices alike. Time that the slice spent without its processors is not counted, because it
says who else ran and not how fast the machine is; ``cpu_share`` tells it by itself.

Of the cores, the mean is a figure, and the slowest beside the median core, so that their number does not
decide how many figures are tested together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from profiles.checks.check import Figure
from profiles.quantities import Better, better

BEST = 0.9  # quantile of the speeds; of times 1 - BEST
OF_CORES = {"compute_gflops": "compute_core_ratio", "compute_clock_ghz": "compute_core_clock_ratio"}
UNDISTURBED = 0.9  # share of its time in which a slice had all its processors
FEWEST = 5  # such slices in a round; with fewer of them all slices count

Row = Mapping[str, Any]
Rounds = dict[int, list[float]]
Subject = tuple[str, str, str]  # quantity, labels as JSON, unit


def sign(quantity: str) -> Literal[1, -1]:
    """Tell whether a higher value is better (1) or worse (-1)."""
    return -1 if better(quantity) is Better.LOWER else 1


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Make the figures of a check of the rows of its battery."""
    by_round: dict[Subject, dict[int, list[Row]]] = {}
    for row in rows:
        subject = (row["quantity"], row["labels"], row["unit"])
        by_round.setdefault(subject, {}).setdefault(int(row["part"]), []).append(row)
    values = {
        subject: {part: _undisturbed(several) for part, several in parts.items()}
        for subject, parts in by_round.items()
    }
    single = {subject: rounds for subject, rounds in values.items() if subject[0] not in OF_CORES}
    found = [_figure(subject, rounds) for subject, rounds in single.items()]
    for quantity in OF_CORES:
        found += _of_cores(quantity, {s: rounds for s, rounds in values.items() if s[0] == quantity})
    return found


def _undisturbed(rows: Sequence[Row]) -> list[float]:
    """Take the values of the slices that had all their processors, because cores must stream together."""
    kept = [row for row in rows if row["cpu_ratio"] is None or row["cpu_ratio"] >= UNDISTURBED]
    return [float(row["cpu_value"]) for row in (kept if len(kept) >= FEWEST else rows)]


def cpu_share(rows: Sequence[Row]) -> float | None:
    """Compute the share of their time in which the slices had their processor; None without such slices."""
    shares = [float(row["cpu_ratio"]) for row in rows if row["cpu_ratio"] is not None]
    return min(float(np.mean(shares)), 1.0) if shares else None


def best(values: Sequence[float], quantity: str) -> float:
    """Take the best tenth of the slices."""
    return float(np.quantile(values, BEST if sign(quantity) > 0 else 1 - BEST))


def _figure(subject: Subject, rounds: Rounds) -> Figure:
    quantity, labels, unit = subject
    every = np.concatenate(list(map(np.asarray, rounds.values())))
    of_rounds = tuple(best(rounds[part], quantity) for part in sorted(rounds))
    return Figure(
        quantity=quantity,
        labels=json.loads(labels),
        unit=unit,
        value=float(np.mean(of_rounds)),
        rounds=of_rounds,
        slices=len(every),
        spread_ratio=_spread(every),
    )


def _of_cores(quantity: str, cores: Mapping[Subject, Rounds]) -> Iterator[Figure]:
    """Give the mean of all cores, and the slowest of them beside the median."""
    names = [json.loads(labels)["core"] for _, labels, _ in cores]
    parts = sorted(set.intersection(*map(set, cores.values()))) if cores else []
    if not parts:
        return
    table = np.array([[best(rounds[part], quantity) for part in parts] for rounds in cores.values()])
    every = np.concatenate([np.asarray(rounds[part]) for rounds in cores.values() for part in parts])
    mean = Figure(
        quantity=quantity,
        labels={"cores": str(len(names))},
        unit=next(iter(cores))[2],
        value=float(table.mean()),
        rounds=tuple(table.mean(axis=0).tolist()),
        slices=len(every),
        spread_ratio=_spread(every),
    )
    yield mean
    if len(names) > 1:
        slowest = table.min(axis=0) / np.median(table, axis=0)
        update = {
            "quantity": OF_CORES[quantity],
            "unit": "ratio",
            "value": float(slowest.mean()),
            "rounds": tuple(slowest.tolist()),
            "note": f"CPU {names[int(table.mean(axis=1).argmin())]}",
        }
        yield mean.model_copy(update=update)


def _spread(values: NDArray[np.float64]) -> float:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / middle)
