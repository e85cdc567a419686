"""``tenbin drift``: every coefficient of a node over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput
from tenbin.commands.files import ensure_writable, write_output
from tenbin.commands.options import JsonOption, StoreOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from profiles.checks.check import Check, CheckStore
    from profiles.checks.drift import Drift
    from profiles.records import Profile


def _complete_node(incomplete: str) -> list[str]:
    from profiles.checks.check import CheckStore

    return [name for name in CheckStore().nodes() if name.startswith(incomplete)]


def drift(
    node: Annotated[
        str,
        typer.Argument(
            help="A node of the store (default: this one).",
            metavar="[NODE]",
            autocompletion=_complete_node,
            show_default=False,
        ),
    ] = "",
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also quantities without a change, and those of profiles.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Also draw them into this HTML file, beside the siblings.", show_default=False),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a node changed over all its profiles and checks: levels, and when a new level began.

    Siblings are the other nodes of its kind in the store. Checks that others disturbed are left out.

    [bold]Examples[/bold]

      tenbin drift

      tenbin drift node7 --all --report node7.html
    """
    import socket

    from profiles.checks.check import CheckStore
    from profiles.checks.drift import drift as over_time
    from profiles.checks.drift import medians

    node = node or socket.gethostname()
    if report is not None:
        ensure_writable("--report", report)
    checks = CheckStore(store)
    own = checks.of_node(node)
    series = over_time(_profiles(node, store), own)
    if not series:
        raise BadInput(f"{node} has neither checks nor profiles", "make one with 'tenbin check'")
    others = {name: over_time([], of) for name, of in _siblings(checks, node, own).items()}
    if report is not None:
        from tenbin.report.comparison import drift_page

        write_output("--report", report, drift_page(node, series, others))
    if json:
        from tenbin.text import print_json

        beside = medians(others.values())
        told = [{**one.model_dump(mode="json"), "siblings_median": beside.get(one.title)} for one in series]
        print_json({"node": node, "siblings": sorted(others), "series": told})
        return
    _print(node, series, medians(others.values()), everything=everything)


def _profiles(node: str, store: Path | None) -> list[Profile]:
    from profiles.files.store import Store, load

    found = []
    for path in Store(store).of_node(node):
        try:
            found.append(load(path))
        except BadInput:  # a damaged profile is 'tenbin list's business
            continue
    return found


def _siblings(checks: CheckStore, node: str, own: Sequence[Check]) -> Mapping[str, Sequence[Check]]:
    """Read the checks of the other nodes of the same kind."""
    kind = own[-1].kind if own else ""
    found = {name: checks.of_node(name) for name in checks.nodes() if name != node and kind}
    return {name: of for name, of in found.items() if of and of[-1].kind == kind}


def _print(node: str, series: Sequence[Drift], beside: Mapping[str, float], *, everything: bool) -> None:
    from profiles.checks.drift import CHECKS
    from tenbin.commands.measure.check_text import signed
    from tenbin.terminal import SafeConsole
    from tenbin.text import number

    console = SafeConsole()
    shown = [one for one in series if everything or len(one.levels) > 1]
    of_checks = sum(one.source == CHECKS for one in series)
    console.print(
        f"{node}: {of_checks} quantities of checks, {len(series) - of_checks} of profiles; "
        f"{sum(len(one.levels) > 1 for one in series)} changed",
        markup=False,
    )
    for one in shown:
        console.print(one.title, style="cyan", markup=False)
        for level in one.levels:
            last = level is one.levels[-1]
            change = "" if level.change_ratio is None else signed(level.change_ratio)
            siblings = beside.get(one.title) if last and one.source == CHECKS else None
            also = "" if siblings is None else f"  siblings {number(siblings)}"
            since, until = (at.astimezone().strftime("%Y-%m-%d %H:%M") for at in (level.since, level.until))
            value = f"{number(level.value):>9} {one.unit:<8}"
            console.print(
                f"  {since} .. {until}  {level.n:>4}  {value} {change:>9}{also}",
                style="bold red" if last and one.finding else "",
                markup=False,
                soft_wrap=True,
            )
