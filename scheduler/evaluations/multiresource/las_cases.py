"""The simulations of the evaluation ``multiresource``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from scheduler.evaluations import Scale
from scheduler.evaluations.multiresource.las_runs import LasCase, trace_file

LIKES = ("google", "alibaba")
POLICIES = ("kairos", "las", "las-prompt", "las-mq")


class NodesAndTasks(NamedTuple):
    """So many nodes and tasks."""

    nodes: int
    tasks: int


@dataclass(frozen=True)
class LasSize:
    """The extent of the simulations: machines and seeds for each trace, and for cases of one seed.

    ``further_seeds``: for Alibaba's tasks under the policies that are not the paper's. ``trace``: for
    Google's own tasks, where there is a file of them; None: they are left out.
    """

    main: dict[str, NodesAndTasks]
    seeds: dict[str, int]
    further_seeds: int
    varied: NodesAndTasks
    overload: NodesAndTasks
    readings: dict[str, NodesAndTasks]
    trace: NodesAndTasks | None = None


SIZES: dict[Scale, LasSize] = {
    "small": LasSize(
        {"google": NodesAndTasks(128, 17_400), "alibaba": NodesAndTasks(64, 25_000)},
        {"google": 2, "alibaba": 2},
        1,
        NodesAndTasks(64, 8_700),
        NodesAndTasks(8, 8_000),
        {"google": NodesAndTasks(64, 8_700), "alibaba": NodesAndTasks(64, 12_500)},
    ),
    "full": LasSize(
        main={"google": NodesAndTasks(256, 69_524), "alibaba": NodesAndTasks(256, 648_052)},
        seeds={"google": 5, "alibaba": 3},
        further_seeds=1,
        varied=NodesAndTasks(256, 69_524),
        overload=NodesAndTasks(16, 40_000),
        readings={"google": NodesAndTasks(128, 17_400), "alibaba": NodesAndTasks(128, 50_000)},
        trace=NodesAndTasks(256, 69_524),
    ),
}
OWN = "L = 1.5, N = 4, W = 60 s"
L, N, W, PARTS = (1.2, 3.0), (1, 2, 8), (30, 300), (2, 4)
LOADS = (0.9, 0.97, 1.05)
READINGS = {
    "google": ("demand=0.1", "run_median_s=37", "closed_load=1.3"),
    "alibaba": ("demand=0.03", "run_median_s=2", "closed_load=1.3,demand=0.05"),
}


def seeds(size: LasSize, like: str, policy: str) -> int:
    first = policy in ("kairos", "las") or like == "google"
    return size.seeds[like] if first else size.further_seeds


def main_cases(size: LasSize) -> list[LasCase]:
    return [
        LasCase(policy, like, *size.main[like], seed)
        for like, policy in product(LIKES, POLICIES)
        for seed in range(seeds(size, like, policy))
    ]


def settings(size: LasSize) -> list[tuple[str, LasCase]]:
    """List what is varied, and the simulation; the paper's own values come first."""
    machine = size.varied
    rows = [(OWN, LasCase("las", "google", *machine, 0))]
    rows += [(f"L = {v:g}", LasCase(f"las,load-limit={v:g}", "google", *machine, 0)) for v in L]
    rows += [(f"N = {v}", LasCase(f"las,victims={v}", "google", *machine, 0)) for v in N]
    rows += [(f"W = {v} s", LasCase(f"las,spare-s={v}", "google", *machine, 0)) for v in W]
    return rows + [(f"{machine.nodes // divisor} nodes", part(size, "las", divisor)) for divisor in PARTS]


def part(size: LasSize, policy: str, divisor: int) -> LasCase:
    """Take a part of the machine, with as many tasks a node."""
    return LasCase(policy, "google", size.varied.nodes // divisor, size.varied.tasks // divisor, 0)


def varied_cases(size: LasSize) -> list[LasCase]:
    cases = [case for _, case in settings(size)]
    cases += [part(size, "kairos", divisor) for divisor in (1, *PARTS)]
    cases += [overload_case(size, policy, at) for policy, at in product(POLICIES, LOADS)]
    return cases + [case for row in readings(size) for case in row[2:]]


def overload_case(size: LasSize, policy: str, at: float) -> LasCase:
    return LasCase(policy, "alibaba", *size.overload, 0, f"load={at:g}")


def readings(size: LasSize) -> list[tuple[str, str, LasCase, LasCase]]:
    """List trace, changed reading, and kairos and las with it."""
    rows = []
    for like in LIKES:
        for more in ("", *READINGS[like]):
            kairos, las = (
                LasCase(policy, like, *size.readings[like], 0, more) for policy in ("kairos", "las")
            )
            rows.append((like, more or "as above", kairos, las))
    return rows


def trace_cases(size: LasSize) -> list[LasCase]:
    """List the simulations of Google's own tasks, resampled; none without a file of them."""
    if size.trace is None or trace_file() is None:
        return []
    return [LasCase(policy, "trace", *size.trace, 0) for policy in POLICIES]
