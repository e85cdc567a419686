"""Job profiles on the terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

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


def to_measure(job: JobProfile) -> str:
    """The command that measures the job as it was measured."""
    where = f"-n {job.cores}{' --mpi' if job.mpi else ''}"
    if job.hosts:
        where = f"-n {job.ranks} --hosts {','.join(job.hosts)}"
    return f"tenbin job profile {job.name} {where} -- {shlex.join(job.command)}"


def print_list(rows: list[JobProfile], here: str) -> None:
    """The stored job profiles; ``here``: this kind of node."""
    from rich.markup import escape
    from rich.table import Table

    from tenbin.terminal import SafeConsole

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
            escape(row.id),
            str(row.cores),
            f"{run.value:.3g} s" if run else "-",
            f"{pressure.slowdown.value:.2f}x" if pressure else "-",
            f"{curve.levels[-1].slowdown.value:.2f}x" if curve else "-",
            " ".join(mark for mark, on in marks.items() if on),
        )
    SafeConsole().print(table)


def print_job(job: JobProfile) -> None:
    """The job profile on the terminal."""
    from tenbin.terminal import SafeConsole
    from tenbin.text import duration

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
    """What a quick profile takes for granted, said by its curve."""
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


def _scaling(console: Console, model: Model) -> None:
    from rich.markup import escape

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
    from rich.markup import escape
    from rich.table import Table

    mark = f" (EMULATED: {escape(caps.emulated)})" if caps.emulated else ""
    console.print(
        f"\n[bold]Under power caps[/bold]{mark}  [dim](cap of each package; of those it runs on)[/dim]"
    )
    table = Table(box=None, padding=(0, 1))
    for column in ("cap", "run time", "power", "energy", ""):
        table.add_column(column, justify="left" if not column else "right")
    least = min(caps.levels, key=lambda level: level.energy_j.value)
    for level in caps.levels:
        marks = (["least energy"] if level is least else []) + ([] if level.held else ["cap not kept to"])
        table.add_row(
            "none" if level.cap_w is None else f"{level.cap_w:.3g} W",
            f"{level.run_s.value:.3g} s",
            f"{level.power_w.value:.3g} W",
            f"{level.energy_j.value:.3g} J",
            ", ".join(marks),
        )
    console.print(table)
    for found in caps.speed.coefficients if caps.speed else ():
        if found.name in CAPS:
            _line(console, CAPS[found.name], found)
    if caps.note:
        console.print(f"  {caps.note}", markup=False)


def _line(console: Console, words: str, found: Coefficient, unit: str = "") -> None:
    from rich.markup import escape

    from tenbin.terminal import QUALITY_STYLE
    from tenbin.text import interval, value_with_unit

    value = f"{value_with_unit(found)}{unit}"
    quality = f"[{QUALITY_STYLE[found.quality]}]{found.quality}[/]"
    row = f"  {words:<34} {value:>12} {interval(found):>20} {found.n:>4} "
    console.print(escape(row) + quality, soft_wrap=True)
