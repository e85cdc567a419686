"""``tenbin simulate``: what policies would make of a workload on a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape as plain

from profiles.errors import BadInput, UserError
from profiles.quantities import duration, number
from tenbin.commands.options import (
    JsonOption,
    StoreOption,
    complete_policy,
    complete_selector,
    ensure_page,
    ensure_writable,
    given,
    stored_profiles,
    write_output,
)
from tenbin.option_values import duration_s
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_json

if TYPE_CHECKING:
    from scheduler.evaluations.policy_runs import Experiment, PolicyComparison, PolicyResult, Setup
    from scheduler.model.jobs import Cluster
    from scheduler.prediction.profiles import MeasuredCluster
    from scheduler.simulator.metrics import Cut, Window
    from scheduler.workloads.arrivals import Unstated

FEWEST_RESAMPLES = 10


def complete_workload(incomplete: str) -> list[str]:
    """Complete generators, readers and files."""
    from scheduler.workloads import GENERATORS, PREFIX, READERS

    names = [PREFIX + name for name in GENERATORS] + [f"{name}:" for name in READERS]
    paths = glob(escape(incomplete) + "*")  # noqa: PTH207 (as it was typed)
    files = sorted(path + "/" * Path(path).is_dir() for path in paths)
    return [name for name in names if name.startswith(incomplete)] + files


def simulate(
    context: typer.Context,
    *,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", autocompletion=complete_policy)
    ] = None,
    workload: Annotated[str, typer.Option("--workload", "-w", autocompletion=complete_workload)] = "",
    cluster: Annotated[str, typer.Option("--cluster", "-c")] = "",
    profile: Annotated[list[str] | None, typer.Option(autocompletion=complete_selector)] = None,
    store: StoreOption = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    without_estimate: Annotated[str, typer.Option(metavar="unknown|actual|TIME")] = "unknown",
    warm_up: Annotated[str | None, typer.Option(metavar="10%|2d|500jobs")] = None,
    cool_down: Annotated[str | None, typer.Option(metavar="10%|2d|500jobs")] = None,
    resamples: Annotated[int, typer.Option(min=0)] = 0,
    block: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    jobs_out: Annotated[Path | None, typer.Option(metavar="FILE.csv|FILE.swf", dir_okay=False)] = None,
    gantt: Annotated[Path | None, typer.Option(dir_okay=False)] = None,
    experiment: Annotated[Path | None, typer.Option(metavar="FILE.toml", dir_okay=False)] = None,
    json: JsonOption = False,
) -> None:
    """Simulate policies on the same jobs and compare what came out.

    [bold]Examples[/bold]

      tenbin simulate -p fcfs -p easy -w KTH-SP2-1996-2.swf.gz -c 100

      tenbin simulate -p easy -w generator:lublin,jobs=5000,load=0.9 -c 128 --gantt easy.html

      tenbin simulate -p easy -w trace.swf -c 16xgpu+64xcpu --profile gpu=node7 --profile cpu=last

      tenbin simulate -p fcfs -p easy -w log.swf -c 100 --warm-up 5% --resamples 40 --jobs-out jobs.csv

      tenbin simulate --experiment loads.toml

    Args:
        policy: Name, or name,k=v,k=v; several to compare them: fcfs,easy; or a file: ./mine.py.
        workload: A log or trace (SWF, Google 2011, Alibaba; tenbin history --csv > history.csv), or
            generator:NAME,k=v,k=v.
        cluster: A count, 512xgpu+512xcpu, 8xnode\\[cores=64,gpu=4], or a TOML, JSON or CSV file.
        profile: Costs of checkpoints and power as measured: a profile (tenbin profile list), or
            CLASS=PROFILE.
        seed: Of generators and policies. (default: 0)
        limit: Only this many jobs, the first ones.
        without_estimate: What policies take for the run time of a job that states none: nothing, the run time
            itself, or the same for all (30m).
        warm_up: Jobs submitted first are simulated, but in no figure: a share, a time or a number of jobs.
        cool_down: The same at the end, where the machine drains.
        resamples: Differences to the first policy with 95 % intervals, from so many workloads whose weeks are
            drawn with replacement; for instance 40, at least 10.
        block: Draw blocks of this length in place of weeks. (default: 7d)
        jobs_out: Write the result of each job; of several policies to FILE.POLICY.csv.
        gantt: Draw waits, and who ran where and when, into this HTML file, which saves them as SVG, too.
        experiment: In place of policy, workload and cluster: the policies x loads x seeds of this file.
    """
    from scheduler.evaluations.policy_runs import Setup, compare
    from scheduler.model.clusters import parse_cluster
    from scheduler.policies.registry import several

    plan = _plan(experiment, given(context))
    if plan is not None:
        cluster, policy = plan.cluster, plan.policies
    machine, seed = parse_cluster(cluster), seed or 0
    policies = list(dict.fromkeys(name for text in policy or () for name in several(text)))
    substitute, block_s = _substitute(without_estimate), duration_s(block or "7d", "--block")
    if 0 < resamples < FEWEST_RESAMPLES or (resamples and len(policies) < 2):
        raise BadInput(
            f"--resamples {resamples} with {len(policies)} policies",
            f"give at least two policies and {FEWEST_RESAMPLES} resamples",
        )
    files = _files(jobs_out, gantt, policies)
    measured = _measured(profile, machine, store) if profile else None
    setup = Setup(
        workload=workload,
        machine=measured.cluster if measured else machine,
        seed=seed,
        limit=limit,
        measured=measured,
        substitute=substitute,
        warm_up=_cut("--warm-up", warm_up),
        cool_down=_cut("--cool-down", cool_down),
    )
    if plan is not None and experiment is not None:
        with _faults_in_files(policies):
            print("\n".join(carry_out(plan, experiment, setup)))
        return
    with _faults_in_files(policies):
        outcome = _run_all(setup, policies, keep=bool(jobs_out or gantt))
        if resamples and len(outcome.results) > 1:
            figures = [result.figures for result in outcome.results]
            outcome.comparison = compare(setup, figures, resamples, block_s, progress=_progress)
    _write(outcome, files, gantt)
    if json:
        about = {"cluster": cluster, "workload": workload, "without_estimate": without_estimate, "seed": seed}
        _print_json(about, outcome)
    else:
        _print(outcome, without_estimate)
        for name, file in files.items():
            if any(result.figures["policy"] == name for result in outcome.results):
                print(f"jobs of {name}: {file}")
        if gantt is not None:
            print(f"picture: {gantt}")


@dataclass
class Outcome:
    """The results of all policies.

    Attributes:
        window: of the jobs that count; None: all.
        unsuitable: the reason of each policy that cannot run here.
    """

    setup: Setup
    window: Window | None
    results: list[PolicyResult] = field(default_factory=list)
    unsuitable: dict[str, str] = field(default_factory=dict)
    comparison: PolicyComparison | None = None


OF_RUNS = {  # options in whose place there may be an experiment, each with a value
    "policy": "-p easy; see: tenbin policies",
    "workload": "-w history.csv, from tenbin history --csv > history.csv",
    "cluster": "-c 16, a machine of 16 cores",
}
NOT_OF_EXPERIMENTS = (*OF_RUNS, "seed", "resamples", "block", "jobs_out", "gantt", "json")


def _plan(experiment: Path | None, given: set[str]) -> Experiment | None:
    """Read the file of an experiment; None: there is none, and the options in its place are all given.

    Raises:
        BadInput: an option is missing, or does not go with an experiment.
    """
    if experiment is None:
        if missing := [name for name in OF_RUNS if name not in given]:
            raise BadInput(f"--{missing[0]} is missing", f"for instance {OF_RUNS[missing[0]]}")
        return None
    from scheduler.evaluations.policy_runs import read_experiment

    if both := [name.replace("_", "-") for name in NOT_OF_EXPERIMENTS if name in given]:
        raise BadInput(f"--experiment and --{both[0]} are both given", "leave one of them out")
    return read_experiment(experiment)


def carry_out(experiment: Experiment, file: Path, setup: Setup) -> list[str]:
    """Simulate the experiment of a file, write ``.csv`` and ``.html`` beside it, and say so in lines."""
    from scheduler.evaluations.policy_runs import csv_text, pictures, runs
    from tenbin.report.evaluation import pictures_page

    table, page = file.with_suffix(".csv"), file.with_suffix(".html")
    inputs = {file, *map(Path, re.split("[:,=]", f"{experiment.workload},{experiment.cluster}"))}
    for path in (table, page):
        if path.resolve() in {source.resolve() for source in inputs}:
            what = f"--experiment {file}: what comes out would be written over {path}"
            raise BadInput(what, "give the file of the experiment another name")
        ensure_writable("--experiment", path)
    rows = list(runs(experiment, setup, _progress))
    write_output("--experiment", table, csv_text(rows))
    seeds = len(experiment.seeds)
    note = f"{seeds} seeds: means with 95 % intervals." if seeds > 1 else "One seed."
    section = f"{experiment.workload} on {experiment.cluster}", note
    text = pictures_page(f"Experiment {file.stem}", section, pictures(rows, experiment))
    write_output("--experiment", page, text)
    return [f"{len(rows)} simulations: {table}", f"pictures: {page}"]


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, float], None] | None]:
    """Show on a terminal how far the simulation is."""
    errors = SafeConsole(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    with errors.status(f"{text}: reading") as status:
        yield lambda jobs, now: status.update(f"{text}: {jobs:,} jobs have ended, day {now / 86400:,.0f}")


@contextmanager
def _faults_in_files(policies: Sequence[str]) -> Iterator[None]:
    """Turn an error that the file of a policy raises into a line that names the file."""
    from scheduler.policies.registry import fault_in_file

    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        for text in policies:
            if fault := fault_in_file(text, error):
                raise fault from error
        raise


def _files(jobs_out: Path | None, gantt: Path | None, policies: Sequence[str]) -> dict[str, Path]:
    """Name the file of each policy's jobs, and see that all files could be written."""
    files: dict[str, Path] = {}
    if jobs_out is not None:
        from tenbin.report.schedule import files_of

        files = files_of(jobs_out, policies)
    for file in files.values():
        ensure_writable("--jobs-out", file)
    if gantt is not None:
        ensure_page("--gantt", gantt)
    return files


def _run_all(setup: Setup, policies: Sequence[str], *, keep: bool) -> Outcome:
    """Run all policies.

    Raises:
        BadInput: none of them can.
    """
    from scheduler.evaluations.policy_runs import Unsuitable
    from scheduler.policies.registry import create

    for text in policies:
        create(text, setup.seed)  # a slip of the pen in the last one is told before the first one runs
    outcome, remedy = Outcome(setup, setup.window()), ""
    for text in policies:
        try:
            outcome.results.append(setup.run(text, outcome.window, _progress, keep=keep))
        except Unsuitable as error:
            outcome.unsuitable[text], remedy = error.reason, remedy or error.remedy
    if not outcome.results:
        alone = len(outcome.unsuitable) == 1
        causes = (reason if alone else f"{text}: {reason}" for text, reason in outcome.unsuitable.items())
        raise BadInput("; ".join(causes), remedy)
    return outcome


def _write(outcome: Outcome, files: dict[str, Path], gantt: Path | None) -> None:
    """Write the jobs' results and the picture, where asked for."""
    machine = outcome.setup.machine
    if gantt is not None:
        from tenbin.report.schedule import page

        drawn = [(result.figures["policy"], result.record.outcomes) for result in outcome.results]
        write_output("--gantt", gantt, page(drawn, machine))
    if files:
        from tenbin.report.schedule import results_text

        for figures, record, work in outcome.results:
            name = figures["policy"]
            about = f"{work.source} under policy {name}, seed {outcome.setup.seed}"
            text = results_text(files[name], record.outcomes, machine, about, window=outcome.window)
            write_output("--jobs-out", files[name], text)


def _substitute(text: str) -> Unstated:
    """Read ``--without-estimate``."""
    from scheduler.workloads.arrivals import Unstated

    if text in ("unknown", "actual"):
        return Unstated(actual=text == "actual")
    with suppress(BadInput):
        return Unstated(time_s=duration_s(text))
    raise BadInput(
        f"--without-estimate {text!r} is none of its values", "write unknown, actual, or for instance 30m"
    )


def _cut(option: str, text: str | None) -> Cut:
    """Read ``10%``, ``500jobs`` or a time."""
    from scheduler.simulator.metrics import NO_CUT, Cut

    if text is None:
        return NO_CUT
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
        if float(match[1]) < 100:
            return Cut(share=float(match[1]) / 100)
    elif match := re.fullmatch(r"(\d{1,12})\s*jobs?", text):
        return Cut(jobs=int(match[1]))
    else:
        with suppress(BadInput):
            return Cut(seconds=duration_s(text))
    remedy = "write a share below 100%, a time as 2d, or 500jobs"
    raise BadInput(f"{option} {text!r} is none of its values", remedy)


def _measured(given: list[str], machine: Cluster, store: Path | None) -> MeasuredCluster:
    """Read ``PROFILE`` (for every class) and ``CLASS=PROFILE``."""
    from scheduler.prediction.profiles import measured_cluster

    chosen: dict[str, str] = {}
    for text in given:
        name, sign, selector = text.partition("=")
        if sign and "/" not in name:
            chosen[name] = selector
        else:
            chosen.update({pool.name: text for pool in machine.pools if pool.name not in chosen})
    profiles = stored_profiles(store)
    return measured_cluster(machine, {name: profiles.load(selector) for name, selector in chosen.items()})


# -- results -----------------------------------------------------------------------------------------------


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


def _print(outcome: Outcome, choice: str) -> None:
    """Print the metrics of all policies, their differences, and the notes below."""
    from scheduler.evaluations.policy_runs import left_out, reasons

    console, work, measured = SafeConsole(), outcome.results[0].work, outcome.setup.measured
    figures = [result.figures for result in outcome.results]
    console.plain(work.source)
    shown = table("")
    for result in figures:
        shown.add_column(plain(result["policy"]), justify="right", overflow="fold")
    for key, name, is_time in ROWS:
        values = [result[key] for result in figures]
        if key not in OPTIONAL or any(values):
            shown.add_row(name, *(_value(value, is_time) for value in values))
    console.print(shown)
    if outcome.comparison is not None:
        _print_differences(console, outcome.comparison)
    notes = [*left_out(figures), *filter(None, [work.note])]
    notes += [f"{name} cannot run: {reason}" for name, reason in outcome.unsuitable.items()]
    notes += window_note(figures[0], outcome.window) + unstated(figures[0], choice)
    notes += [*reasons("in the log", work.remarks), *(measured.notes if measured else ())]
    for note in notes:
        console.plain(note, soft_wrap=True)


def _value(value: float | None, is_time: bool) -> str:
    if value is None:
        return "-"
    if is_time:
        return duration(value)
    return f"{value:,}" if isinstance(value, int) else number(value)


def _print_differences(console: SafeConsole, comparison: PolicyComparison) -> None:
    for policy, of_policy in comparison.differences.items():
        title = plain(f"{policy} less {comparison.against}")
        shown = table(title, "difference", "95 % from", "to", "surely", left={title})
        for difference in of_policy:
            name, is_time = NAMES[difference.metric]
            if difference.metric not in OPTIONAL or difference.difference:
                values = difference.difference, difference.low, difference.high
                shown.add_row(name, *(_signed(value, is_time) for value in values), difference.verdict)
        console.print(shown)
    console.plain(
        f"intervals: {comparison.resamples} resampled workloads, from {comparison.blocks} blocks of "
        f"{duration(comparison.length_s)}",
        soft_wrap=True,
    )
    if comparison.left_out:
        console.plain(f"not resampled: {comparison.left_out:,} jobs after the last whole block")


def _signed(value: float, is_time: bool) -> str:
    sign = "-" if value < 0 else "+" if value > 0 else ""
    return sign + (duration(abs(value)) if is_time else number(abs(value)))


def _print_json(about: dict[str, Any], outcome: Outcome) -> None:
    work, window = outcome.results[0].work, outcome.window
    head = {**about, "source": work.source, "note": work.note, "remarks": dict(work.remarks)}
    if outcome.setup.measured is not None:
        head["measured"] = list(outcome.setup.measured.notes)
    if window is not None:
        to_s = window.to_s if window.to_s < float("inf") else None
        head["window"] = {"from_s": window.from_s, "to_s": to_s}
    head["unsuitable"] = outcome.unsuitable
    if outcome.comparison is not None:
        head["comparison"] = outcome.comparison.to_dict()
    print_json({**head, "results": [result.figures for result in outcome.results]})
