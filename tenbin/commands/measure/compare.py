"""``tenbin profile compare`` and ``drift``: two profiles side by side, and all of a node over time."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput
from profiles.quantities import counted, number, readable_unit
from tenbin.commands.measure.check import signed
from tenbin.commands.options import (
    JsonOption,
    StoreOption,
    complete_selector,
    ensure_page,
    stored_profiles,
    write_output,
)
from tenbin.terminal import SafeConsole
from tenbin.text import headline, is_known, print_json, readable, say, value

if TYPE_CHECKING:
    from profiles.checks.check import Check, CheckStore
    from profiles.checks.drift import Drift
    from profiles.compare import Difference
    from profiles.files.store import Store

PROFILE_HELP = "A profile: 'last', 'previous', a node's name, an id, a label, or a path to a profile.json."
STYLES = {"same": "dim", "higher": "bold", "lower": "bold"}


def compare(
    a: Annotated[str, typer.Argument(help=PROFILE_HELP, autocompletion=complete_selector, metavar="A")],
    b: Annotated[
        str, typer.Argument(help=PROFILE_HELP, autocompletion=complete_selector, metavar="B")
    ] = "last",
    *,
    everything: Annotated[bool, typer.Option("--all")] = False,
    of: Annotated[str, typer.Option(metavar="TEXT", show_default=False)] = "",
    report: Path | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Compare profile A with profile B: which is better at what, by how much, and how surely.

    A difference is sure where its 95 % interval excludes 0. In the table "same" says that the intervals
    explain the difference; "unknown" that a value is poor, or known on one side only, so that nothing can
    be said. Of run times T1 is the one on one core, A the mean parallelism, sigma its variance (Downey).

    [bold]Examples[/bold]

      tenbin profile compare previous last
      tenbin profile compare node1 node2 --of cg        # which is better for programs like NPB's CG?
      tenbin profile compare node1 node2 --of memory    # and for those that memory holds back?
      tenbin profile compare node1 node2 --report both.html

    Args:
        everything: Also the coefficients that do not differ, or are not known.
        of: All coefficients with this in their heading or the name of their model, and no others.
        report: Also write both profiles side by side to this HTML file.
    """
    from profiles import compare as comparing
    from profiles.files.store import load

    if report is not None:
        ensure_page("--report", report)
    in_store = stored_profiles(store)
    paths = in_store.find(a), in_store.find(b)
    _refuse_one(in_store, paths, a, b)
    first, second = map(load, paths)
    differences = [d for d in comparing.compare(first, second) if of.casefold() in _names(d).casefold()]
    if not differences:
        raise BadInput(f"--of {of}: no heading or model has it", "see the names: tenbin profile show")
    drift = comparing.explain_drift(first, second)
    summary = comparing.sentences(first, second)
    if report:
        from tenbin.report.comparison import page

        write_output("--report", report, page(first, second))
    if json:
        rows = [comparing.as_judged(d) for d in differences]
        print_json({"a": first.id, "b": second.id, "summary": summary, "differences": rows, "drift": drift})
        return

    console = SafeConsole()
    console.plain(f"A: {headline(first)}\nB: {headline(second)}")
    for sentence in summary:
        console.plain(sentence, style="bold")
    if first.fingerprint != second.fingerprint:
        from agent.node_profile.identity import explain

        console.plain("The machines differ: " + "; ".join(explain(first.inventory, second.inventory)))
    _print_differences(console, differences, everything or bool(of))
    for sentence in drift:
        console.plain(f"While measuring: {sentence}.")
    if report:
        say(f"The report is in {report}")


def _refuse_one(store: Store, paths: tuple[Path, Path], a: str, b: str) -> None:
    """Refuse A and B if both name the same profile; offer the earlier profile of that node."""
    if paths[0].resolve() != paths[1].resolve():
        return
    folder = paths[0].resolve().parent
    older = [path.parent.name for path in store.of_node(folder.parent.name) if path.parent.name < folder.name]
    remedy = (
        f"the one before it: tenbin profile compare {older[0]} {folder.name}"
        if older
        else "name another: see 'tenbin profile list'"
    )
    raise BadInput(f"'{a}' and '{b}' are the same profile, {folder.parent.name} {folder.name}", remedy)


def _names(difference: Difference) -> str:
    """Return the heading and the model of a coefficient, as ``tenbin profile show`` has them."""
    return f"{_heading(difference.probe)}: {difference.model}"


def _heading(probe: str) -> str:
    from probes.registry import PROBES

    return PROBES[probe].title if probe in PROBES else probe


def _print_differences(console: SafeConsole, differences: list[Difference], everything: bool) -> None:
    from profiles.compare import judge_difference

    in_a, in_b = ({d.probe for d in differences if getattr(d, side) is not None} for side in "ab")
    shown = [
        d
        for d in differences
        if everything or (d.verdict not in ("same", "unknown") and d.probe in in_a & in_b)
    ]
    if shown:
        _print_row(console, ("", "A", "B", "unit", "B/A", "95 % of B - A", "verdict"), "")
    model = ""
    for d in shown:
        if d.model != model:
            console.plain(f" {d.model}", style="cyan")
        model = d.model
        factor, unit = readable_unit(d.unit, d.a, d.b)
        span = [None if limit is None else factor * limit for limit in (d.low, d.high)]
        limits = f"{number(span[0])} .. {number(span[1])}" if d.low is not None else "-"
        of_a, of_b = (value(readable(c, d.of_a, d.of_b)) if c else "-" for c in (d.of_a, d.of_b))
        known = all(c is None or is_known(c) for c in (d.of_a, d.of_b))
        ratio = number(d.ratio) if known else "-"
        judged = judge_difference(d)
        better = f", {judged.of} better" if judged and judged.of and judged.surely_of(judged.of) else ""
        cells = (d.coefficient, of_a, of_b, unit, ratio, limits, d.verdict + better)
        _print_row(console, cells, STYLES.get(d.verdict, ""))
    for side, alone in () if everything else (("A", in_a - in_b), ("B", in_b - in_a)):
        if alone:
            headings = "; ".join(map(_heading, sorted(alone)))
            console.plain(f"Measured in {side} only, shown with --all: {headings}.")
    both = [d for d in differences if d.intervals_overlap is not None]
    real = sum(d.verdict in ("higher", "lower") for d in both)
    apart = sum(not d.intervals_overlap for d in both)
    unknown = sum(d.verdict == "unknown" for d in both)
    console.plain(
        f"{len(both)} coefficients in both: {real} differ beyond their intervals "
        f"(about {0.05 * len(both):.0f} would by chance), {apart} have intervals that do not even overlap; "
        f"of {unknown} it cannot be told (poor, or known on one side only)."
    )


def _print_row(console: SafeConsole, cells: tuple[str, ...], style: str) -> None:
    name, a, b, unit, ratio, limits, verdict = cells
    line = f"   {name:<11} {a:>9} {b:>9} {unit:<7} {ratio:>6} {limits:>22} {verdict}"
    console.plain(line, style=style, soft_wrap=True)


# -- ``tenbin profile drift``: every coefficient of a node over time ---------------------------------------


def _complete_node(incomplete: str) -> list[str]:
    from profiles.checks.check import CheckStore

    return [name for name in CheckStore().nodes() if name.startswith(incomplete)]


def drift(
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", autocompletion=_complete_node, show_default=False)
    ] = "",
    *,
    everything: Annotated[bool, typer.Option("--all")] = False,
    report: Path | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show how a node changed over all its profiles and checks: levels, and when a new level began.

    Siblings are the other nodes of its kind in the store. Checks that others disturbed are left out.

    [bold]Examples[/bold]

      tenbin profile drift

      tenbin profile drift node7 --all --report node7.html

    Args:
        node: A node of the store (default: this one).
        everything: Also quantities without a change, and those of profiles.
        report: Also draw them into this HTML file, beside the siblings.
    """
    from profiles.checks.check import CheckStore
    from profiles.checks.drift import drift as over_time
    from profiles.checks.drift import medians

    node = node or socket.gethostname()
    if report is not None:
        ensure_page("--report", report)
    checks = CheckStore(store)
    own = checks.of_node(node)
    series = over_time(list(stored_profiles(store).profiles(node)), own)
    if not series and own:
        what = f"{node} has no profile, and all of its {counted(len(own), 'check')} were disturbed"
        raise BadInput(what, "make one when the machine is quiet")
    if not series:
        raise BadInput(f"{node} has neither checks nor profiles", "make one with 'tenbin profile check'")
    others = {name: over_time([], of) for name, of in _siblings(checks, node, own).items()}
    if report is not None:
        from tenbin.report.comparison import drift_page

        write_output("--report", report, drift_page(node, series, others))
    if json:
        beside = medians(others.values())
        rows = [{**row.model_dump(mode="json"), "siblings_median": beside.get(row.title)} for row in series]
        print_json({"node": node, "siblings": sorted(others), "series": rows})
        return
    _print_drift(node, series, own, medians(others.values()), everything=everything)


def _siblings(checks: CheckStore, node: str, own: Sequence[Check]) -> Mapping[str, Sequence[Check]]:
    """Read the checks of the other nodes of the same kind."""
    kind = own[-1].kind if own else ""
    by_node = {name: checks.of_node(name) for name in checks.nodes() if name != node and kind}
    return {name: of for name, of in by_node.items() if of and of[-1].kind == kind}


def _print_drift(
    node: str, series: Sequence[Drift], own: Sequence[Check], beside: Mapping[str, float], *, everything: bool
) -> None:
    from profiles.checks.check import usable
    from profiles.checks.drift import CHECKS

    console = SafeConsole()
    shown = [row for row in series if everything or len(row.levels) > 1]
    of_checks = sum(row.source == CHECKS for row in series)
    left_out = len(own) - len(usable(own))
    console.plain(
        f"{node}: {counted(len(own), 'check')}, {left_out} disturbed and left out; "
        f"{of_checks} quantities of checks, {len(series) - of_checks} of profiles; "
        f"{sum(len(row.levels) > 1 for row in series)} changed"
    )
    for row in shown:
        console.plain(row.title, style="cyan")
        for level in row.levels:
            last = level is row.levels[-1]
            change = "" if level.change_ratio is None else signed(level.change_ratio)
            siblings = beside.get(row.title) if last and row.source == CHECKS else None
            factor, unit = readable_unit(row.unit, row.levels[-1].value)
            also = "" if siblings is None else f"  siblings {number(factor * siblings)}"
            since, until = (at.astimezone().strftime("%Y-%m-%d %H:%M") for at in (level.since, level.until))
            value = f"{number(factor * level.value):>9} {unit:<8}"
            console.plain(
                f"  {since} .. {until}  {level.n:>4}  {value} {change:>9}{also}",
                style="bold red" if last and row.finding else "",
                soft_wrap=True,
            )
