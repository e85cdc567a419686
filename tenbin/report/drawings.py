"""The pictures of one profile: of the samples and fits of each probe, and of job profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import pandas as pd

from probes.registry import PROBES
from profiles.errors import BadInput
from profiles.jobs import Curve, JobProfile
from profiles.models import knee
from profiles.models.downey import predict, verdict
from profiles.records import Coefficient, Model, Profile, Quality
from tenbin import text
from tenbin.report.pictures import COLOURS, Figure, figure, picture

SHARED = {  # probe -> the file, and in it the function and the explanation; as in ``profiles.fits``
    "streams": ("memory", "stream_figures", "STREAMS_EXPLANATION"),
    "messages": ("network", "message_figures", "MESSAGES_EXPLANATION"),
    "scaling": ("compute", "scaling_figures", "SCALING_EXPLANATION"),
}


def draw(
    profile: Profile,
    tables: Mapping[str, pd.DataFrame],
    jobs: Sequence[JobProfile],
    *,
    interactive: bool = False,
) -> dict[str, Any]:
    """Return explanation, pictures and number of samples of each probe (``sections``), and of ``jobs``.

    Raises:
        BadInput: samples lack a column.
    """
    return {
        "sections": [
            _section(name, profile, tables, interactive=interactive)
            for name in PROBES
            if name in tables or any(m.probe == name for m in profile.models)
        ],
        "jobs": _jobs(jobs, interactive=interactive),
    }


def _section(
    name: str, profile: Profile, tables: Mapping[str, pd.DataFrame], *, interactive: bool
) -> dict[str, Any]:
    models = [m for m in profile.models if m.probe == name]
    drawing, table = _drawing(name), tables.get(name, pd.DataFrame())
    try:
        figures = drawing.figures(table, models) if drawing and len(table) else []
    except KeyError as error:
        what = f"samples/{name}.parquet beside the profile: it has no column {error}"
        raise BadInput(what, "delete it; the profile stays") from error
    if drawing:
        figures += drawing.figures_across(profile.models)
    return {
        "name": name,
        "explanation": drawing.explanation if drawing and figures else "",  # of the pictures
        "figures": [picture(fig, interactive=interactive) for fig in figures],
        "rows": len(table),
    }


class Drawing(NamedTuple):
    """The pictures of a probe; ``figures_across`` draws several probes together, by the models of all."""

    explanation: str
    figures: Callable[[pd.DataFrame, list[Model]], list[Figure]]
    figures_across: Callable[[Sequence[Model]], list[Figure]]


def _drawing(name: str) -> Drawing | None:
    file, figures, explanation = SHARED.get(name, (name, "figures", "EXPLANATION"))
    module = f"tenbin.report.probes.{file}"
    if not find_spec(module):
        return None
    of = vars(import_module(module))
    return Drawing(of[explanation], of[figures], of.get("figures_across", lambda models: []))


# -- pictures of job profiles: what each suffers from, and what it does over the course of its run ---------


JOBS_EXPLANATION = (
    "Each program ran alone and beside a probe at graded intensity: memprobe, which writes through memory, "
    "and over hosts comprobe, which communicates all to all. The curves say how much slower the program got "
    "(the bars are 95 % intervals). Over the course of a run memprobe tells when the program presses on "
    "memory: a mean hides bursts. What programs need of OpenCL devices was seen by a layer below them."
)
JOB_COLUMNS = (
    *("job", "alone", "slows memprobe", "in its worst part", "slows comprobe"),
    *("slowed by memprobe", "slowed by comprobe", "inside MPI", "over cores", "OpenCL device"),
)


def _jobs(jobs: Sequence[JobProfile], *, interactive: bool) -> dict[str, Any] | None:
    """Return explanation, pictures and a table of the job profiles; None without any."""
    if not jobs:
        return None
    return {
        "explanation": JOBS_EXPLANATION,
        "figures": [picture(fig, interactive=interactive) for fig in job_figures(jobs)],
        "columns": JOB_COLUMNS,
        "rows": job_table(jobs),
        "emulated": any(job.emulated for job in jobs),
    }


def job_figures(jobs: Sequence[JobProfile]) -> list[Figure]:
    """Draw sensitivity to memory and to the network, and phases, where there is something to draw."""
    memory = {job.name: curve for job in jobs if (curve := job.sensitivity_by())}
    network = {job.name: job.network.sensitivity for job in jobs if job.network and job.network.sensitivity}
    emulated = " (emulated hosts)" if any(job.network and job.network.emulated for job in jobs) else ""
    drawn = [
        _curves("Slowed down by memprobe", "memprobe's traffic beside nobody, GB/s", memory),
        _curves(f"Slowed down by comprobe{emulated}", "what each rank of comprobe sends, GB/s", network),
        _phases(jobs),
        _scaling(jobs),
        _under_caps(jobs),
    ]
    return [fig for fig in drawn if fig.data]


def job_table(jobs: Sequence[JobProfile]) -> list[tuple[str, ...]]:
    """Write a row of words for each job, under ``JOB_COLUMNS``."""
    return [_job_row(job) for job in jobs]


def _job_row(job: JobProfile) -> tuple[str, ...]:
    def times(coefficient: Coefficient | None) -> str:
        return "-" if coefficient is None else f"{coefficient.value:.2f}x ({text.interval(coefficient)})"

    run, share, pressure = job.need("run_s"), job.need("mpi_share"), job.pressure_by()
    phases, half, memory = job.phases_by(), job.network, job.sensitivity_by()
    network = half.sensitivity if half else None
    peak = times(phases.peak if phases else None)
    emulated = job.emulated or (half and half.emulated) or (job.caps and job.caps.emulated)
    return (
        f"{job.name}{' EMULATED' if emulated else ''}",
        text.value_with_unit(run) if run else "-",
        times(pressure.slowdown if pressure else None),
        f"{peak}, in bursts" if phases and phases.bursts else peak,
        times(half.pressure.slowdown if half and half.pressure else None),
        times(memory.levels[-1].slowdown if memory else None),
        times(network.levels[-1].slowdown if network else None),
        f"{share.value:.0%}" if share else "-",
        verdict(job.scaling) if job.scaling else "-",
        _on_device(job),
    )


def _on_device(job: JobProfile) -> str:
    """Write what the job needs of an OpenCL device."""
    words = {
        "device_memory_mb": "",
        "kernels": " kernels",
        "compile_s": " to build (K)",
        "drain_s": " to drain",
    }
    needs = ((job.need(name), unit) for name, unit in words.items())
    return ", ".join(f"{text.value_with_unit(need)}{unit}" for need, unit in needs if need) or "-"


def _scaling(jobs: Sequence[JobProfile]) -> Figure:
    fig = figure("Speed-up over cores (Downey), as far as it was measured", "cores", "speed-up")
    for job in jobs:
        if job.scaling is not None:
            cores = range(1, int(job.scaling.x_max or 1) + 1)
            times = [predict(job.scaling, n).value for n in cores]
            poor = job.scaling["A"].quality is Quality.POOR
            fig.add_scatter(
                x=list(cores),
                y=[times[0] / took for took in times],
                name=f"{job.name}{' (poor: dashed)' * poor}",
                line={"dash": "dash" if poor else "solid"},
            )
    return fig


def _under_caps(jobs: Sequence[JobProfile]) -> Figure:
    fig = figure("Speed under power caps: runs, and the line through them", "cap of each package, W", "speed")
    for i, job in enumerate(jobs):
        if job.caps is None:
            continue
        name = f"{job.name}{' EMULATED' if job.caps.emulated else ''}"
        *capped, free = job.caps.levels
        caps = [level.cap_w or 0.0 for level in capped]
        speeds = [free.run_s.value / level.run_s.value for level in capped]
        colour = COLOURS[i % len(COLOURS)]
        words = [f"{level.run_s.value:.3g} s, {level.energy_j.value:.3g} J" for level in capped]
        fig.add_scatter(x=caps, y=speeds, text=words, name=name, mode="markers", marker={"color": colour})
        if job.caps.speed is not None:
            line = [knee.predict(job.caps.speed, cap).value for cap in caps]
            fig.add_scatter(x=caps, y=line, mode="lines", line={"color": colour}, showlegend=False)
    return fig


def _curves(title: str, x: str, curves: dict[str, Curve]) -> Figure:
    fig = figure(title, x, "run time / alone")
    for i, (name, curve) in enumerate(curves.items()):
        times = [level.slowdown for level in curve.levels]
        fig.add_scatter(
            x=[level.offered_gbs for level in curve.levels],
            y=[time.value for time in times],
            error_y={
                "type": "data",
                "array": [time.high - time.value if time.high is not None else 0.0 for time in times],
                "arrayminus": [time.value - time.low if time.low is not None else 0.0 for time in times],
            },
            name=name,
            line={"color": COLOURS[i % len(COLOURS)]},
        )
    return fig


def _phases(jobs: Sequence[JobProfile]) -> Figure:
    fig = figure("memprobe over the course of a run", "share of the run, %", "memprobe slowed down")
    for job in jobs:
        if phases := job.phases_by():
            parts = len(phases.slowdown)
            x = [100 * (part + 0.5) / parts for part in range(parts)]
            fig.add_scatter(x=x, y=phases.slowdown, name=job.name, line={"shape": "hvh"})
    return fig
