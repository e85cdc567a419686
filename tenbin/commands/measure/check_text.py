"""A check as people read it: a table, or one line for logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from profiles.checks.check import Check, Verdict
from profiles.quantities import Better, better

if TYPE_CHECKING:
    from profiles.checks.check import Change


STYLES = {Verdict.PASS: "green", Verdict.CHANGED: "red", Verdict.DISTURBED: "yellow", Verdict.UNKNOWN: "dim"}
STATE_STYLES = {"worse": "bold red", "better": "bold green", "same": "", "unknown": "dim"}
STATED = ("worse", "better")
SHORT = 3  # changes in a line for logs
TITLES = {  # in the order of the table
    "compute_gflops": "arithmetic of a core",
    "compute_core_ratio": "slowest core",
    "compute_clock_ghz": "clock of the cores",
    "compute_core_clock_ratio": "slowest clock",
    "stream_bandwidth_gbs": "memory, {kernel}, cores: {cores}",
    "access_latency_ns": "latency in {level}",
    "message_latency_s": "message of {size}",
    "storage_read_mbs": "storage, read",
    "storage_write_mbs": "storage, write",
    "storage_random_read_p50_s": "storage, 4 KiB read",
    "storage_fsync_p50_s": "storage, 4 KiB fsync",
}
ORDER = list(TITLES)
MOST_TOLD = 1.0  # larger losses are not worth a number


def title(quantity: str, labels: dict[str, str]) -> str:
    """Name a figure for people."""
    form = TITLES.get(quantity, quantity)
    if labels.get("numa", "local") != "local":
        form += ", NUMA node {numa}"
    if "hosts" in labels:
        form += " to {hosts}"
    try:
        return form.format(**labels)
    except KeyError:
        return f"{quantity} {' '.join(labels.values())}".strip()


def signed(ratio: float) -> str:
    """Write a change with its sign: bandwidth -8.1 %, latency +12 %."""
    return f"{100 * ratio:+.1f} %"


def line(check: Check) -> str:
    """Write a check in one line, for logs and for the reason of a drained node."""
    parts = [f"tenbin check: {check.node} {check.verdict.value}: {check.reason}"]
    parts += [f"{title(f.quantity, f.labels)} {signed(f.change_ratio)}" for f in check.findings[:SHORT]]
    parts += [cause.sentence for cause in check.causes]
    if check.false_alarm_ratio is not None:
        parts.append(f"false alarms at most {100 * check.false_alarm_ratio:g} %")
    return "; ".join(parts)


def print_check(check: Check) -> None:
    """Print verdict, figures, causes and consequences."""
    from tenbin.terminal import SafeConsole
    from tenbin.text import duration

    console = SafeConsole()
    kind = "quick check" if check.quick else "check"
    took = duration(round(check.conditions.duration_s, 1))
    style = STYLES[check.verdict]
    console.print(f"{check.node}: {kind} in {took}, against {check.against}", markup=False)
    console.print(f"{check.verdict.value.upper()}: {check.reason}", style=style, markup=False)
    if check.changes:
        console.print(_table(check))
    for heading, sentences in (
        ("since", list(_since(check))),
        ("why", ["; ".join(filter(None, (c.sentence, c.remedy))) for c in check.causes]),
        ("differs", check.differences),
        ("means", check.consequences),
        ("not measured", [f"{a.what}: {a.reason}" for a in check.absent]),
        ("quiet", [check.conditions.quiet] if check.conditions.quiet else []),
    ):
        for sentence in sentences:
            console.print(f"  {heading}: {sentence}", markup=False)
    console.print(f"  {_power(check)}", markup=False, style="dim")


def _table(check: Check) -> object:
    from tenbin.terminal import table
    from tenbin.text import number

    made = table("", "now", "was", "unit", "change", "95 %", "tells", left=("", "unit"), padding=(0, 1, 0, 0))
    for c in sorted(check.changes, key=_place):
        known = c.p is not None and c.low is not None and c.high is not None
        way = 1 if better(c.quantity) is Better.LOWER else -1
        limits = sorted(100 * way * loss for loss in (c.low or 0.0, c.high or 0.0))
        scale, unit = (1e6, "us") if c.unit == "s" else (1.0, c.unit)
        made.add_row(
            f"  {title(c.quantity, c.labels)}{f' ({c.note})' if c.note and c.state == 'worse' else ''}",
            number(scale * c.now),
            number(scale * c.was) if known else "",
            unit,
            signed(c.change_ratio) if known else "",
            f"{limits[0]:+.0f} .. {limits[1]:+.0f}" if known else "",
            _told(c.tells_ratio),
            style=STATE_STYLES[c.state],
        )
    return made


def _since(check: Check) -> Iterator[str]:
    """Say of each change when it was first seen."""
    for c in sorted(check.changes, key=_place):
        if c.since and c.state in STATED:
            yield f"{c.since.astimezone():%Y-%m-%d %H:%M}: {title(c.quantity, c.labels)}"


def _place(change: Change) -> tuple[int, str]:
    known = change.quantity in ORDER
    return ORDER.index(change.quantity) if known else len(ORDER), title(change.quantity, change.labels)


def _told(tells_ratio: float | None) -> str:
    if tells_ratio is None:
        return ""
    return f">{100 * MOST_TOLD:.0f} %" if tells_ratio > MOST_TOLD else f"{100 * tells_ratio:.0f} %"


def _power(check: Check) -> str:
    """Say the rate of false alarms, and the losses that are told."""
    known = [c for c in check.changes if c.tells_ratio is not None]
    if not known or check.false_alarm_ratio is None:
        return "the first checks after a profile only learn: tenbin check --quick --baseline 8"
    rate = f"{100 * check.false_alarm_ratio:g} %"
    references = max(c.references for c in known)
    return (
        f"of checks of an unchanged machine at most {rate} say 'changed' ({len(known)} figures together); "
        f"'tells': the loss that one check finds here in 95 of 100 cases, by {references} earlier checks"
    )
