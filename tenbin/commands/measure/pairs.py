"""``tenbin program pairs``: which jobs get on with each other."""

from __future__ import annotations

import math
import os
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import INTERRUPTED, BadInput
from profiles.quantities import counted
from tenbin.commands.options import JsonOption, StoreOption, complete_job_profile, terminated_as_interrupted
from tenbin.option_values import duration_s
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_json, remark

if TYPE_CHECKING:
    from agent.job_profile.pair_trials import Program, Times
    from profiles.jobs import JobProfile
    from profiles.models import Prediction
    from scheduler.model.interference import Sockets
    from scheduler.policies.sharing.pairing import Direction, Suggestion

RULES = {"rule": "least with most pressure (Konishi et al.)", "matching": "least predicted loss (matching)"}


def pairs(
    jobs: Annotated[
        list[str] | None, typer.Argument(autocompletion=complete_job_profile, metavar="JOB...")
    ] = None,
    *,
    per_node: Annotated[int, typer.Option(min=2, max=8)] = 2,
    verify: bool = False,
    repetitions: Annotated[int, typer.Option(min=2)] = 6,
    limit: str = "30m",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Predict how much jobs slow each other down when two share a node, and say which pairs to make.

    From their job profiles (tenbin program profile); of jobs that were all measured over hosts, with what
    they do to each other on the network. With --verify every program runs alone and beside every other, again
    and again in random order; the noise floor is how much two runs alone differ.

    [bold]Examples[/bold]

      tenbin program pairs

      tenbin program pairs --per-node 4

      tenbin program pairs stencil lu --verify

    Args:
        jobs: Job profiles. (default: all of this kind of node)
        per_node: Most jobs that may share a node.
        verify: Run the pairs for real, and print what was measured beside.
        repetitions: With --verify: how often each is run.
        limit: With --verify: end a run that takes longer.
    """
    from scheduler.policies.sharing.pairing import directions, over_network, suggestions

    known = _known(jobs or [], store)
    cores = _room(known)
    predicted, advice = directions(known), suggestions(known, per_node, cores)
    times = _verified(known, repetitions, duration_s(limit, "--limit")) if verify else None
    rows = [_row(direction, known, times) for direction in predicted]
    sockets, why_not = _sockets(known)
    if json:
        noise = {job.name: times.noise(job.name, job.clock) for job in known} if times else None
        advised = [
            {field: getattr(suggestion, field) for field in ("rule", "groups", "gain_percent", "excluded")}
            | {"placements": _placed(suggestion, known, sockets)}
            for suggestion in advice
        ]
        answer = {"directions": rows, "suggestions": advised, "noise_ratio": noise}
        more = {"network": over_network(known), "no_placements": why_not or None}
        print_json(answer | more)
    else:
        _print(rows, advice, known, times)
        _print_placements(advice, known, sockets, why_not)
    raise typer.Exit(INTERRUPTED if times is not None and times.interrupted else 0)


def _known(names: list[str], store: Any) -> list[JobProfile]:
    from agent.node_profile.identity import node_kind
    from profiles.files.store import JobStore, load_job

    kind, stored = node_kind(), JobStore(store)
    jobs = [stored.load(name, kind.key) for name in dict.fromkeys(names)]
    jobs = jobs or [load_job(path) for path in stored.newest(kind.key).values()]
    if not jobs:
        raise BadInput(
            f"no job profile of this kind of node in {stored.root}",
            "make one with: tenbin program profile NAME -- CMD...",
        )
    for job in jobs:
        if job.kind.key != kind.key:
            remark(f"{job.name} was measured on another kind of node ({job.kind.title})")
    if len({job.kind.key for job in jobs}) > 1:
        raise BadInput("the job profiles are of different kinds of node", "see: tenbin program list")
    return jobs


def _verified(known: list[JobProfile], repetitions: int, limit_s: float) -> Times:
    from agent.job_profile.pair_trials import run_pairs
    from probes.topology import usable_cores

    cpus = usable_cores()
    programs = _programs(known)
    pairs = list(combinations_with_replacement(range(len(programs)), 2))
    room = min((len(cores) for program in programs for cores in program.host_cores), default=len(cpus))
    for a, b in pairs:
        if programs[a].cores + programs[b].cores > room:
            both = f"{programs[a].name} ({programs[a].cores}) and {programs[b].name} ({programs[b].cores})"
            raise BadInput(
                f"--verify: {both} need more than the {counted(room, 'core')} here", "name other jobs"
            )

    with terminated_as_interrupted():
        return run_pairs(programs, pairs, cpus, repetitions, limit_s=limit_s, tell=remark)


def _room(known: list[JobProfile]) -> int | None:
    """Return the cores of a node, if this one is of the jobs' kind; over hosts, or of another kind, None."""
    from agent.node_profile.identity import node_kind
    from probes.topology import usable_cores

    here = node_kind().key
    alike = all(job.kind.key == here and not job.hosts for job in known)
    return len(usable_cores()) if alike else None


def _sockets(known: list[JobProfile]) -> tuple[Sockets | None, str]:
    """Return the sockets of this node if jobs can be placed on several; else the reason."""
    from agent.inventory import Roots, read_network
    from probes.topology import read_topology
    from profiles.records import Settings
    from scheduler.model.interference import sockets_of

    if _room(known) is None:
        return None, "the jobs' node is not this one, or several"
    topology = read_topology(Path("/sys"), os.sched_getaffinity(0))
    layout = sockets_of(topology, read_network(Roots.of(Settings())))
    return (None, layout.why_not) if layout.why_not else (layout, "")


def _placed(suggestion: Suggestion, known: list[JobProfile], sockets: Sockets | None) -> list[dict[str, Any]]:
    """Return, for each job of each group, the paper's word for its placement, and its CPUs here."""
    from scheduler.model.interference import WORDS

    if sockets is None:
        return []
    cores = {job.name: job.cores for job in known}
    rows = []
    for group, bindings in zip(suggestion.groups, suggestion.bindings, strict=True):
        laid = sockets.lay(bindings, [cores[name] for name in group])
        for i, (name, binding) in enumerate(zip(group, bindings, strict=True)):
            rows.append({"job": name, "placement": WORDS[binding], "cpus": laid[i] if laid else None})
    return rows


def _print_placements(
    advice: list[Suggestion], known: list[JobProfile], sockets: Sockets | None, why_not: str
) -> None:
    if sockets is None:
        print(f"\nNo placements (4x2, 2x4, 2x4F, 2x4B): {why_not}.")
        return
    for suggestion in advice:
        print(f"\nPlacements by the rule of Konishi et al., {RULES[suggestion.rule]}:")
        for row in _placed(suggestion, known, sockets):
            cpus = "no room for that" if row["cpus"] is None else f"CPUs {', '.join(map(str, row['cpus']))}"
            print(f"  {row['job']} {row['placement']}: {cpus}")
    if not sockets.card:
        print("  (which socket is next to the network card is not known here)")


def _programs(known: list[JobProfile]) -> list[Program]:
    """List the programs to run: over the hosts that all jobs were measured on, else here."""
    from agent.job_profile.pair_trials import program_of
    from agent.job_profile.session import cores_of
    from probes.mpi.runner import find_mpi
    from scheduler.policies.sharing.pairing import over_network

    mpi = find_mpi() if any(job.mpi for job in known) else None
    hosts = known[0].hosts if over_network(known) else ()
    if hosts and len({job.hosts for job in known}) > 1:
        raise BadInput(
            "--verify: the jobs were measured on different hosts", "see: tenbin program list --json"
        )
    if not hosts and (far := [job.name for job in known if job.hosts]):
        raise BadInput(
            f"--verify: {', '.join(far)} run over hosts, the others here",
            "name those over hosts, or the others, or measure all with --hosts",
        )
    cores = tuple(cores_of(hosts, mpi)[0]) if mpi and hosts else ()
    return [program_of(job, mpi if job.mpi else None, cores) for job in known]


def _row(direction: Direction, known: list[JobProfile], times: Times | None) -> dict[str, Any]:
    from profiles.stats import median_interval

    row: dict[str, Any] = {"job": direction.job, "beside": direction.beside}
    row["predicted"] = _plain(direction.predicted)
    if times is None:
        return row
    clock = next(job.clock for job in known if job.name == direction.job)
    ratios = times.slowdowns(direction.job, direction.beside, clock)
    if ratios:
        value, low, high = median_interval(ratios)
        row["measured"] = {"value": value, "low": low, "high": high, "n": len(ratios), "clock": clock}
        row["error"] = direction.predicted.value - value if direction.predicted else None
    return row


def _plain(prediction: Prediction | None) -> dict[str, float | None] | None:
    """Convert to JSON; bounds that are not known are null."""
    if prediction is None:
        return None
    low, high = (prediction.low, prediction.high) if math.isfinite(prediction.high) else (None, None)
    return {"value": prediction.value, "low": low, "high": high}


def _print(
    rows: list[dict[str, Any]], advice: list[Suggestion], known: list[JobProfile], times: Times | None
) -> None:
    from scheduler.policies.sharing.pairing import over_network

    headings = ["job", "beside", "predicted", "95 % interval"]
    headings += ["measured", "95 % interval", "error"] if times else []
    console, forecasts = SafeConsole(), table(*headings, left=("job", "beside"))
    for row in rows:
        cells = [row["job"], row["beside"], *_cells(row["predicted"])]
        if times is not None:
            error = row.get("error")
            cells += [*_cells(row.get("measured")), "-" if error is None else f"{error:+.2f}"]
        forecasts.add_row(*cells)
    console.print(forecasts)
    if times is not None:
        floors = ", ".join(f"{job.name} {times.noise(job.name, job.clock):.1%}" for job in known)
        console.print(f"Noise floor (how much two runs alone differ): {floors}")
    for suggestion in advice:
        groups = "; ".join(
            " + ".join(group) if len(group) > 1 else f"{group[0]} alone" for group in suggestion.groups
        )
        console.plain(f"\n{RULES[suggestion.rule]}: {groups}")
        console.plain(f"  gains {suggestion.gain_percent:.0f} % over running one after the other")
        if suggestion.excluded:
            passed = "; ".join(" + ".join(pair) for pair in suggestion.excluded)
            console.plain(f"  not together, because of the network, if avoidable: {passed}")
    if not over_network(known) and any(job.network for job in known):
        console.plain("\nWithout the network: not all of them were measured over hosts.")
    if quick := [job.name for job in known if job.quick]:
        console.plain(f"\nFrom quick profiles, few repetitions and levels: {', '.join(quick)}")
    doubtful = [job.name for job in known if job.note]
    if doubtful:
        console.plain(f"\nDoubtful, see tenbin program show: {', '.join(doubtful)}")


def _cells(prediction: dict[str, Any] | None) -> list[str]:
    if prediction is None:
        return ["-", ""]
    low, high = prediction["low"], prediction["high"]
    return [f"{prediction['value']:.2f}x", "unknown" if low is None else f"{low:.2f} .. {high:.2f}"]
