"""``tenbin simulate``: what policies would make of a workload on a cluster."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from tenbin.commands.files import ensure_writable, write_output
from tenbin.commands.options import (
    JsonOption,
    StoreOption,
    complete_policy,
    complete_selector,
)
from tenbin.terminal import SafeConsole, table
from tenbin.text import duration, number, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from scheduler.model.jobs import Cluster
    from scheduler.prediction.profiles import MeasuredCluster
    from scheduler.simulator.metrics import Metrics
    from scheduler.simulator.settings import SimulationSummary
    from scheduler.simulator.trace import OutcomeRecorder, Sink
    from scheduler.workloads import Workload
    from scheduler.workloads.logs.estimates import Unstated

# What the table shows: metric, what people call it, as a duration or as it is
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
MOST_REASONS = 6  # lines of jobs that are in no figure
OPTIONAL = {"preemptions", "migrations", "killed", "energy_j"}  # shown where any is not 0


def complete_workload(incomplete: str) -> list[str]:
    """Complete generators, readers and files."""
    from glob import escape, glob

    from scheduler.workloads import GENERATORS, PREFIX, READERS

    names = [PREFIX + name for name in GENERATORS] + [f"{name}:" for name in READERS]
    found = glob(escape(incomplete) + "*")  # noqa: PTH207 (as it was typed)
    files = sorted(path + "/" * Path(path).is_dir() for path in found)
    return [name for name in names if name.startswith(incomplete)] + files


def simulate(
    *,
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            "-p",
            help="Name, or name,k=v,k=v; give several to compare them.",
            autocompletion=complete_policy,
        ),
    ],
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            "-w",
            help="A log or trace (SWF, Google 2011, Alibaba), or generator:NAME,k=v,k=v.",
            autocompletion=complete_workload,
        ),
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="A count, 512xgpu+512xcpu, or a TOML or JSON file.")
    ],
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="Costs of checkpoints and power as measured: a profile (see tenbin show), or CLASS=PROFILE.",
            autocompletion=complete_selector,
        ),
    ] = None,
    store: StoreOption = None,
    seed: Annotated[int, typer.Option(help="Of generators and policies.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many jobs, the first ones.")] = None,
    without_estimate: Annotated[
        str,
        typer.Option(
            metavar="unknown|actual|TIME",
            help="What policies take for the run time of a job that states none: nothing, the run time "
            "itself, or the same for all (30m).",
        ),
    ] = "unknown",
    gantt: Annotated[
        Path | None, typer.Option(help="Draw who ran where and when into this HTML file.", dir_okay=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Simulate policies on the same jobs and compare what came out.

    [bold]Examples[/bold]

      tenbin simulate -p fcfs -p easy -w KTH-SP2-1996-2.swf.gz -c 100

      tenbin simulate -p easy -w generator:lublin,jobs=5000,load=0.9 -c 128 --gantt easy.html

      tenbin simulate -p easy -w trace.swf -c 16xgpu+64xcpu --profile gpu=node7 --profile cpu=last
    """
    from scheduler.model.clusters import parse_cluster

    machine = parse_cluster(cluster)
    substitute = _substitute(without_estimate)
    if gantt is not None:
        ensure_writable("--gantt", gantt)
    taken = _measured(profile, machine, store) if profile else None
    if taken is not None:
        machine = taken.cluster
    jobs = _Jobs(workload, machine, seed, limit, taken, substitute)
    results, drawn = [], []
    for text in dict.fromkeys(policy):
        result, record, work = _run(text, jobs, SafeConsole(stderr=True), keep=gantt is not None)
        results.append(result)
        drawn.append((text, record.outcomes))
    if gantt is not None:
        from tenbin.report.schedule import page

        write_output("--gantt", gantt, page(drawn, machine))
    notes = taken.notes if taken is not None else None
    if json:
        head: dict[str, Any] = {
            "cluster": cluster,
            "workload": workload,
            "source": work.source,
            "note": work.note,
        }
        head |= {"without_estimate": without_estimate, "remarks": dict(work.remarks)}
        head |= {} if notes is None else {"measured": list(notes)}
        print_json({**head, "seed": seed, "results": results})
    else:
        told = _unstated(results[0], without_estimate) + _reasons("in the log", work.remarks)
        _print_table(results, work, gantt, (*told, *(notes or ())))


def _substitute(text: str) -> Unstated:
    """Read ``--without-estimate``."""
    from profiles.errors import BadInput
    from scheduler.workloads.logs.estimates import Unstated
    from tenbin.commands.quantities import duration_s

    if text in ("unknown", "actual"):
        return Unstated(actual=text == "actual")
    try:
        return Unstated(time_s=duration_s(text))
    except BadInput:
        remedy = "write unknown, actual, or for instance 30m"
        raise BadInput(f"--without-estimate {text!r} is none of its values", remedy) from None


def _unstated(result: dict[str, Any], choice: str) -> list[str]:
    """Say how many jobs state no run time, and what policies took; nothing where all state it."""
    count, all_jobs = result["without_estimate"], result["jobs"] + result["refused"]
    if not count:
        return []
    taken = {"unknown": "unknown (see --without-estimate)", "actual": "the run time itself"}.get(
        choice, choice
    )
    return [f"{count:,} of {all_jobs:,} jobs state no run time; policies took: {taken}"]


def _measured(given: list[str], machine: Cluster, store: Path | None) -> MeasuredCluster:
    """Read ``PROFILE`` (for every class) and ``CLASS=PROFILE``."""
    from profiles.store import Store
    from scheduler.prediction.profiles import measured_cluster

    chosen: dict[str, str] = {}
    for text in given:
        name, sign, selector = text.partition("=")
        if sign and "/" not in name:
            chosen[name] = selector
        else:
            chosen.update({pool.name: text for pool in machine.pools if pool.name not in chosen})
    profiles = Store(store)
    return measured_cluster(machine, {name: profiles.load(selector) for name, selector in chosen.items()})


class _Jobs(NamedTuple):
    """The jobs to simulate, and the cluster; ``measured`` has its costs where a profile is given."""

    workload: str
    machine: Cluster
    seed: int
    limit: int | None
    measured: MeasuredCluster | None
    substitute: Unstated


def _run(
    text: str, jobs: _Jobs, errors: Console, *, keep: bool
) -> tuple[dict[str, Any], OutcomeRecorder, Workload]:
    """Run one policy on the whole workload; return its figures, and the outcomes if they are kept."""
    from collections.abc import Iterable
    from dataclasses import replace
    from itertools import islice

    from profiles.errors import BadInput
    from scheduler.policies.registry import create
    from scheduler.simulator.metrics import Accumulator
    from scheduler.simulator.simulator import Simulator
    from scheduler.simulator.trace import OutcomeRecorder
    from scheduler.workloads import load

    machine, seed, limit, substitute = jobs.machine, jobs.seed, jobs.limit, replace(jobs.substitute)
    work = load(jobs.workload, machine, seed)
    metrics, record = Accumulator(machine), OutcomeRecorder()
    arrivals = work.arrivals
    if limit is not None:
        if not isinstance(arrivals, Iterable):
            raise BadInput("--limit: this workload reacts to the schedule", "give its own parameter jobs=")
        arrivals = islice(arrivals, limit)
    if isinstance(arrivals, Iterable):
        arrivals = substitute.filled(arrivals)
    elif substitute.actual or substitute.time_s is not None:
        raise BadInput("--without-estimate: this workload reacts to the schedule", "leave it out")
    sinks: list[Sink] = [metrics, record] if keep else [metrics]
    with _progress(text, errors) as progress:
        settings = replace(work.settings, seed=seed)
        if jobs.measured is not None:
            settings = settings.with_measured(jobs.measured)
        simulator = Simulator(machine, arrivals, create(text, seed), settings, sinks=sinks, progress=progress)
        summary = simulator.run()
    figures = {"policy": text, "without_estimate": substitute.jobs}
    figures |= _figures(metrics.metrics(), summary, work)
    if not figures["jobs"]:
        reasons = "; ".join(_left_out([figures])) or "there is none"
        what = f"workload {jobs.workload}: policy {text} has no job to run ({reasons})"
        raise BadInput(what, "choose another workload, cluster or policy")
    return figures, record, work


def _figures(metrics: Metrics, summary: SimulationSummary, work: Workload) -> dict[str, Any]:
    return {
        **metrics.to_dict(),
        "refused": sum(summary.refused.values()),
        "refused_reasons": summary.refused,
        "skipped": sum(work.skipped.values()),
        "skipped_reasons": dict(work.skipped),
        "decisions": summary.decisions,
        "most_jobs_in_system": summary.most_in_system,
        "wall_s": summary.wall_s,
        "jobs_per_s": summary.jobs / summary.wall_s if summary.wall_s > 0 else None,
    }


@contextmanager
def _progress(text: str, errors: Console) -> Iterator[Callable[[int, float], None] | None]:
    """Show on a terminal how far the simulation is."""
    if not errors.is_terminal:
        yield None
        return
    with errors.status(f"{text}: reading") as status:
        yield lambda jobs, now: status.update(f"{text}: {jobs:,} jobs have ended, day {now / 86400:,.0f}")


def _left_out(results: list[dict[str, Any]]) -> list[str]:
    """Say how many jobs are in no figure, and why; policies are named where they refuse different ones."""
    first, *others = results
    lines = _reasons("skipped", first["skipped_reasons"])
    if all(other["refused_reasons"] == first["refused_reasons"] for other in others):
        return lines + _reasons("refused", first["refused_reasons"])
    return lines + [
        line
        for result in results
        for line in _reasons(f"refused by {result['policy']}", result["refused_reasons"])
    ]


def _reasons(what: str, counts: dict[str, int]) -> list[str]:
    """Write a line for each of the most frequent reasons, and one for all others."""
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    if len(ranked) > MOST_REASONS:
        rest = ranked[MOST_REASONS - 1 :]
        reason = f"{len(rest)} other reasons (--json names all)"
        ranked[MOST_REASONS - 1 :] = [(reason, sum(count for _, count in rest))]
    return [f"{what}: {count:,} job{'s' * (count != 1)}: {reason}" for reason, count in ranked]


def _print_table(
    results: list[dict[str, Any]], work: Workload, gantt: Path | None, taken: Sequence[str] = ()
) -> None:
    console = SafeConsole()
    console.print(work.source, markup=False)
    figures = table("")
    for result in results:
        figures.add_column(escape(result["policy"]), justify="right", overflow="fold")
    for key, name, is_time in ROWS:
        values = [result[key] for result in results]
        if key in OPTIONAL and not any(values):
            continue
        shown = [
            "-" if v is None else duration(v) if is_time else f"{v:,}" if isinstance(v, int) else number(v)
            for v in values
        ]
        figures.add_row(name, *shown)
    console.print(figures)
    for note in (*_left_out(results), *filter(None, (work.note, *taken))):
        console.print(note, markup=False, soft_wrap=True)
    if gantt is not None:
        console.print(f"picture: {gantt}", markup=False)
