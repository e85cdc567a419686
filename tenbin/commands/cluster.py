"""The nodes of a cluster: measured, shown, and told to Slurm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from profiles.errors import INTERRUPTED, BadInput, Unavailable

if TYPE_CHECKING:
    from profiles.clusters import Survey
    from profiles.records import Profile, Settings
    from profiles.siblings import Odd, Value

MOST_IN_SQUARE = 12  # nodes of which all pairs fit on a terminal
# What is worth a column on a terminal, in this order; of several subjects the last (most cores, most ranks).
COLUMNS = {
    "reference_s": "CPU loop",
    "memory_bandwidth_gbs": "memory writes",
    "memory_slowdown_ratio": "beside a neighbour",
    "network_bandwidth_gbs": "large messages",
    "network_latency_s": "small messages",
    "W_base": "at rest",
    "power_w": "under load",
}


def profile_nodes(
    nodes: str, settings: Settings, machine: str, report: Path | None, store: Path | None, json: bool
) -> None:
    """``tenbin profile --nodes``."""
    from profiles.clusters import ClusterStore
    from profiles.store import Store
    from scheduler.engines.slurm.tools import Slurm
    from scheduler.site import selection, survey

    kept, slurm = ClusterStore(store), Slurm()
    partitions = slurm.partitions()
    chosen = selection.named(nodes, slurm.nodes(), partitions)
    kept.prepare()

    def tell(line: str) -> None:
        print(f"tenbin: {line}", file=sys.stderr, flush=True)

    made, found = survey.measure(slurm, chosen, partitions, settings, machine, tell)
    for name, profile in found.profiles.items():
        Store(store).save(profile, found.samples[name])
    if made.nodes:
        import pandas as pd

        kept.save(made, {"network": pd.DataFrame(found.exchanged)} if found.exchanged else {})
    show_cluster(made, found.profiles, json)
    if report and made.nodes:
        write_cluster_report(made, found.profiles, report)
        if not json:
            print(f"The report is in {report}")
    raise typer.Exit(_exit_code(made))


def _exit_code(made: Survey) -> int:
    if made.interrupted:
        return INTERRUPTED
    if not made.nodes:
        return Unavailable.exit_code
    return 1 if made.refused or any(one.failed for one in made.absent) else 0


def known(cluster: str, store: Path | None) -> tuple[Survey, dict[str, Profile]]:
    """The newest survey of a cluster (empty: of any), with its nodes' profiles."""
    from profiles.clusters import ClusterStore

    kept = ClusterStore(store)
    survey = kept.load(cluster)
    return survey, kept.profiles(survey)


def judged(survey: Survey, profiles: dict[str, Profile]) -> tuple[list[Value], list[Odd], dict[str, str]]:
    """All values of the nodes, who is odd, and which kind of node each is."""
    from agent.node_kind import node_kind
    from profiles.siblings import odd_ones, values

    kinds = {name: node_kind(profile.inventory).key for name, profile in profiles.items()}
    every = values(profiles, survey)
    return every, odd_ones(every, kinds), kinds


def write_cluster_report(survey: Survey, profiles: dict[str, Profile], output: Path) -> None:
    """The page of a cluster.

    Raises:
        BadInput: it cannot be written.
    """
    from profiles.files import write_whole
    from tenbin.report.cluster import page

    try:
        write_whole(output, page(survey, *judged(survey, profiles)))
    except OSError as error:
        what = f"report {output}: {error.strerror}"
        raise BadInput(what, "choose a file in a folder you may write") from error


def show_cluster(survey: Survey, profiles: dict[str, Profile], json: bool) -> None:
    """The nodes side by side, who is odd, the pairs, and what was not measured."""
    every, odd, _ = judged(survey, profiles)
    if json:
        import json as json_
        from dataclasses import asdict

        told = survey.model_dump(mode="json")
        told["values"] = [asdict(value) for value in every]
        told["odd"] = [asdict(one) | {"ratio": one.ratio, "sentence": str(one)} for one in odd]
        print(json_.dumps(told, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    marks = [mark for mark in ("emulated", "interrupted") if getattr(survey, mark)]
    title = f"{survey.cluster}: {len(survey.nodes)} nodes, {survey.id}"
    console.print(f"[bold]{title}[/bold]{' (' + ', '.join(marks).upper() + ')' if marks else ''}")
    if survey.nodes:
        _print_nodes(console, survey, every, odd)
        for quantity, scale, unit in (
            ("network_bandwidth_gbs", 1.0, "GB/s"),
            ("network_latency_s", 1e6, "µs"),
        ):
            _print_pairs(console, survey, quantity, scale, unit)
        _print_odd(console, survey, odd)
    for one in survey.refused:
        console.print(f"[yellow]not measured[/]  {one.node}: {one.reason}", soft_wrap=True)
        if one.remedy:
            console.print(f"  -> {one.remedy}", soft_wrap=True, markup=False)
    for gap in survey.absent:
        console.print(f"[yellow]not measured[/]  {gap.what}: {gap.reason}", soft_wrap=True)
        if gap.remedy:
            console.print(f"  -> {gap.remedy}", soft_wrap=True, markup=False)
    if survey.nodes:
        first = next(iter(survey.nodes))
        console.print(
            f"\nOne node: tenbin show {first}   The pictures: tenbin report --cluster {survey.cluster}"
        )


def _print_nodes(console: object, survey: Survey, every: list[Value], odd: list[Odd]) -> None:
    from rich.console import Console
    from rich.table import Table

    from tenbin.text import number

    assert isinstance(console, Console)
    strange = {(one.value.node, one.value.quantity) for one in odd}
    local = [value for value in every if value.subject != "to other nodes"]
    table = Table(box=None, padding=(0, 1))
    table.add_column("node")
    shown = [quantity for quantity in COLUMNS if any(v.quantity == quantity for v in local)]
    subjects = {q: [v.subject for v in local if v.quantity == q][-1] for q in shown}
    for quantity in shown:
        unit = next(v.unit for v in local if v.quantity == quantity)
        named = COLUMNS[quantity] if unit == "1" else f"{COLUMNS[quantity]}, {unit}"
        table.add_column(f"{named}\n[dim]{subjects[quantity]}[/]", justify="right")
    for node in survey.nodes:
        cells = []
        for quantity in shown:
            column = (quantity, subjects[quantity])
            v = next((v for v in local if v.node == node and v.column == column), None)
            style = "red" if (node, quantity) in strange else "dim" if v and v.poor else "none"
            cells.append(f"[{style}]{number(v.value if v else None)}[/]")
        table.add_row(node, *cells)
    console.print(table)


def _print_pairs(console: object, survey: Survey, quantity: str, scale: float, unit: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from tenbin.text import number

    assert isinstance(console, Console)
    pairs = {(a, b): c.value for a, b, c in survey.pairs(quantity)}
    if not pairs:
        return
    among_all = survey.between(quantity, *survey.nodes)
    what = "bandwidth" if scale == 1.0 else "latency"
    all_words = (
        f"; among all {len(survey.nodes)}: {number(scale * among_all.coefficients[0].value)} {unit}"
        if among_all and len(survey.nodes) > 2
        else ""
    )
    if len(survey.nodes) > MOST_IN_SQUARE:
        worst, best = min(pairs.values()) * scale, max(pairs.values()) * scale
        span = f"{number(worst)} to {number(best)} {unit}"
        console.print(f"\n[bold]{what} between {len(pairs)} pairs[/bold]: {span}{all_words}")
        return
    console.print(f"\n[bold]{what} between pairs, {unit}[/bold]{all_words}")
    table = Table(box=None, padding=(0, 1))
    table.add_column("")
    for node in survey.nodes:
        table.add_column(node, justify="right")
    for a in survey.nodes:
        row = [pairs.get((min(a, b), max(a, b))) for b in survey.nodes]
        table.add_row(a, *(number(scale * value) if value else "" for value in row))
    console.print(table)


def _print_odd(console: object, survey: Survey, odd: list[Odd]) -> None:
    from rich.console import Console

    assert isinstance(console, Console)
    console.print("\n[bold]Odd nodes[/bold]")
    for one in odd:
        console.print(f"  {one}", soft_wrap=True, markup=False)
    if not odd:
        from tenbin.report.cluster import nobody

        console.print(f"  {nobody(len(survey.nodes))}")
