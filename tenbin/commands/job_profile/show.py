"""``tenbin job show``, ``list`` and ``schema``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from profiles.errors import BadInput
from tenbin.commands.options import JsonOption, StoreOption, complete_job_profile
from tenbin.terminal import QUALITY_STYLE, SafeConsole, table
from tenbin.text import as_json, duration, interval, print_json, say, sparkline, value_with_unit

if TYPE_CHECKING:
    from rich.console import Console

    from profiles.jobs import Clock, Curve, JobProfile, NetworkHalf, Phases, ProbePressure, UnderCaps
    from profiles.records import Coefficient, Model

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
        help="NAME, or NAME@ID of an older one.", autocompletion=complete_job_profile, metavar="NAME"
    ),
]


def show(name: JobArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show a job profile: needs alone, pressure on others, sensitivity to others."""
    from agent.node_profile.identity import node_kind
    from profiles.files.store import JobStore

    kind = node_kind()
    found = JobStore(store).load(name, kind.key)
    if json:
        print(as_json(found))
        return
    print_job(found)
    if found.kind.key != kind.key:
        print(f"\nOF ANOTHER KIND OF NODE. This one is {kind.title}; measure it here:")
        say(to_measure(found))


def list_jobs(store: StoreOption = None, json: JsonOption = False) -> None:
    """List the stored job profiles, newest first; a damaged one is named and costs no other."""
    from agent.node_profile.identity import node_kind
    from profiles.files.store import JobStore, load_job

    here, rows, broken = node_kind().key, [], []
    for path in JobStore(store).paths():
        try:
            rows.append(load_job(path))
        except BadInput as error:
            broken.append(str(error))
    if json:
        listed = [{**_summary(row), "this_kind": row.kind.key == here} for row in rows]
        print_json({"job_profiles": listed, "damaged": broken})
    else:
        print_list(rows, here)
        for problem in broken:
            say(f"tenbin: {problem}", error=True)
    if broken:
        raise typer.Exit(BadInput.exit_code)


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
        "sessions": row.sessions,
        "interrupted": row.interrupted,
        "emulated": row.emulated,
        "command": list(row.command),
    }


def to_measure(job: JobProfile) -> str:
    """Write the command that measures the job as it was measured."""
    where = f"-n {job.cores}{' --mpi' if job.mpi else ''}"
    if job.hosts:
        where = f"-n {job.ranks} --hosts {','.join(job.hosts)}"
    return f"tenbin job profile {job.name} {where} -- {shlex.join(job.command)}"


def print_list(rows: list[JobProfile], here: str) -> None:
    """Print the stored job profiles; ``here`` is this kind of node."""
    if not rows:
        print("No job profile yet; make one with 'tenbin job profile NAME -- CMD...'.")
        return
    columns = ("name", "made", "cores", "run time", "slows memprobe", "slowed by memprobe", "")
    listed = table(*columns, left=("name", "made", ""))
    for row in rows:
        run, pressure, curve = row.need("run_s"), row.pressure_by(), row.sensitivity_by()
        marks = {"interrupted": row.interrupted, "EMULATED": row.emulated, "other node": row.kind.key != here}
        listed.add_row(
            row.name,
            escape(row.id),
            str(row.cores),
            f"{run.value:.3g} s" if run else "-",
            f"{pressure.slowdown.value:.2f}x" if pressure else "-",
            f"{curve.levels[-1].slowdown.value:.2f}x" if curve else "-",
            " ".join(mark for mark, on in marks.items() if on),
        )
    SafeConsole().print(listed)


def print_job(job: JobProfile) -> None:
    """Print a job profile."""
    console = SafeConsole()
    kind = "quick" if job.quick else "full"
    made = job.created.astimezone().strftime("%Y-%m-%d %H:%M")
    marks = "".join(
        f" ({m})" for m, on in (("EMULATED", job.emulated), ("interrupted", job.interrupted)) if on
    )
    title = f"{job.name}: {kind} job profile {job.id}, made {made} in {duration(job.duration_s)}{marks}"
    console.print(title, style="bold", markup=False)
    cpus, probes = (", ".join(map(str, some)) for some in (job.cpus, job.probe_cpus))
    memprobe = f"; memprobe on {probes}" if probes else ""
    ranks = f"{job.ranks} ranks on {', '.join(job.hosts) or 'this node'}, " if job.mpi else ""
    times = f"{job.repetitions} repetitions" + (f" in {job.sessions} sessions" if job.sessions > 1 else "")
    console.print(f"  cores      {ranks}{job.cores} (CPU {cpus}{memprobe}), {times}", markup=False)
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
        console.print(f"\n{unmeasured(job)}", markup=False, soft_wrap=True)
    if job.network:
        _network(console, job.network)
    if job.scaling is not None:
        _scaling(console, job.scaling)
    if job.caps is not None:
        _caps(console, job.caps)
    if job.note:
        console.print(f"\n{job.note}", markup=False)
    for absent in job.absent:
        console.print(f"Not measured: {absent.what}: {absent.reason}", markup=False)


def unmeasured(job: JobProfile) -> str:
    """Say what a quick profile takes for granted about its curve."""
    curve = job.sensitivity_by()
    at = [f"{level.intensity_percent:.0f}" for level in curve.levels] if curve else ["0", "100"]
    return (
        f"Quick: {job.repetitions} repetitions; sensitivity is taken to be straight between "
        f"{', '.join(at[:-1])} and {at[-1]} %."
    )


def _pressure(console: Console, probe: str, found: ProbePressure) -> None:
    _line(console, f"{probe} is slowed down", found.slowdown, "x")
    if found.equivalent_gbs:
        what = "  as beside memprobe at" if probe == "memprobe" else f"  alone it takes as much as {probe} at"
        _line(console, what, found.equivalent_gbs)
    elif found.note:
        console.print(f"    {found.note}", markup=False)


def _phases(console: Console, phases: Phases) -> None:
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


def _scaling(console: Console, model: Model) -> None:
    from profiles.models.downey import verdict

    over = f"Over ranks on {model.labels['hosts']}" if "hosts" in model.labels else "Over cores"
    mark = " (EMULATED: the hosts are one machine's)" if model.emulated else ""
    console.print(f"\n[bold]{escape(over)}[/bold]{mark}", end="  ")
    console.print(verdict(model), markup=False)
    for found in model.coefficients:
        _line(console, SCALING.get(found.name, found.name), found)
    if model.note:
        console.print(f"    {model.note}", markup=False)


def _caps(console: Console, caps: UnderCaps) -> None:
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
    for found in caps.speed.coefficients if caps.speed else ():
        if found.name in CAPS:
            _line(console, CAPS[found.name], found)
    if caps.note:
        console.print(f"  {caps.note}", markup=False)


def _line(console: Console, words: str, found: Coefficient, unit: str = "") -> None:
    value = f"{value_with_unit(found)}{unit}"
    quality = f"[{QUALITY_STYLE[found.quality]}]{found.quality}[/]"
    row = f"  {words:<34} {value:>12} {interval(found):>20} {found.n:>4} "
    console.print(escape(row) + quality, soft_wrap=True)
