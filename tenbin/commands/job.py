"""``tenbin program``: measure a program alone and beside others, show what was measured, predict by it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from profiles.errors import INTERRUPTED, BadInput, Interrupted, UserError
from profiles.quantities import duration, number
from tenbin.commands import options
from tenbin.option_values import counts, duration_s, names
from tenbin.terminal import QUALITY_STYLE, SafeConsole, table
from tenbin.text import as_json, interval, making, print_answer, print_json, say, sparkline, value_with_unit

if TYPE_CHECKING:
    from agent.job_profile.profiler import Made
    from profiles.files.store import JobStore
    from profiles.jobs import (
        Clock,
        Curve,
        JobProfile,
        NetworkHalf,
        Phases,
        ProbePressure,
        UnderCaps,
    )
    from profiles.records import Coefficient, Model, NodeKind
    from scheduler.prediction.run_times import PastRun


def _stored_jobs(store: Path | None) -> JobStore:
    from profiles.files.store import JobStore

    return JobStore(store)


def _kind() -> NodeKind:
    """Return the kind of this node."""
    from agent.node_profile.identity import node_kind

    return node_kind()


# -- show, list, schema ------------------------------------------------------------------------------------


WORDS = {
    "run_s": "run time",
    "cpu_s": "CPU time",
    "peak_memory_mb": "peak memory",
    "read_mb": "reads",
    "written_mb": "writes",
    "disk_read_mb": "  from storage",
    "disk_written_mb": "  to storage",
    "mpi_share": "share of time inside MPI",
    "device_memory_mb": "device memory (M_max)",
    "registered_mb": "  in a checkpoint (M)",
    "kernels": "kernels run",
    "compile_s": "building kernels (K)",
    "drain_s": "longest wait for a queue",
}
CLOCKS: dict[Clock, str] = {"wall": "run time", "cpu": "CPU time"}
SCALING = {"T1": "run time on one core", "A": "parallelism (A)", "sigma": "its variance (sigma)"}
CAPS = {"knee_w": "fast as it gets from (knee)", "slope_per_w": "speed lost by each watt below"}
JobArgument = Annotated[
    str,
    typer.Argument(
        help="NAME, or NAME@ID of an older one.", autocompletion=options.complete_job_profile, metavar="NAME"
    ),
]


def show(name: JobArgument, store: options.StoreOption = None, json: options.JsonOption = False) -> None:
    """Show a job profile: needs alone, pressure on others, sensitivity to others."""
    kind = _kind()
    profile = _stored_jobs(store).load(name, kind.key)
    if json:
        print(as_json(profile))
        return
    print_job(profile)
    if profile.kind.key != kind.key:
        print(f"\nOF ANOTHER KIND OF NODE. This one is {kind.title}; measure it here:")
        say(to_measure(profile))


def list_jobs(store: options.StoreOption = None, json: options.JsonOption = False) -> None:
    """List the stored job profiles, newest first; a damaged one is named and costs no other."""
    from profiles.files.store import load_job

    here = _kind().key
    stored, damaged = options.loaded(_stored_jobs(store).paths(), load_job)
    rows = [row for _, row in stored]
    summaries = [{**_summary(row), "this_kind": row.kind.key == here} for row in rows]
    print_answer({"job_profiles": summaries, "damaged": damaged}, partial(print_list, rows, here), json)
    options.end_after(damaged, said=json)


def schema() -> None:
    """Print the schema of a job profile's JSON."""
    from profiles.export import json_schema
    from profiles.jobs import JobProfile

    print(json_schema(JobProfile), end="")


SUMMARY = {  # fields of a job profile, in a list of them
    *("name", "id", "node", "hosts", "clock", "command"),
    *("repetitions", "sessions", "interrupted", "emulated"),
}


def _summary(row: JobProfile) -> dict[str, object]:
    pressure, sensitivity = _slowdowns(row.pressure_by(), row.sensitivity_by())
    network = row.network
    of_network = _slowdowns(network.pressure, network.sensitivity) if network else (None, None)
    return {
        **row.model_dump(mode="json", include=SUMMARY),
        "kind": row.kind.key,
        "cores": row.cores,
        "run_s": _value(row.need("run_s")),
        "pressure_ratio": pressure,
        "sensitivity_ratio": sensitivity,
        "network_pressure_ratio": of_network[0],
        "network_sensitivity_ratio": of_network[1],
        "mpi_share": _value(row.need("mpi_share")),
        "parallelism": None if row.scaling is None else row.scaling["A"].value,
    }


def _value(coefficient: Coefficient | None) -> float | None:
    return None if coefficient is None else coefficient.value


def _slowdowns(pressure: ProbePressure | None, curve: Curve | None) -> tuple[float | None, float | None]:
    """Return how much a job slows a probe down, and how much a probe with all its force slows the job."""
    slowed = pressure.slowdown if pressure else None, curve.levels[-1].slowdown if curve else None
    return _value(slowed[0]), _value(slowed[1])


def to_measure(job: JobProfile) -> str:
    """Write the command that measures the job as it was measured."""
    where = f"-n {job.cores}{' --mpi' if job.mpi else ''}"
    if job.hosts:
        where = f"-n {job.ranks} --hosts {','.join(job.hosts)}"
    return f"tenbin program profile {job.name} {where} -- {shlex.join(job.command)}"


def print_list(rows: list[JobProfile], here: str) -> None:
    """Print the stored job profiles; ``here`` is this kind of node."""
    if not rows:
        print("No job profile yet; make one with 'tenbin program profile NAME -- CMD...'.")
        return
    columns = ("name", "made", "cores", "run time", "slows memprobe", "slowed by memprobe", "")
    profiles = table(*columns, left=("name", "made", ""))
    for row in rows:
        run_s = _value(row.need("run_s"))
        slow_downs = _slowdowns(row.pressure_by(), row.sensitivity_by())
        marks = {"interrupted": row.interrupted, "EMULATED": row.emulated, "other node": row.kind.key != here}
        profiles.add_row(
            row.name,
            escape(row.id),
            str(row.cores),
            "-" if run_s is None else f"{run_s:.3g} s",
            *("-" if ratio is None else f"{ratio:.2f}x" for ratio in slow_downs),
            " ".join(mark for mark, on in marks.items() if on),
        )
    SafeConsole().print(profiles)


def print_job(job: JobProfile) -> None:
    """Print a job profile."""
    console = SafeConsole()
    kind = "quick" if job.quick else "full"
    console.plain(making(job, f"{job.name}: {kind} job profile"), style="bold")
    cpus, probes = (", ".join(map(str, some)) for some in (job.cpus, job.probe_cpus))
    memprobe = f"; memprobe on {probes}" if probes else ""
    ranks = f"{job.ranks} ranks on {', '.join(job.hosts) or 'this node'}, " if job.mpi else ""
    times = f"{job.repetitions} repetitions" + (f" in {job.sessions} sessions" if job.sessions > 1 else "")
    console.plain(f"  cores      {ranks}{job.cores} (CPU {cpus}{memprobe}), {times}")
    console.print("\n[bold]Alone[/bold]  [dim](median, 95 % interval, n, quality)[/dim]")
    for need in job.alone:
        _line(console, WORDS.get(need.name, need.name), need)
    for clock, words in CLOCKS.items():
        mark = " [dim](predictions go by this)[/dim]" if clock == job.clock else ""
        pressure, curve = job.pressure_by(clock), job.sensitivity_by(clock)
        if pressure or curve:
            console.print(f"\n[bold]Beside memprobe, by {words}[/bold]{mark}")
        if pressure:
            _pressure(console, "memprobe", pressure)
        if phases := job.phases_by(clock):
            _phases(console, phases)
        if curve:
            _curve(console, curve)
    if job.quick:
        console.plain(f"\n{unmeasured(job)}", soft_wrap=True)
    if job.network:
        _network(console, job.network)
    if job.scaling is not None:
        _scaling(console, job.scaling)
    if job.caps is not None:
        _caps(console, job.caps)
    if job.note:
        console.plain(f"\n{job.note}")
    for absent in job.absent:
        console.plain(f"Not measured: {absent.what}: {absent.reason}")


def unmeasured(job: JobProfile) -> str:
    """Say what a quick profile takes for granted about its curve."""
    curve = job.sensitivity_by()
    at = [f"{level.intensity_percent:.0f}" for level in curve.levels] if curve else ["0", "100"]
    return (
        f"Quick: {job.repetitions} repetitions; sensitivity is taken to be straight between "
        f"{', '.join(at[:-1])} and {at[-1]} %."
    )


def _pressure(console: SafeConsole, probe: str, pressure: ProbePressure) -> None:
    _line(console, f"{probe} is slowed down", pressure.slowdown, "x")
    if pressure.equivalent_gbs:
        what = "  as beside memprobe at" if probe == "memprobe" else f"  alone it takes as much as {probe} at"
        _line(console, what, pressure.equivalent_gbs)
    elif pressure.note:
        console.plain(f"    {pressure.note}")


def _phases(console: SafeConsole, phases: Phases) -> None:
    _line(console, "  in the worst part of its run", phases.peak, "x")
    seen = [value for value in phases.slowdown if value is not None]
    words = "in bursts" if phases.bursts else "no bursts that stand out"
    console.plain(f"  over its run, parts of {phases.bin_s:.3g} s: {words}")
    console.plain(f"    {sparkline(phases.slowdown)}  {min(seen):.2f} .. {max(seen):.2f}x")


def _network(console: SafeConsole, half: NetworkHalf) -> None:
    mark = " (EMULATED: the hosts are one machine's)" if half.emulated else ""
    console.print(f"\n[bold]Beside comprobe, by run time[/bold]{mark}")
    if half.pressure:
        _pressure(console, "comprobe", half.pressure)
    if half.sensitivity:
        _curve(console, half.sensitivity)
    if half.note:
        console.plain(f"  {half.note}")


def _curve(console: SafeConsole, curve: Curve) -> None:
    for level in curve.levels[1:]:
        words = f"slowed down at {level.intensity_percent:.0f} %, {level.offered_gbs:.3g} GB/s"
        _line(console, words, level.slowdown, "x")


def _scaling(console: SafeConsole, model: Model) -> None:
    from profiles.models.downey import verdict

    over = f"Over ranks on {model.labels['hosts']}" if "hosts" in model.labels else "Over cores"
    mark = " (EMULATED: the hosts are one machine's)" if model.emulated else ""
    console.print(f"\n[bold]{escape(over)}[/bold]{mark}", end="  ")
    console.plain(verdict(model))
    for coefficient in model.coefficients:
        _line(console, SCALING.get(coefficient.name, coefficient.name), coefficient)
    if model.note:
        console.plain(f"    {model.note}")


def _caps(console: SafeConsole, caps: UnderCaps) -> None:
    mark = f" (EMULATED: {escape(caps.emulated)})" if caps.emulated else ""
    console.print(
        f"\n[bold]Under power caps[/bold]{mark}  [dim](cap of each package; of those it runs on)[/dim]"
    )
    levels = table("cap", "run time", "power", "energy", "")
    least = min(caps.levels, key=lambda level: level.energy_j.value)
    for level in caps.levels:
        marks = (["least energy"] if level is least else []) + ([] if level.held else ["cap not kept to"])
        levels.add_row(
            "none" if level.cap_w is None else f"{level.cap_w:.3g} W",
            f"{level.run_s.value:.3g} s",
            f"{level.power_w.value:.3g} W",
            f"{level.energy_j.value:.3g} J",
            ", ".join(marks),
        )
    console.print(levels)
    for coefficient in caps.speed.coefficients if caps.speed else ():
        if coefficient.name in CAPS:
            _line(console, CAPS[coefficient.name], coefficient)
    if caps.note:
        console.plain(f"  {caps.note}")


def _line(console: SafeConsole, words: str, coefficient: Coefficient, unit: str = "") -> None:
    value = f"{value_with_unit(coefficient)}{unit}"
    quality = f"[{QUALITY_STYLE[coefficient.quality]}]{coefficient.quality}[/]"
    row = f"  {words:<34} {value:>12} {interval(coefficient):>20} {coefficient.n:>4} "
    console.print(escape(row) + quality, soft_wrap=True)


# -- predict: what a job will need, from the runs before it ------------------------------------------------


LOOKED_AT = 20_000  # jobs of the journal
QUANTITIES = {
    "run_s": ("run time", "s"),
    "memory_mb": ("peak memory", "MB"),
    "registered_mb": ("in a checkpoint", "MB"),
    "compile_s": ("kernels (K)", "s"),
}


def complete_program(incomplete: str) -> list[str]:
    """Programs that have run, and names of job profiles."""
    try:
        names = {run.signature.program for run in _runs(options.coordinator_folder(None), None, "")}
    except UserError:
        names = set()
    return sorted(name for name in names if name.startswith(incomplete))


def predict(
    name: Annotated[str, typer.Argument(autocompletion=complete_program, metavar="NAME")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS...]")] = None,
    *,
    cores: Annotated[int | None, typer.Option("--cores", "-n", min=1)] = None,
    user: str = "",
    home: options.HomeOption = None,
    store: options.StoreOption = None,
    json: options.JsonOption = False,
) -> None:
    """Predict what a job will need: run time, memory, and of OpenCL jobs what a checkpoint holds and K.

    From the jobs that ended with success under the coordinator, and from job profiles: those of the same
    program with the same arguments; else scaled by the numbers among the arguments, if these explain the
    times; else all of the program; else the mean of your last two jobs. The range holds in 8 of 10 cases.
    The coordinator uses the same where a job has neither --time nor --expect; of your last two jobs only
    where that has proved right.

    [bold]Examples[/bold]

      tenbin program predict stencil

      tenbin program predict simulate.py -- --steps 5000

    Args:
        name: A job profile, a job's --name, or the file name of its program.
        arguments: Arguments of the program, after --. (default: those of its last run)
        cores: Cores of the job in all. (default: as in its last run)
        user: Owner of the job, for names that are new. (default: you)
    """
    from profiles.files.safe_files import user_name
    from scheduler.prediction.run_times import History, JobSignature

    folder = options.coordinator_folder(home)
    runs = _runs(folder, store, name)
    history, mine = History(runs), [run for run in runs if run.signature.program == name]
    size = (cores, 0) if cores else mine[-1].signature.size if mine else (1, 0)
    words = tuple(arguments) if arguments else mine[-1].signature.arguments if mine else ()
    signature = JobSignature(name, words, user or user_name(), size)
    rows = _predictions(history, signature, [run.signature.pool for run in mine])
    if not rows:
        raise BadInput(
            f"nothing is known of {name}: no such job ended with success, none of {signature.user}'s at all",
            f"run it once (tenbin submit --name {name} -- CMD...), or measure it: tenbin program profile",
        )
    shown = partial(_print_predictions, signature.program, signature.arguments, rows)
    print_answer({**signature._asdict(), "predictions": rows}, shown, json)


def _runs(folder: Path, store: Path | None, name: str) -> list[PastRun]:
    """List all jobs that ended under that coordinator, after the runs in the job profile of that name."""
    from profiles.files.safe_files import user_name
    from scheduler.coordinator.journal.journal import ended_jobs
    from scheduler.prediction.run_times import run_of

    runs = []
    if name:
        from scheduler.prediction.profiles import ProfiledJobs

        runs += ProfiledJobs(_stored_jobs(store), _kind()).runs(name)
    user = user_name()
    has_run = (folder / "journal.sqlite").exists()
    ended = (run_of(entry, user) for entry in (ended_jobs(folder, LOOKED_AT) if has_run else ()))
    return runs + [run for run in ended if run is not None]


def _predictions(history: Any, signature: Any, pools: list[str]) -> list[dict[str, Any]]:
    """List the predictions, a row each; run times by the class of device that it ran on."""
    rows = []
    for pool in dict.fromkeys(pools or [""]):
        for quantity, (_, unit) in QUANTITIES.items():
            prediction = history.predict(signature._replace(pool=pool), quantity)
            if prediction is not None:
                rows.append({"quantity": quantity, "unit": unit, "device": pool, **asdict(prediction)})
    return rows


def _print_predictions(name: str, arguments: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    console = SafeConsole()
    console.plain(shlex.join((name, *arguments)), style="bold")
    columns = ("", "device", "10 %", "50 %", "90 %", "n", "rests on")
    predictions = table(*columns, left=("", "device", "rests on"))
    for row in rows:
        words, unit = QUANTITIES[row["quantity"]]
        values = (row[at] for at in ("low", "middle", "high"))
        cells = [duration(v) if unit == "s" else f"{number(v)} {unit}" for v in values]
        predictions.add_row(words, escape(row["device"]), *cells, str(row["n"]), escape(row["rule"]))
    console.print(predictions)


# -- profile, again, examples: measure a program alone and beside others -----------------------------------


LimitOption = Annotated[str, typer.Option(help="End a run that takes longer: 90s, 10m, 2h.")]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        help="Begin no repetition that would end later: 20m. (default: the time of 34 runs, 3m to 20m)",
        show_default=False,
    ),
]
complete_kernel = options.names_in("agent.job_profile.trial:KERNELS")


def profile(
    name: str,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...")],
    *,
    cores: Annotated[int, typer.Option("--cores", "-n", min=1)] = 1,
    mpi: bool = False,
    hosts: Annotated[str | None, typer.Option(metavar="HOST,HOST,...")] = None,
    quick: bool = False,
    limit: LimitOption = "10m",
    budget: BudgetOption = None,
    scale: str | None = None,
    caps: bool = False,
    emulate: Annotated[str, typer.Option(metavar="MACHINE", autocompletion=options.complete_machine)] = "",
    folder: Annotated[Path | None, typer.Option("--chdir")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    store: options.StoreOption = None,
    json: options.JsonOption = False,
) -> None:
    """Run a program over and over, alone and beside memprobe, and store what came out under a name.

    The program is not changed. It runs on cores of its own, its input empty and its output thrown away.
    It should take 5 seconds to a few minutes, with the same work each time: 3 to 20 repetitions of five runs,
    nine with --hosts; with --quick two or three of three runs. Of an MPI program the share of time inside MPI
    is measured too. Ctrl-C ends it early and keeps whole repetitions. Run it while the machine is quiet.

    [bold]Examples[/bold]

      tenbin program profile stencil -- ./stencil --steps 1000

      tenbin program profile lu -n 4 --quick -- mpiexec -n 4 ./lu.C.x

      tenbin program profile cg -n 8 --hosts node1,node2 -- python cg.py

      tenbin program profile lu -n 2 --mpi --scale 1,2,4 -- python lu.py

      tenbin program profile stencil --caps -- ./stencil --steps 1000

    Args:
        name: Name of the profile, for --job-profile and tenbin program pairs.
        command: Program and arguments, after --.
        cores: Cores that the job gets, for its threads or ranks.
        mpi: Start the command as -n ranks of tenbin's MPI, one a core.
        hosts: Start the ranks (--mpi) on these hosts, and measure beside comprobe between them too.
        quick: Fewer intensities and repetitions: a minute for runs of 5 s.
        scale: Also measure the speed-up over these counts of cores (or of ranks over the hosts): 1,2,4; {n}
            in the command is the count.
        caps: Also measure run time and energy under power caps (root; RAPL).
        emulate: With --caps: on emulated packages (a demonstration, marked): intel-1s, intel-2s.
        folder: Working directory. (default: this one)
        seed: Seed of the random orders.
    """
    from agent.job_profile.caps import check_meter
    from agent.job_profile.profiler import add_caps, measure, plan_scaling
    from agent.job_profile.scaling import on_cores
    from agent.job_profile.session import JobOrder

    _check_name(name)
    stored = _stored_jobs(store)
    where = (folder or Path.cwd()).absolute()
    if not where.is_dir():
        raise BadInput(f"--chdir {where}: not a folder", f"mkdir -p {where}")
    order = JobOrder(
        name=name,
        command=tuple(command),
        folder=str(where),
        cores=cores,
        quick=quick,
        limit_s=duration_s(limit, "--limit"),
        budget_s=None if budget is None else duration_s(budget, "--budget"),
        seed=seed,
        mpi=mpi or hosts is not None,
        hosts=names(hosts, "--hosts"),
    )
    scaling = plan_scaling(counts(scale), order) if scale is not None else None
    if emulate and not caps:
        raise BadInput("--emulate: only power caps are emulated", "give --caps too, or leave it out")
    if caps and hosts:
        raise BadInput("--caps with --hosts: caps are those of this node", "leave one of them out")
    if caps:
        check_meter(emulate)
    if scaling is not None:
        order = replace(order, command=on_cores(command, cores))
    stored.prepare()
    with _measuring() as listener:
        made = measure(order, scaling, listener)
        if caps and not made[0].interrupted:
            made = add_caps(made, order, emulate, listener)
    _keep(stored, made, json)


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from profiles.jobs import JobName

    try:
        TypeAdapter(JobName).validate_python(name)
    except ValidationError:
        raise BadInput(f"NAME {name!r} cannot be a name", "use letters, digits and . _ + -") from None


def again(
    name: JobArgument,
    *,
    limit: LimitOption = "10m",
    budget: BudgetOption = None,
    store: options.StoreOption = None,
    json: options.JsonOption = False,
) -> None:
    """Measure a job once more, as its profile was made, and store a new one with the runs of both.

    Two hours of one machine differ by more than the repetitions of one hour tell. A profile of several
    sessions, at different times, has that in its intervals, and less of it in its predictions.

    [bold]Example[/bold]

      tenbin program profile stencil -- ./stencil --steps 1000

      tenbin program again stencil    (in the evening)
    """
    from agent.job_profile.profiler import check_samples, make_job_profile, pooled, same_again
    from profiles.files.store import load_job
    from profiles.files.store import samples as samples_beside

    stored, kind = _stored_jobs(store), _kind()
    path = stored.find(name, kind.key)
    earlier = load_job(path)
    if earlier.kind.key != kind.key:
        what = f"job profile '{name}' was made on another kind of node ({earlier.kind.title})"
        raise BadInput(f"{what}, this one is {kind.title}", f"measure it here: {to_measure(earlier)}")
    known = samples_beside(path)
    check_samples(earlier, known)
    order = same_again(
        earlier, duration_s(limit, "--limit"), None if budget is None else duration_s(budget, "--budget")
    )
    stored.prepare()
    with _measuring() as listener:
        made = pooled(*make_job_profile(order, listener), earlier, known)
    _keep(stored, made, json)


def examples(
    kernels: Annotated[list[str] | None, typer.Argument(autocompletion=complete_kernel)] = None,
    *,
    full: bool = False,
    scale: str | None = None,
    seconds: Annotated[float, typer.Option(min=1.0)] = 5.0,
    store: options.StoreOption = None,
    json: options.JsonOption = False,
) -> None:
    """Profile the five kernels of the node profile: EP, CG, FT, MG and an LU-like sweep, as jobs ep, cg, ...

    About five minutes in all. Repetitions that were whole before Ctrl-C are kept.

    [bold]Examples[/bold]

      tenbin program examples

      tenbin program examples cg ep --full --scale 1,2

      tenbin program pairs

    Args:
        kernels: ep, cg, ft, mg, lu. (default: all)
        full: Full profiles, three minutes and more each, not quick ones.
        scale: Also measure the speed-up over these counts of ranks (tenbin's MPI): 1,2.
        seconds: Length of a run, about.
    """
    from agent.job_profile.profiler import measure, plan_scaling
    from agent.job_profile.session import JobOrder
    from agent.job_profile.trial import KERNELS, command

    chosen = list(dict.fromkeys(kernels or KERNELS))
    if unknown := [name for name in chosen if name not in KERNELS]:
        raise BadInput(f"no kernel {unknown[0]!r}", f"choose from {', '.join(KERNELS)}")
    stored, profiles = _stored_jobs(store), []
    stored.prepare()
    sizes = counts(scale)
    for name in chosen:
        run = command(name, KERNELS[name], seconds, ranks=0 if sizes else 1)
        order = JobOrder(name, run, "/", quick=not full, mpi=bool(sizes))
        scaling = plan_scaling(sizes, order) if sizes else None
        with _measuring(f"{name}, ") as listener:
            made = measure(order, scaling, listener)
        _save(stored, made)
        profiles.append(made[0])
        if made[0].interrupted:
            break
    if json:
        print_json([profile.model_dump(mode="json") for profile in profiles])
    else:
        print_list(profiles, _kind().key)
        print("\nWho gets on with whom: tenbin program pairs. More of one: tenbin program show NAME")
    raise typer.Exit(INTERRUPTED if any(profile.interrupted for profile in profiles) else 0)


@contextmanager
def _measuring(of: str = "") -> Iterator[Callable[[Any], None]]:
    """Show the progress of measuring; Ctrl-C ends it early, and says so if nothing is to be kept."""
    try:
        with options.terminated_as_interrupted(), options.progress(of) as listener:
            yield listener
    except KeyboardInterrupt:
        raise Interrupted("ended before the first repetition was whole", "nothing is stored") from None


def _save(stored: JobStore, made: Made) -> None:
    from profiles.files.store import save_measured

    save_measured(stored, *made, f"tenbin program show {made[0].name}@{made[0].id}")


def _keep(stored: JobStore, made: Made, json: bool) -> NoReturn:
    """Store and show a job profile; the exit code tells if all of it was measured."""
    profile, _ = made
    earlier = stored.paths(name=profile.name)
    _save(stored, made)
    if json:
        print(as_json(profile))
    else:
        print_job(profile)
        print(f"\nStored as {profile.name}@{profile.id}. Who gets on with it: tenbin program pairs")
        if earlier:
            print(f"{len(earlier)} earlier of this name are kept; the newest is used unless one is named.")
    failed = any(absent.failed for absent in profile.absent)
    raise typer.Exit(INTERRUPTED if profile.interrupted else int(failed))
