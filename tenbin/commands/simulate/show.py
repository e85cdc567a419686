"""Tables of ``tenbin simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from scheduler.simulator.metrics import Window
from tenbin.commands.simulate.run import PolicyComparison, PolicyResult, left_out
from tenbin.terminal import SafeConsole, table
from tenbin.text import duration, number

# Metric, its name for people, as a duration or as it is
ROWS = (
    ("jobs", "jobs", False),
    ("mean_wait_s", "wait, mean", True),
    ("p95_wait_s", "wait, 95 %", True),
    ("p99_wait_s", "wait, 99 %", True),
    ("max_wait_s", "wait, longest", True),
    ("mean_turnaround_s", "turnaround, mean", True),
    ("bsld_mean", "bounded slowdown, mean", False),
    ("p95_slowdown", "slowdown, 95 %", False),
    ("p99_slowdown", "slowdown, 99 %", False),
    ("makespan_s", "makespan", True),
    ("utilisation_ratio", "utilisation", False),
    ("preemptions", "preemptions", False),
    ("migrations", "migrations", False),
    ("killed", "killed at their limit", False),
    ("energy_j", "energy, J", False),
    ("jobs_per_s", "simulated jobs/s", False),
)
NAMES = {key: (name, is_time) for key, name, is_time in ROWS}
OPTIONAL = {"preemptions", "migrations", "killed", "energy_j"}  # shown where any is not 0


def unstated(result: dict[str, Any], choice: str) -> list[str]:
    """Say how many jobs state no run time, and what policies took; nothing where all state it."""
    count = result["without_estimate"]
    all_jobs = result["jobs"] + result["not_counted"] + result["refused"]
    if not count:
        return []
    taken = {"unknown": "unknown (see --without-estimate)", "actual": "the run time itself"}.get(
        choice, choice
    )
    return [f"{count:,} of {all_jobs:,} jobs state no run time; policies took: {taken}"]


def window_note(result: dict[str, Any], window: Window | None) -> list[str]:
    """Say which jobs count; nothing if all do."""
    if window is None:
        return []
    counted, left = result["jobs"], result["not_counted"]
    until = f"before {duration(window.to_s)}" if window.to_s < float("inf") else "to the end"
    jobs = f"{counted:,} of {counted + left:,} jobs"
    return [f"counted: {jobs}, submitted from {duration(window.from_s)} {until} of the workload's time"]


def print_results(
    results: Sequence[PolicyResult], notes: Sequence[str], comparison: PolicyComparison | None
) -> None:
    """Print the metrics of all policies, their differences, and the notes below."""
    console = SafeConsole()
    figures = [result.figures for result in results]
    work = results[0].work
    console.print(work.source, markup=False)
    shown = table("")
    for result in figures:
        shown.add_column(escape(result["policy"]), justify="right", overflow="fold")
    for key, name, is_time in ROWS:
        values = [result[key] for result in figures]
        if key not in OPTIONAL or any(values):
            shown.add_row(name, *(_value(value, is_time) for value in values))
    console.print(shown)
    if comparison is not None:
        _print_differences(console, comparison)
    for note in (*left_out(figures), *filter(None, (work.note, *notes))):
        console.print(note, markup=False, soft_wrap=True)


def _value(value: float | None, is_time: bool) -> str:
    if value is None:
        return "-"
    if is_time:
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _print_differences(console: SafeConsole, comparison: PolicyComparison) -> None:
    for policy, differences in comparison.differences.items():
        title = escape(f"{policy} less {comparison.against}")
        shown = table(title, "difference", "95 % from", "to", "surely", left={title})
        for one in differences:
            name, is_time = NAMES[one.metric]
            if one.metric not in OPTIONAL or one.difference:
                values = (_signed(value, is_time) for value in (one.difference, one.low, one.high))
                shown.add_row(name, *values, one.verdict)
        console.print(shown)
    console.print(
        f"intervals: {comparison.resamples} resampled workloads, from {comparison.blocks} blocks of "
        f"{duration(comparison.length_s)}",
        markup=False,
        soft_wrap=True,
    )
    if comparison.left_out:
        console.print(f"not resampled: {comparison.left_out:,} jobs after the last whole block", markup=False)


def _signed(value: float, is_time: bool) -> str:
    sign = "-" if value < 0 else "+" if value > 0 else ""
    return sign + (duration(abs(value)) if is_time else number(abs(value)))
