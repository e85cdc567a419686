"""The nodes of a cluster: measured, shown, and told to Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from profiles.errors import INTERRUPTED, BadInput, Unavailable, UserError
from profiles.files.safe_files import write_whole
from profiles.quantities import number
from tenbin.commands.options import JsonOption, StoreOption, named, stored_profiles, write_output
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_answer, print_json, remark, say

if TYPE_CHECKING:
    from profiles.clusters import Between, Odd, Survey, Value
    from profiles.records import Profile, Settings

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
    nodes: str, settings: Settings, machine: str, *, report: Path | None, store: Path | None, json: bool
) -> None:
    """Measure nodes of a Slurm cluster (``tenbin profile --nodes``)."""
    from profiles.clusters import ClusterStore
    from scheduler.engines.slurm.admin import survey
    from scheduler.engines.slurm.admin.survey import ClusterMeasurement
    from scheduler.engines.slurm.slurm_commands import Slurm

    kept, slurm = ClusterStore(store), Slurm()
    partitions = slurm.partitions()
    chosen = survey.select_nodes(nodes, slurm.nodes(), partitions)
    kept.prepare()

    measurement = ClusterMeasurement(slurm, settings, machine=machine, tell=remark)
    made = measurement.measure(chosen, partitions)
    for name, profile in measurement.profiles.items():
        stored_profiles(store).save(profile, measurement.samples[name])
    if made.nodes:
        import pandas as pd

        rows = measurement.network_samples
        kept.save(made, {"network": pd.DataFrame(rows)} if rows else {})
    show_cluster(made, measurement.profiles, json)
    if report and made.nodes:
        write_cluster_report(made, measurement.profiles, report)
        if not json:
            say(f"The report is in {report}")
    raise typer.Exit(_exit_code(made))


def _exit_code(made: Survey) -> int:
    if made.interrupted:
        return INTERRUPTED
    if not made.nodes:
        return Unavailable.exit_code
    return 1 if made.refused or any(absence.failed for absence in made.absent) else 0


def known(cluster: str, store: Path | None) -> tuple[Survey, dict[str, Profile]]:
    """Load the newest survey of a cluster (empty, or ``last``: of any), with its nodes' profiles."""
    from profiles.clusters import ClusterStore

    kept = ClusterStore(store)
    survey = kept.load("" if cluster == "last" else cluster)
    return survey, kept.profiles(survey)


def judged(survey: Survey, profiles: dict[str, Profile]) -> tuple[list[Value], list[Odd], dict[str, str]]:
    """Return all values of the nodes, the odd nodes, and the kind of each node."""
    from agent.node_profile.identity import node_kind
    from profiles.clusters import odd_ones, values

    kinds = {name: node_kind(profile.inventory).key for name, profile in profiles.items()}
    every = values(profiles, survey)
    return every, odd_ones(every, kinds), kinds


def write_cluster_report(
    survey: Survey, profiles: dict[str, Profile], output: Path, *, interactive: bool = False
) -> None:
    """Write the page of a cluster."""
    from tenbin.report.comparison import cluster_page

    write_output("report", output, cluster_page(survey, *judged(survey, profiles), interactive=interactive))


def show_cluster(survey: Survey, profiles: dict[str, Profile], json: bool) -> None:
    """Print the nodes side by side, the odd ones, the pairs, and what was not measured."""
    every, odd, _ = judged(survey, profiles)
    if json:
        answer = survey.model_dump(mode="json")
        answer["values"] = [asdict(value) for value in every]
        answer["odd"] = [
            asdict(outlier) | {"ratio": outlier.ratio, "sentence": str(outlier)} for outlier in odd
        ]
        print_json(answer)
        return

    from profiles.card import trust
    from profiles.clusters import BETWEEN

    console = SafeConsole()
    marks = [mark for mark in ("emulated", "interrupted") if getattr(survey, mark)]
    count = len(survey.nodes)
    title = f"{survey.cluster}: {count} node{'s' * (count != 1)}, {survey.id}"
    console.print(f"[bold]{escape(title)}[/bold]{' (' + ', '.join(marks).upper() + ')' if marks else ''}")
    for node, profile in profiles.items():
        if (said := trust(profile)).state == "disturbed":
            console.plain(f"{node}: {said.sentence}", style="yellow", soft_wrap=True)
    if survey.nodes:
        _print_nodes(console, survey, every, odd)
        for of in BETWEEN:
            _print_pairs(console, survey, of)
        if len(survey.nodes) > 1:
            _print_odd(console, survey, odd)
    missing = [(refusal.node, refusal.reason, refusal.remedy) for refusal in survey.refused]
    missing += [(absence.what, absence.reason, absence.remedy) for absence in survey.absent]
    for what, reason, remedy in missing:
        console.print(f"[yellow]not measured[/]  {escape(f'{what}: {reason}')}", soft_wrap=True)
        if remedy:
            console.plain(f"  -> {remedy}", soft_wrap=True)
    if survey.nodes:
        first = next(iter(survey.nodes))
        pictures = f"tenbin profile report --cluster {survey.cluster}"
        console.plain(f"\nOne node: tenbin profile show {first}   The pictures: {pictures}")


def _print_nodes(console: SafeConsole, survey: Survey, every: list[Value], odd: list[Odd]) -> None:
    from profiles.clusters import TO_OTHERS

    strange = {(outlier.value.node, outlier.value.quantity) for outlier in odd}
    local = [value for value in every if value.subject != TO_OTHERS]
    known = {(v.node, *v.column): v for v in local}
    last = {v.quantity: v for v in local}
    shown = [last[quantity] for quantity in COLUMNS if quantity in last]
    headings = []
    for of in shown:
        named = COLUMNS[of.quantity] if of.unit == "1" else f"{COLUMNS[of.quantity]}, {of.unit}"
        headings.append(f"{escape(named)}\n[dim]{escape(of.subject)}[/]")
    nodes = table("node", *headings, left=("node",))
    for node in survey.nodes:
        cells = []
        for of in shown:
            v = known.get((node, *of.column))
            style = "red" if (node, of.quantity) in strange else "dim" if v and v.poor else "none"
            cells.append(f"[{style}]{number(v.value if v else None)}[/]")
        nodes.add_row(escape(node), *cells)
    console.print(nodes)


def _print_pairs(console: SafeConsole, survey: Survey, of: Between) -> None:
    pairs = {(a, b): of.scale * c.value for a, b, c in survey.pairs(of.quantity)}
    if not pairs:
        return
    among_all = survey.between(of.quantity, *survey.nodes)
    all_words = (
        f"; among all {len(survey.nodes)}: {number(of.scale * among_all.coefficients[0].value)} {of.unit}"
        if among_all and len(survey.nodes) > 2
        else ""
    )
    if len(survey.nodes) > MOST_IN_SQUARE:
        span = f"{number(min(pairs.values()))} to {number(max(pairs.values()))} {of.unit}"
        console.print(f"\n[bold]{of.what} between {len(pairs)} pairs[/bold]: {span}{all_words}")
        return
    console.print(f"\n[bold]{of.what} between pairs, {of.unit}[/bold]{all_words}")
    square = table("", *map(escape, survey.nodes))
    for a in survey.nodes:
        row = [pairs.get((min(a, b), max(a, b))) for b in survey.nodes]
        square.add_row(escape(a), *(number(value) if value else "" for value in row))
    console.print(square)


def _print_odd(console: SafeConsole, survey: Survey, odd: list[Odd]) -> None:
    from profiles.clusters import none_odd

    console.print("\n[bold]Odd nodes[/bold]")
    for outlier in odd:
        console.plain(f"  {outlier}", soft_wrap=True)
    if not odd:
        console.print(f"  {none_odd(len(survey.nodes))}")


# -- ``tenbin slurm config``: the profiles as lines of slurm.conf ------------------------------------------


LUA = "job_submit.lua"


def slurm_config(
    cluster: Annotated[str, typer.Argument(show_default=False)] = "",
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    job_submit: Annotated[Path | None, typer.Option(metavar="FILE", dir_okay=False)] = None,
    partition: str | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write NodeName lines for slurm.conf from the nodes' profiles (tenbin slurm profile).

    The lines have processors and memory as found. Feature: kind of node, speed of its memory, its OpenCL
    devices. Gres: its GPUs. Weight: Slurm takes slower nodes last, and nodes with GPUs after all others.
    Addresses, other features and Gres that a node has in Slurm already are kept.

    [bold]Examples[/bold]

      tenbin slurm config
      tenbin slurm config -o /etc/slurm/tenbin    # and in slurm.conf: include /etc/slurm/tenbin/nodes.conf

      tenbin slurm config --job-submit /run/tenbin.lease -o /etc/slurm    # and: JobSubmitPlugins=lua

    Args:
        cluster: Name of the cluster. (default: the one measured last)
        output: Folder in which to write nodes.conf (gres.conf where there are GPUs), or job_submit.lua.
        job_submit: Write job_submit.lua instead: jobs of plain sbatch then wait for tenbin up --take-over
            FILE while FILE is fresh. slurmctld must be able to read FILE.
        partition: With --job-submit: partition that tenbin schedules. (default: Slurm's default)
    """
    answer: object
    if job_submit is not None:
        from scheduler.engines.slurm.admin.slurm_conf import script

        files = answer = {LUA: script(job_submit.absolute(), partition)}
    elif partition is not None:
        raise BadInput("--partition needs --job-submit", "leave it out")
    else:
        files, answer = _node_files(cluster, store)
    print_answer(answer, partial(_write, output, files), json)


def _node_files(cluster: str, store: Path | None) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Return nodes.conf and, if there are GPUs, gres.conf; and their lines as records."""
    from scheduler.engines.slurm.admin.slurm_conf import conf_texts, node_lines

    survey, profiles = known(cluster, store)
    real = "tenbin slurm profile"
    if survey.emulated:
        raise BadInput(f"{survey.cluster} {survey.id} is emulated", f"measure the real nodes: {real}")
    if not profiles:
        raise BadInput(f"no profile of a node of {survey.cluster} is left", f"measure: {real}")
    lines = node_lines(profiles, judged(survey, profiles)[1], _known_to_slurm())
    title = f"By tenbin {survey.tenbin_version} from what it measured of {survey.cluster}, {survey.id}."
    nodes, gres = conf_texts(lines, title)
    records: list[dict[str, object]] = [
        {"NodeName": line.name, **line.settings, "gres.conf": line.gres} for line in lines
    ]
    return {"nodes.conf": nodes} | ({"gres.conf": gres} if gres else {}), records


def _known_to_slurm() -> Mapping[str, Mapping[str, str]]:
    from scheduler.engines.slurm.admin.slurm_conf import read_nodes
    from scheduler.engines.slurm.slurm_commands import Slurm

    try:
        return read_nodes(Slurm().call("scontrol", "--oneliner", "--all", "show", "node"))
    except UserError as error:
        remark(f"{error.what}: addresses and features are not kept")
        return {}


def _write(folder: Path | None, files: dict[str, str]) -> None:
    """Write the files into a folder; None: to the terminal."""
    if folder is None:
        print("\n# gres.conf:\n".join(files.values()), end="")
        return
    lua = folder / LUA
    if LUA in files and lua.exists() and "By tenbin" not in lua.read_text(errors="replace"):
        remedy = "choose another folder, and have it call tenbin_hold as its first lines say"
        raise BadInput(f"{lua} is there already, and not tenbin's", remedy)
    with named(f"--output {folder}", "choose a folder you may write"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text)
            print(folder / name)
