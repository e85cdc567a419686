"""``tenbin compare``: two profiles side by side, and which of their differences are real."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput
from tenbin.commands.files import write_output
from tenbin.commands.options import JsonOption, StoreOption, complete_selector
from tenbin.terminal import SafeConsole
from tenbin.text import headline, number, print_json, say, value

if TYPE_CHECKING:
    from rich.console import Console

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
    everything: Annotated[
        bool, typer.Option("--all", help="Also the coefficients that do not differ, or are not known.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Also write both profiles side by side to this HTML file."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Compare profile A with profile B: which is better at what, by how much, and how surely.

    A difference is sure where its 95 % interval excludes 0. In the table "same" says that the intervals
    explain the difference; "unknown" that a value is poor, or known on one side only, so that nothing can
    be said.

    [bold]Examples[/bold]

      tenbin compare previous last
      tenbin compare node1 node2 --all
      tenbin compare node1 node2 --report both.html
    """
    from profiles import compare as comparing
    from profiles.compare import sentences
    from profiles.files.store import Store, load

    in_store = Store(store)
    paths = in_store.find(a), in_store.find(b)
    _refuse_one(in_store, paths, a, b)
    first, second = map(load, paths)
    differences = comparing.compare(first, second)
    drift = comparing.explain_drift(first, second)
    summary = sentences(first, second)
    if report:
        from tenbin.report.comparison import page

        write_output("--report", report, page(first, second))
    if json:
        rows = [_as_json(d) for d in differences]
        told = {"a": first.id, "b": second.id, "summary": summary, "differences": rows, "drift": drift}
        print_json(told)
        return

    console = SafeConsole()
    console.print(f"A: {headline(first)}\nB: {headline(second)}", markup=False)
    for sentence in summary:
        console.print(sentence, style="bold", markup=False)
    if first.fingerprint != second.fingerprint:
        from agent.node_profile.identity import explain

        console.print(
            "The machines differ: " + "; ".join(explain(first.inventory, second.inventory)), markup=False
        )
    _print_differences(console, differences, everything)
    for sentence in drift:
        console.print(f"While measuring: {sentence}.", markup=False)
    if report:
        say(f"The report is in {report}")


def _as_json(difference: Difference) -> dict[str, object]:
    """Add to a difference which is better; null in one profile only, or where neither is better (power)."""
    from profiles.compare import judge_difference

    found = judge_difference(difference)
    judged = {"better": (found and found.of) or None, "certainty": found and str(found.certainty)}
    return {**difference.model_dump(mode="json"), "ratio": difference.ratio, **judged}


def _refuse_one(store: Store, paths: tuple[Path, Path], a: str, b: str) -> None:
    """Refuse A and B if both name the same profile; offer the earlier profile of that node."""
    if paths[0].resolve() != paths[1].resolve():
        return
    folder = paths[0].resolve().parent
    older = [path.parent.name for path in store.of_node(folder.parent.name) if path.parent.name < folder.name]
    remedy = (
        f"the one before it: tenbin compare {older[0]} {folder.name}"
        if older
        else "name another: see 'tenbin list'"
    )
    raise BadInput(f"'{a}' and '{b}' are the same profile, {folder.parent.name} {folder.name}", remedy)


def _print_differences(console: Console, differences: list[Difference], everything: bool) -> None:
    shown = [d for d in differences if everything or d.verdict not in ("same", "unknown")]
    if shown:
        _print_row(console, ("", "A", "B", "unit", "B/A", "95 % of B - A", "verdict"), "")
    model = ""
    for d in shown:
        if d.model != model:
            console.print(f" {d.model}", style="cyan", markup=False)
        model = d.model
        limits = f"{number(d.low)} .. {number(d.high)}" if d.low is not None else "-"
        of_a, of_b = (value(c) if c else "-" for c in (d.of_a, d.of_b))
        ratio = "-" if "not known" in (of_a, of_b) else number(d.ratio)
        cells = (d.coefficient, of_a, of_b, d.unit, ratio, limits, d.verdict)
        _print_row(console, cells, STYLES.get(d.verdict, ""))
    both = [d for d in differences if d.intervals_overlap is not None]
    real = sum(d.verdict in ("higher", "lower") for d in both)
    apart = sum(not d.intervals_overlap for d in both)
    unknown = sum(d.verdict == "unknown" for d in both)
    console.print(
        f"{len(both)} coefficients in both: {real} differ beyond their intervals "
        f"(about {0.05 * len(both):.0f} would by chance), {apart} have intervals that do not even overlap; "
        f"of {unknown} it cannot be told (poor, or known on one side only).",
        markup=False,
    )


def _print_row(console: Console, cells: tuple[str, ...], style: str) -> None:
    name, a, b, unit, ratio, limits, verdict = cells
    line = f"   {name:<11} {a:>9} {b:>9} {unit:<5} {ratio:>6} {limits:>22} {verdict}"
    console.print(line, style=style, markup=False, soft_wrap=True)
