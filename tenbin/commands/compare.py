"""``tenbin compare``: which differences between two profiles are real."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenbin.commands.options import JsonOption, StoreOption, complete_selector

if TYPE_CHECKING:
    from rich.console import Console

    from profiles.compare import Difference

PROFILE_HELP = "A profile: 'last', a node's name, an id, or a path to a profile.json."
STYLES = {"same": "dim", "higher": "bold", "lower": "bold"}


def compare(
    a: Annotated[str, typer.Argument(help=PROFILE_HELP, autocompletion=complete_selector, metavar="A")],
    b: Annotated[
        str, typer.Argument(help=PROFILE_HELP, autocompletion=complete_selector, metavar="B")
    ] = "last",
    everything: Annotated[
        bool, typer.Option("--all", help="Also the coefficients that do not differ.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Compare profile A with profile B: a difference is real where its 95 % interval excludes 0.

    [bold]Examples[/bold]

      tenbin compare 20261101 last
      tenbin compare node1 node2 --all
    """
    from profiles import compare as comparing
    from profiles.store import Store

    in_store = Store(store)
    first, second = in_store.load(a), in_store.load(b)
    differences = comparing.compare(first, second)
    drift = comparing.explain_drift(first, second)
    if json:
        import json as json_

        rows = [{**d.model_dump(mode="json"), "ratio": d.ratio} for d in differences]
        print(json_.dumps({"a": first.id, "b": second.id, "differences": rows, "drift": drift}, indent=1))
        return
    from rich.console import Console

    from tenbin.text import headline

    console = Console(highlight=False)
    console.print(f"A: {headline(first)}\nB: {headline(second)}", markup=False)
    if first.fingerprint != second.fingerprint:
        from agent.fingerprint import explain

        console.print(
            "The machines differ: " + "; ".join(explain(first.inventory, second.inventory)), markup=False
        )
    _print_differences(console, differences, everything)
    for sentence in drift:
        console.print(f"While measuring: {sentence}.", markup=False)


def _print_differences(console: Console, differences: list[Difference], everything: bool) -> None:
    from tenbin.text import number

    shown = [d for d in differences if everything or d.verdict != "same"]
    if shown:
        _print_row(console, ("", "A", "B", "unit", "B/A", "95 % of B - A", "verdict"), "")
    model = ""
    for d in shown:
        if d.model != model:
            console.print(f" {d.model}", style="cyan", markup=False)
        model = d.model
        limits = f"{number(d.low)} .. {number(d.high)}" if d.low is not None else "-"
        cells = (d.coefficient, number(d.a), number(d.b), d.unit, number(d.ratio), limits, d.verdict)
        _print_row(console, cells, STYLES.get(d.verdict, ""))
    both = [d for d in differences if d.intervals_overlap is not None]
    real = sum(d.verdict in ("higher", "lower") for d in both)
    apart = sum(not d.intervals_overlap for d in both)
    console.print(
        f"{len(both)} coefficients in both: {real} differ beyond their intervals "
        f"(about {0.05 * len(both):.0f} would by chance), {apart} have intervals that do not even overlap.",
        markup=False,
    )


def _print_row(console: Console, cells: tuple[str, ...], style: str) -> None:
    name, a, b, unit, ratio, limits, verdict = cells
    line = f"   {name:<11} {a:>9} {b:>9} {unit:<5} {ratio:>6} {limits:>22} {verdict}"
    console.print(line, style=style, markup=False, soft_wrap=True)
