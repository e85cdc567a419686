"""Paper D's own numbers again: what follows from its tables, and the choice of pairs from them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from scheduler.evaluations import Finding, Picture, Series, Table, exactly
from scheduler.model.interference import BUILT_IN, PairTable, PressureModel
from scheduler.policies.sharing.pairing import (
    Grouping,
    JobGroup,
    best_bindings,
    best_choice,
    by_counters,
    by_probes,
    gain_percent,
    pairings,
    placed,
)

NAME = "konishi2008"
ROUNDING = 0.05  # points of a percentage that the paper rounds, and computes from rounded times
BEST_PAIRS = {("EP", "MG"): 2, ("CG", "LU"): 2, ("FT", "FT"): 1}
COUNTERS_PAIRS = {("EP", "MG"): 2, ("FT", "LU"): 2, ("CG", "CG"): 1}


def printed_tables() -> dict[str, Any]:
    path: Path = BUILT_IN[NAME].with_name("konishi2008_printed.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def from_tables(table: PairTable, printed: dict[str, Any]) -> list[Finding]:
    """Derive what follows from the tables without any choice."""
    off = {base: _farthest(table, printed, base) for base in ("mean of 4x2", "table 1")}
    rows = printed["table_7"]["times_s"]
    steps = [earlier <= later for row in rows for earlier, later in pairwise(row)]
    exceptions = sum(
        any(row[i] > later for later in row[i + 1 :])
        for row in printed["table_8"]["more_s"]
        for i in range(len(row))
    )
    _, ep_mg = best_bindings(("EP", "MG"), table)
    ft_ft = 100.0 * table.change("FT", "spread", "FT")
    in_order = 100.0 * sum(steps) / len(steps)
    largest = "table 2 from table 9: largest difference"
    note = f"with table 1 as base it would be {off['table 1']:.2f} points"
    neighbours = "without communication: neighbouring pairs in the order of memprobe (table 7)"
    underlined = "times in MPI out of the order of comprobe (table 8, underlined)"
    return [
        Finding(largest, 0.0, exactly(off["mean of 4x2"]), "points", (0.0, ROUNDING), note),
        Finding("time saved by EP with MG on 2x4", 7.73, exactly(-50.0 * ep_mg), "%", _near(7.73)),
        Finding("time lost by FT with FT on 2x4", 3.39, exactly(ft_ft), "%", _near(3.39)),
        Finding(neighbours, 100.0, exactly(in_order), "%", (100.0, 100.0)),
        Finding(underlined, 3.0, exactly(exceptions), "", (3.0, 3.0)),
    ]


def _farthest(table: PairTable, printed: dict[str, Any], base: str) -> float:
    """Largest difference between table 2 as printed and as it follows, in points."""
    off: list[float] = []
    for binding, rows in table.times_s.items():
        for i, a in enumerate(table.programs):
            base_s = table.base_s[a] if base == "mean of 4x2" else printed["table_1"][a]
            for j, b in enumerate(table.programs):
                off.append(100.0 * (rows[a][b] / base_s - 1.0) - printed["table_2"][binding][i][j])
    return max(map(abs, off))


def _near(value: float) -> tuple[float, float]:
    return value - ROUNDING, value + ROUNDING


def _ten(table: PairTable) -> list[str]:
    return [program for program in table.programs for _ in range(2)]


def _choices(table: PairTable) -> dict[str, Grouping]:
    """List the choices compared, for two jobs of each program."""
    ten = _ten(table)
    pressures = [table.pressures[program] for program in ten]
    rule, counters = by_probes(pressures), by_counters(pressures)
    return {
        "rule, all left on 2x4": [JobGroup(g.members, ("spread", "spread")) for g in rule],
        "rule, as it places": rule,
        "rule, best placement": placed(rule, ten, table),
        "counters, all left on 2x4": counters,
        "counters, best placement": placed(counters, ten, table),
        "minimum-weight matching": best_choice(ten, table),
    }


def _same_pairs(choice: Grouping, programs: Sequence[str], expected: dict[tuple[str, str], int]) -> int:
    """Count the jobs in pairs that the paper names."""
    left, same = dict(expected), 0
    for group in choice:
        a, b = sorted(programs[member] for member in group.members)
        if left.get((a, b), 0):
            left[a, b] -= 1
            same += 2
    return same


def from_choices(table: PairTable) -> list[Finding]:
    ten, choices = _ten(table), _choices(table)
    saved = {name: gain_percent(choice, ten, table) for name, choice in choices.items()}
    best = max(-10.0 * sum(best_bindings(pair, table)[1] for pair in pairs) for pairs in pairings(ten))
    placed_best = saved["rule, best placement"] - saved["counters, best placement"]
    left = saved["rule, all left on 2x4"] - saved["counters, all left on 2x4"]
    better = "the paper says only that the rule chooses better"
    but = "but it prints its pairs on 2x4, where two FT lose 3.39 %: placement belongs to the choice"
    rule = _same_pairs(choices["rule, as it places"], ten, BEST_PAIRS)
    counters = _same_pairs(choices["counters, all left on 2x4"], ten, COUNTERS_PAIRS)
    best_pairs = "rule against counters, each pair in its best placement"
    all_left = "rule against counters, all pairs left on 2x4"
    as_placed = exactly(saved["rule, as it places"])
    all_ten = (10.0, 10.0)
    return [
        Finding("jobs of 10 in the pairs that the paper's rule gives", 10.0, exactly(rule), same=all_ten),
        Finding("jobs of 10 in the pairs that counters give", 10.0, exactly(counters), same=all_ten),
        Finding("time saved by the best of all pairings", 3.79, exactly(best), "%", _near(3.79)),
        Finding("time saved by the rule as it places", 3.79, as_placed, "%", _near(3.79)),
        Finding(best_pairs, None, exactly(placed_best), "points", (0.0, 4.0), better),
        Finding(all_left, None, exactly(left), "points", (0.0, 4.0), f"{better}; {but}"),
    ]


def gains(table: PairTable) -> Table:
    ten = _ten(table)
    every = len(list(pairings(ten)))
    rows = [(name, gain_percent(choice, ten, table)) for name, choice in _choices(table).items()]
    return Table(
        f"Two jobs of each program: time saved against whole nodes ({every} different pairings)",
        ("choice", "saved, %"),
        tuple(rows),
    )


def fits(table: PairTable) -> Table:
    model = PressureModel.fit(table)
    rows = tuple(
        (binding, 1e4 * weights.memory, 1e4 * weights.network, weights.r2_ratio)
        for binding, weights in model.weights.items()
    )
    return Table(
        "What a neighbour adds, from pressures: w1 x memprobe x memprobe + w2 x comprobe x communication",
        ("binding", "w1, 1e-4 a percent^2", "w2, 1e-4 a percent^2", "R2"),
        rows,
    )


def picture(table: PairTable) -> Picture:
    series = tuple(
        Series(
            f"beside {beside}",
            table.programs,
            tuple(100.0 * table.change(program, "spread", beside) for program in table.programs),
        )
        for beside in table.programs
    )
    return Picture("Change of the run time on 2x4 (table 2)", "program", "change, %", series)
