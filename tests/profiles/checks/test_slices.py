"""False alarms and power on real slices, drawn again from those in ``tests/data/check_slices.parquet``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from probes.battery import FULL_ROUNDS
from profiles.checks.check import LEAST_LOSS
from profiles.checks.figures import (
    FALSE_ALARM_RATIO,
    Observed,
    Series,
    figures,
    judge,
    sign,
    significant,
)
from profiles.checks.verdict import values_of
from tests.support.amounts import examples, slow
from tests.support.paths import DATA

REFERENCES, RECENT = 50, 5
MACHINES = examples(240)  # of each kind; each is judged RECENT times
BANDWIDTH = "stream_bandwidth_gbs"  # of one core, because the host's other guests share that of all
BUSY = 0.07  # share of all processor time that others had in a check
Values = dict[tuple[str, ...], Observed]


@pytest.fixture(scope="module")
def slices() -> pd.DataFrame:
    """Read 60 quick checks of a shared virtual machine, some quiet and most beside other work."""
    return pd.read_parquet(DATA / "check_slices.parquet")


def tables(slices: pd.DataFrame) -> list[list[dict[str, object]]]:
    """Split into the rows of each check."""
    table = slices.astype({"quantity": str, "labels": str, "unit": str, "cpu_ratio": object})
    table["cpu_ratio"] = table["cpu_ratio"].where(table["cpu_ratio"].notna(), None)
    return [group.assign(part=0).to_dict("records") for _, group in table.groupby("check")]


def drawn(rows: Sequence[Mapping[str, object]], rng: np.random.Generator, rounds: int = 1) -> Values:
    """Draw the slices of each quantity of one check with replacement, and make figures of them."""
    groups: dict[tuple[object, object], list[Mapping[str, object]]] = {}
    for row in rows:
        groups.setdefault((row["quantity"], row["labels"]), []).append(row)
    again = [
        {**group[i], "part": part}
        for part in range(rounds)
        for group in groups.values()
        for i in rng.integers(len(group), size=len(group))
    ]
    return values_of(figures(again))


def alarm(old: Sequence[Values], new: Sequence[Values]) -> bool:
    judged = {}
    for key in new[-1]:
        series = [[v[key] for v in values if key in v] for values in (old, new)]
        one = judge(Series(series[0], series[1], sign(key[0])), len(new[-1]))
        if one is not None:
            judged[key] = one
    found = significant({key: one.p_worse for key, one in judged.items()})
    return any(judged[key].loss > LEAST_LOSS for key in found)


def false_alarms(pool: Sequence[Values], rng: np.random.Generator, references: int) -> tuple[int, int]:
    """Draw unchanged machines whose checks come from the pool; return alarms and checks."""
    alarms = checks = 0
    for _ in range(MACHINES):
        chosen = [pool[i] for i in rng.integers(len(pool), size=references + RECENT)]
        for last in range(RECENT):
            alarms += alarm(chosen[:references], chosen[references : references + last + 1])
            checks += 1
    return alarms, checks


@pytest.mark.slow
@pytest.mark.parametrize("references", [20, 50])
def test_false_alarms(slices: pd.DataFrame, references: int) -> None:
    """On the checks that others did not disturb."""
    rng = np.random.default_rng(references)
    real = tables(slices[slices["others_ratio"] < BUSY])
    pool = [drawn(real[i], rng) for i in rng.integers(len(real), size=400)]
    alarms, checks = false_alarms(pool, rng, references)
    print(f"{alarms} alarms in {checks} checks")
    assert alarms <= stats.binom.ppf(0.999, checks, FALSE_ALARM_RATIO)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantity", "factor", "checks"),
    [
        (BANDWIDTH, 0.95, 1),
        slow("access_latency_ns", 1.10, 1),
        slow("compute_gflops", 0.95, 1),
        slow(BANDWIDTH, 0.97, 5),
        ("compute_gflops", 0.97, 5),
    ],
)
def test_losses_on_a_machine_whose_checks_differ_by_their_slices_only(
    slices: pd.DataFrame, quantity: str, factor: float, checks: int
) -> None:
    """Of the quietest check the slices are drawn again: noise within a check, none between checks."""
    rng = np.random.default_rng(5)
    (rows,) = tables(slices[slices["check"] == slices.loc[slices["others_ratio"].idxmin(), "check"]])
    pool = [drawn(rows, rng, FULL_ROUNDS) for _ in range(200)]
    found = 0
    for _ in range(MACHINES):
        chosen = [dict(pool[i]) for i in rng.integers(len(pool), size=REFERENCES + 4 + checks)]
        old, new = chosen[:REFERENCES], chosen[REFERENCES:]
        for values in new[4:]:
            key = next(k for k in values if k[0] == quantity and (k[0] != BANDWIDTH or "cores=1" in k))
            one = values[key]
            values[key] = Observed(one.value * factor, tuple(x * factor for x in one.rounds), one.spread)
        found += any(alarm(old, new[: 4 + i + 1]) for i in range(checks))
    print(f"{quantity} {factor}: found {found} of {MACHINES}")
    assert found >= 0.95 * MACHINES - 3 * math.sqrt(0.95 * 0.05 * MACHINES)
