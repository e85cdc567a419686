"""``tenbin job``: what a program presses with and suffers from beside others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import INTERRUPTED, BadInput
from tenbin.commands.job_predict import predict
from tenbin.commands.job_scale import planned, print_scaling, with_scaling
from tenbin.commands.options import JsonOption, StoreOption

if TYPE_CHECKING:
    from rich.console import Console

    from agent.job_session import JobProgress, Listener
    from profiles.jobs import Clock, Curve, JobProfile, NetworkHalf, Phases, ProbePressure
    from profiles.records import Coefficient

app = typer.Typer(
    help="Job profiles: what a program presses with, and suffers from, when it shares a node.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
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


def complete_name(incomplete: str) -> list[str]:
    """Names of the stored job profiles."""
    from profiles.job_store import JobStore

    return [name for name in JobStore().names() if name.startswith(incomplete)]


@app.command("profile")
def profile(
    name: Annotated[str, typer.Argument(help="What to call it, for --job-profile and tenbin pairs.")],
    command: Annotated[
        list[str], typer.Argument(help="Program and arguments, after --.", metavar="-- CMD...")
    ],
    cores: Annotated[
        int,
        typer.Option("--cores", "-n", min=1, help="Cores that the job gets, for its threads or ranks."),
    ] = 1,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="Start the command as -n ranks of tenbin's MPI, one a core.")
    ] = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOST,HOST,...",
            help="Start the ranks (--mpi) on these hosts, and measure beside comprobe between them too.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three repetitions of each intensity, wider intervals.")
    ] = False,
    limit: Annotated[str, typer.Option(help="End a run that takes longer: 90s, 10m, 2h.")] = "10m",
    budget: Annotated[str, typer.Option(help="Begin no further repetition after: 20m.")] = "20m",
    scale: Annotated[
        str | None,
        typer.Option(
            help="Also how it speeds up over so many cores: 1,2,4; {n} in the command is the count."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--chdir", help="Working directory. (default: this one)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random orders.")] = 1,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Run a program over and over, alone and beside memprobe, and store what came out under a name.

    The program is not changed. It runs on cores of its own, its input empty and its output thrown away.
    It should take 5 seconds to a few minutes, with the same work each time: 3 to 20 repetitions of five runs,
    nine with --hosts. Of an MPI program the share of time inside MPI is measured too.
    Ctrl-C ends it early and keeps what was measured. Run it while the machine is quiet.

    [bold]Examples[/bold]

      tenbin job profile stencil -- ./stencil --steps 1000

      tenbin job profile lu -n 4 --quick -- mpiexec -n 4 ./lu.C.x

      tenbin job profile cg -n 8 --hosts node1,node2 -- python cg.py

      tenbin job profile lu -n 2 --mpi --scale 1,2,4 -- python lu.py
    """
    from agent.job_profiler import make_job_profile
    from agent.job_scaling import on_cores
    from agent.job_session import JobOrder
    from profiles.job_store import JobStore
    from tenbin.commands.profile import terminated_as_interrupted
    from tenbin.commands.words import counts, duration_s

    _check_name(name)
    stored = JobStore(store)
    where = (folder or Path.cwd()).absolute()
    if not where.is_dir():
        raise BadInput(f"--chdir {where}: not a folder", f"mkdir -p {where}")
    times = duration_s(limit), duration_s(budget)
    if scale and hosts:
        raise BadInput("--scale with --hosts: scaling is measured on this node", "leave one of them out")
    scaling = planned(counts(scale), tuple(command), str(where), times, quick, seed, mpi) if scale else None
    order = JobOrder(
        name,
        on_cores(command, cores) if scaling else tuple(command),
        str(where),
        cores,
        quick,
        *times,
        seed,
        mpi=mpi or hosts is not None,
        hosts=tuple(host.strip() for host in hosts.split(",")) if hosts is not None else (),
    )
    stored.prepare()
    earlier = stored.paths(name=name)
    with terminated_as_interrupted(), _progress() as listener:
        made, samples = make_job_profile(order, listener)
        if scaling is not None and not made.interrupted:
            made, samples = with_scaling(made, samples, scaling, listener)
    stored.save(made, samples)
    if json:
        print(made.model_dump_json(indent=1))
    else:
        print_job(made)
        print(f"\nStored as {made.name}@{made.id}. Who gets on with it: tenbin pairs")
        if earlier:
            print(f"{len(earlier)} earlier of this name are kept; the newest is used unless one is named.")
    raise typer.Exit(INTERRUPTED if made.interrupted else 1 if any(a.failed for a in made.absent) else 0)


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from profiles.jobs import JobName

    try:
        TypeAdapter(JobName).validate_python(name)
    except ValidationError:
        raise BadInput(
            f"NAME {name!r} cannot be a name",
            "use letters, digits and . _ + -",
        ) from None


JobArgument = Annotated[
    str,
    typer.Argument(help="NAME, or NAME@ID of an older one.", autocompletion=complete_name, metavar="NAME"),
]


@app.command("show")
def show(name: JobArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show a job profile: what it needs alone, what it presses with, what it suffers from."""

    from agent.node_kind import node_kind
    from profiles.job_store import JobStore

    kind = node_kind()
    found = JobStore(store).load(name, kind.key)
    if json:
        print(found.model_dump_json(indent=1))
        return
    print_job(found)
    if found.kind.key != kind.key:
        print(f"\nOF ANOTHER KIND OF NODE. This one is {kind.title}; measure it here:")
        print(f"tenbin job profile {found.name} {_options(found)} -- {shlex.join(found.command)}")


def _options(job: JobProfile) -> str:
    """What it was measured with."""
    if job.hosts:
        return f"-n {job.ranks} --hosts {','.join(job.hosts)}"
    return f"-n {job.cores}{' --mpi' if job.mpi else ''}"


app.command("predict")(predict)


@app.command("list")
def list_jobs(store: StoreOption = None, json: JsonOption = False) -> None:
    """List the stored job profiles, newest first; a damaged one is named and costs no other."""
    from agent.node_kind import node_kind
    from profiles.job_store import JobStore, load

    here, rows, broken = node_kind().key, [], []
    for path in JobStore(store).paths():
        try:
            rows.append(load(path))
        except BadInput as error:
            broken.append(str(error))
    if json:
        import json as json_

        listed = [{**_summary(row), "this_kind": row.kind.key == here} for row in rows]
        print(json_.dumps({"job_profiles": listed, "damaged": broken}, indent=1))
    else:
        _print_list(rows, here)
        for problem in broken:
            typer.echo(f"tenbin: {problem}", err=True)
    if broken:
        raise typer.Exit(BadInput.exit_code)


@app.command("schema")
def schema() -> None:
    """Print the schema of a job profile's JSON."""
    from profiles.export import json_schema
    from profiles.jobs import JobProfile

    print(json_schema(JobProfile), end="")


def _summary(row: JobProfile) -> dict[str, object]:
    run, pressure, curve = row.need("run_s"), row.pressure_by(), row.sensitivity_by()
    network = row.network
    return {
        "name": row.name,
        "id": row.id,
        "node": row.node,
        "kind": row.kind.key,
        "cores": row.cores,
        "run_s": run.value if run else None,
        "pressure_ratio": pressure.slowdown.value if pressure else None,
        "sensitivity_ratio": curve.levels[-1].slowdown.value if curve else None,
        "network_pressure_ratio": network.pressure.slowdown.value if network and network.pressure else None,
        "network_sensitivity_ratio": (
            network.sensitivity.levels[-1].slowdown.value if network and network.sensitivity else None
        ),
        "mpi_share": share.value if (share := row.need("mpi_share")) else None,
        "hosts": list(row.hosts),
        "clock": row.clock,
        "parallelism": None if row.scaling is None else row.scaling["A"].value,
        "repetitions": row.repetitions,
        "interrupted": row.interrupted,
        "emulated": row.emulated,
        "command": list(row.command),
    }


def _print_list(rows: list[JobProfile], here: str) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("No job profile yet; make one with 'tenbin job profile NAME -- CMD...'.")
        return
    table = Table(box=None, padding=(0, 1))
    for column in ("name", "made", "cores", "run time", "slows memprobe", "slowed by memprobe", ""):
        table.add_column(column, justify="left" if column in ("name", "made", "") else "right")
    for row in rows:
        run, pressure, curve = row.need("run_s"), row.pressure_by(), row.sensitivity_by()
        marks = {"interrupted": row.interrupted, "EMULATED": row.emulated, "other node": row.kind.key != here}
        table.add_row(
            row.name,
            row.id,
            str(row.cores),
            f"{run.value:.3g} s" if run else "-",
            f"{pressure.slowdown.value:.2f}x" if pressure else "-",
            f"{curve.levels[-1].slowdown.value:.2f}x" if curve else "-",
            " ".join(mark for mark, on in marks.items() if on),
        )
    Console(highlight=False).print(table)


def print_job(job: JobProfile) -> None:
    """The job profile on the terminal."""
    from rich.console import Console

    from tenbin.text import duration

    console = Console(highlight=False)
    kind = "quick" if job.quick else "full"
    made = job.created.astimezone().strftime("%Y-%m-%d %H:%M")
    marks = "".join(
        f" ({m})" for m, on in (("EMULATED", job.emulated), ("interrupted", job.interrupted)) if on
    )
    title = f"{job.name}: {kind} job profile {job.id}, made {made} in {duration(job.duration_s)}{marks}"
    console.print(f"[bold]{title}[/bold]")
    cpus, probes = (", ".join(map(str, some)) for some in (job.cpus, job.probe_cpus))
    memprobe = f"; memprobe on {probes}" if probes else ""
    ranks = f"{job.ranks} ranks on {', '.join(job.hosts) or 'this node'}, " if job.mpi else ""
    console.print(
        f"  cores      {ranks}{job.cores} (CPU {cpus}{memprobe}), {job.repetitions} repetitions", markup=False
    )
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
    if job.network:
        _network(console, job.network)
    if job.scaling is not None:
        print_scaling(console, job.scaling, _line)
    if job.note:
        console.print(f"\n{job.note}", markup=False)
    for absent in job.absent:
        console.print(f"Not measured: {absent.what}: {absent.reason}", markup=False)


def _pressure(console: Console, probe: str, found: ProbePressure) -> None:
    _line(console, f"{probe} is slowed down", found.slowdown, "x")
    if found.equivalent_gbs:
        _line(console, f"  as beside {probe} at", found.equivalent_gbs)
    elif found.note:
        console.print(f"    {found.note}", markup=False)


def _phases(console: Console, phases: Phases) -> None:
    from tenbin.text import sparkline

    _line(console, "  in the worst part of its run", phases.peak, "x")
    seen = [value for value in phases.slowdown if value is not None]
    words = "in bursts" if phases.bursts else "no bursts that stand out"
    console.print(f"  over its run, parts of {phases.bin_s:.3g} s: {words}", markup=False)
    console.print(f"    {sparkline(phases.slowdown)}  {min(seen):.2f} .. {max(seen):.2f}x", markup=False)


def _network(console: Console, half: NetworkHalf) -> None:
    mark = " (EMULATED: the hosts are one machine's)" if half.emulated else ""
    console.print(f"\n[bold]Beside comprobe, by run time[/bold]{mark}")
    if half.pressure:
        _pressure(console, "comprobe", half.pressure)
    if half.sensitivity:
        _curve(console, half.sensitivity)
    if half.note:
        console.print(f"  {half.note}", markup=False)


def _curve(console: Console, curve: Curve) -> None:
    for level in curve.levels[1:]:
        words = f"slowed down at {level.intensity_percent:.0f} %, {level.offered_gbs:.3g} GB/s"
        _line(console, words, level.slowdown, "x")


def _line(console: Console, words: str, found: Coefficient, unit: str = "") -> None:
    from tenbin.commands.show import QUALITY_STYLE
    from tenbin.text import interval, value_with_unit

    value = f"{value_with_unit(found)}{unit}"
    quality = f"[{QUALITY_STYLE[found.quality]}]{found.quality}[/]"
    console.print(f"  {words:<34} {value:>12} {interval(found):>20} {found.n:>4} {quality}", soft_wrap=True)


@contextmanager
def _progress() -> Iterator[Listener]:
    """Progress on standard error: a bar on a terminal, a line for each step elsewhere."""
    from tenbin.text import duration

    if not sys.stderr.isatty():

        def tell(progress: JobProgress) -> None:
            left = f" ({duration(progress.left_s)} left)" if progress.left_s else ""
            print(f"tenbin: {progress.doing}{left}", file=sys.stderr, flush=True)

        yield tell
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        BarColumn(bar_width=28),
        TextColumn("{task.fields[left]:>9} left"),
        TextColumn("[dim]{task.description}[/dim]", markup=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=1.0, left="")

        def show_bar(progress: JobProgress) -> None:
            left = duration(progress.left_s) if progress.left_s else "?"
            bars.update(task, description=progress.doing, completed=progress.fraction, left=left)

        yield show_bar
