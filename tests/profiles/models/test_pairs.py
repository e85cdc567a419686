"""Speeds of pairs on one GPU: a known law, and two published measurements, each pair left out of its fit."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from itertools import combinations, combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest

from profiles.models import Prediction
from profiles.models.pairs import PairModel, PairSpeed, Programs
from scheduler.evaluations.gpu_pairs import pairs_of, read_pal
from tests.support.paths import SHARED_DATA

pytestmark = pytest.mark.computes
Pair = tuple[PairSpeed, PairSpeed]


def pair(a: str, b: str, of_a: float, of_b: float) -> Pair:
    return PairSpeed(a, b, of_a), PairSpeed(b, a, of_b)


def rows(pairs: Iterable[Pair]) -> list[PairSpeed]:
    """List the speeds of pairs; a program beside itself has one."""
    return [row for a, b in pairs for row in ((a,) if a.program == b.program else (a, b))]


def left_out(pairs: Sequence[Pair], programs: Programs, parts: int) -> list[tuple[Pair, Pair]]:
    """Predict each of so many parts of the pairs from the others: (measured, predicted)."""
    results = []
    for part in range(parts):
        others = (both for place, both in enumerate(pairs) if place % parts != part)
        model = PairModel.fit(rows(others), programs)
        for measured in pairs[part::parts]:
            a, b = (row._replace(speed=model.predict(row.program, row.beside).value) for row in measured)
            results.append((measured, (a, b)))
    return results


def mean_error(results: Iterable[tuple[Pair, Pair]]) -> float:
    """Average |predicted / measured - 1| over both speeds of each pair."""
    both = [(m.speed, p.speed) for measured, said in results for m, p in zip(measured, said, strict=True)]
    return float(np.mean([abs(p / m - 1) for m, p in both]))


def in_order(results: Sequence[tuple[Pair, Pair]], least: float = 1e-9) -> float:
    """Share of all couples of pairs whose sums differ by more than ``least`` that come in the right order."""
    sums = [(m[0].speed + m[1].speed, p[0].speed + p[1].speed) for m, p in results]
    couples = [(a[0] - b[0], a[1] - b[1]) for a, b in combinations(sums, 2)]
    return float(np.mean([m * p > 0 for m, p in couples if abs(m) > least]))


# -- a known law -------------------------------------------------------------------------------------------


def law(count: int, seed: int, noise: float = 0.02) -> list[Pair]:
    rng = np.random.default_rng(seed)
    sensitivity, pressure = rng.lognormal(-0.5, 0.5, (2, count)).tolist()

    def speed(a: int, b: int) -> float:
        return float(rng.lognormal(0.0, noise) / (1 + sensitivity[a] * pressure[b]))

    return [
        pair(f"p{a}", f"p{b}", speed(a, b), speed(b, a))
        for a, b in combinations_with_replacement(range(count), 2)
    ]


def test_a_known_law_is_recovered() -> None:
    pairs = law(10, 1)
    results = left_out(pairs, Programs(), len(pairs))
    assert mean_error(results) < 0.05 and in_order(results) > 0.9


def test_intervals_hold_and_are_wider_where_less_is_known() -> None:
    pairs = law(10, 2, noise=0.05)
    known, inside = rows(pairs[::2]), []
    model = PairModel.fit(known)
    for row in rows(pairs[1::2]):
        said = model.predict(row.program, row.beside)
        inside.append(said.low <= row.speed <= said.high)
    assert np.mean(inside) > 0.9

    def width(said: Prediction) -> float:
        return math.log(said.high / said.low)

    assert width(model.predict("p1", "new")) > 1.4 * width(model.predict("p1", "p2"))
    assert width(model.predict("new", "other")) > width(model.predict("p1", "new"))


def test_pairs_make_a_program_known() -> None:
    """The first of its own pairs tells most; with two a prediction is as good as it gets."""
    errors = np.zeros(4)
    for seed in range(5):
        pairs = law(9, seed)
        own = [both for both in pairs if both[1].program == "p8" != both[0].program]
        others = [both for both in pairs if both[1].program != "p8"]
        for count in range(4):
            model = PairModel.fit(rows([*others, *own[:count]]))
            left = rows(own[4:])
            errors[count] += np.mean([abs(model.predict(*r[:2]).value / r.speed - 1) for r in left]) / 5
    assert errors[0] > 1.8 * errors[1] and errors[2] < 0.07 and errors[3] < 0.06


def test_a_program_without_pairs_is_like_its_family() -> None:
    speeds = [*pair("a1", "b", 0.9, 0.4), *pair("a2", "b", 0.9, 0.4), *pair("c", "b", 0.4, 0.9)]
    model = PairModel.fit(speeds, Programs({"a1": "a", "a2": "a", "a3": "a"}))
    assert model.predict("a3", "b").value == pytest.approx(0.9, abs=0.07)
    assert model.predict("b", "a3").value == pytest.approx(0.4, abs=0.07)


@pytest.mark.parametrize("speeds", [[], [PairSpeed("a", "b", 0.0)], [PairSpeed("a", "b", math.nan)]])
def test_speeds_that_are_none_are_refused(speeds: list[PairSpeed]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        PairModel.fit(speeds)


# -- published measurements --------------------------------------------------------------------------------


def path(name: str) -> Path:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"{name} is not in {SHARED_DATA}")
    return SHARED_DATA / name


def pal() -> tuple[list[Pair], Programs]:
    """Pairs of PAL (SC 2024) on V100, and the model of each program; those that did not fit are left out."""
    speeds, programs = read_pal(path("pal2024-colocation-v100.csv"))
    return [pair(a, b, speeds[a, b], speeds[b, a]) for a, b in pairs_of(speeds)], programs


@pytest.mark.slow
@pytest.mark.timeout(600)  # hundreds of small systems of equations: minutes on busy cores
def test_pairs_of_pal() -> None:
    """Seen: error 6.5 %, order right in 91 %, of pairs that differ by more than 0.1 in 97 %."""
    pairs, programs = pal()
    results = left_out(pairs, programs, 10)
    assert len(pairs) == 101
    assert mean_error(results) < 0.10
    assert in_order(results) > 0.90 and in_order(results, 0.1) > 0.96


def gavel(kind: str) -> tuple[list[Pair], Programs]:
    """Pairs of Gavel (OSDI 2020) on one kind of GPU, and the model of each program."""
    table = json.loads(gzip.decompress(path("gavel-simulation_throughputs.json.gz").read_bytes()))[kind]
    pairs = [
        pair(a, b, both[0] / table[a]["null"], both[1] / table[b]["null"])
        for a, b in combinations_with_replacement(table, 2)
        if min(both := table[a].get(b, (0, 0))) > 0
    ]
    named = {name: setting(name) for name in table}
    families = {name: program.split(" (")[0].split("'")[1] for name, (program, _) in named.items()}
    return pairs, Programs(families, {name: math.log2(size or 1) for name, (_, size) in named.items()})


def setting(name: str) -> tuple[str, int]:
    """Split a name of Gavel's into the program on its devices, and its batch size (0: it has none)."""
    program, _, rest = name.partition(" (batch size ")
    size, _, devices = rest.partition(")")
    return program + devices, int(size or 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "error", "order", "clear"),
    [("p100", 0.04, 0.92, 0.98), ("k80", 0.05, 0.84, 0.98), ("v100", 0.1, 0.86, 0.91)],
)
def test_pairs_of_gavel(kind: str, error: float, order: float, clear: float) -> None:
    """The order of K80 is that of sums that hardly differ; that of V100 see below."""
    pairs, programs = gavel(kind)
    results = left_out(pairs, programs, 4)
    assert mean_error(results) < error
    assert in_order(results) > order and in_order(results, 0.1) > clear


def test_the_noise_of_gavel_on_v100() -> None:
    """The same pairs at twice or half the batch size, averaged, miss a speed by 11 %; on P100 by 5 %."""

    def miss(kind: str) -> float:
        speeds = {row[:2]: row.speed for row in rows(gavel(kind)[0])}
        names = {setting(a): a for a, _ in speeds}
        near = {
            name: [names[x] for x in ((program, 2 * size), (program, size // 2)) if x in names and size]
            for (program, size), name in names.items()
        }
        errors = []
        for (a, b), speed in speeds.items():
            around = [*((n, b) for n in near[a]), *((a, n) for n in near[b])]
            logs = [math.log(speeds[both]) for both in around if both in speeds]
            if logs:
                errors.append(abs(math.exp(np.mean(logs)) / speed - 1))
        return float(np.mean(errors))

    assert miss("v100") > 0.09
    assert miss("p100") < 0.06
