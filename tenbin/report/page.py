"""The report of one profile: a single HTML file that needs no network and no server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from agent.node_profile.identity import kin, node_kind
from probes.registry import PROBES
from profiles.card import MEANINGS, ROUNDS_DIFFER, ROUNDS_MEANING, card, trust
from profiles.compare import Difference, compare, explain_drift
from profiles.errors import BadInput
from profiles.files.safe_files import write_chosen
from profiles.files.store import JobStore, Store, load, load_job, samples
from profiles.jobs import Curve, JobProfile
from profiles.models import knee
from profiles.models.downey import predict, verdict
from profiles.peaks import judge
from profiles.records import Coefficient, Model, Profile, Quality
from tenbin import text
from tenbin.report.pictures import COLOURS, Figure, figure, picture, write

SHARED = {  # probe -> the file, and in it the function and the explanation; as in ``profiles.fits``
    "streams": ("memory", "stream_figures", "STREAMS_EXPLANATION"),
    "messages": ("network", "message_figures", "MESSAGES_EXPLANATION"),
    "scaling": ("compute", "scaling_figures", "SCALING_EXPLANATION"),
}


def write_report(path: Path, output: Path, *, interactive: bool = False) -> None:
    """Draw the profile stored at ``path`` into the HTML file ``output``; ``interactive``: see ``write``."""
    profile = load(path)
    page = render(
        profile,
        samples(path),
        previous(path, profile),
        jobs_beside(path, profile),
        others=kin(Store(path.parents[2]), profile),
        interactive=interactive,
    )
    try:
        write_chosen(output, page)
    except OSError as error:
        raise BadInput(
            f"report {output}: {error.strerror}", "choose a file in a folder you may write"
        ) from error


def jobs_beside(path: Path, profile: Profile) -> list[JobProfile]:
    """Load the newest job profile of each name, of this kind of node, in the same store; no damaged ones."""
    jobs = []
    for job in JobStore(path.parents[2]).newest(node_kind(profile.inventory).key).values():
        with suppress(BadInput):
            jobs.append(load_job(job))
    return jobs


def previous(path: Path, profile: Profile) -> Profile | None:
    """Load the profile of the same node and kind made before this one, if the store has a readable one."""
    for other in sorted(path.parent.parent.glob("[!.]*/profile.json"), reverse=True):
        if other.parent.name >= path.parent.name:
            continue
        try:
            older = load(other)
        except BadInput:  # a damaged neighbour is 'tenbin profile list's business
            continue
        if older.settings.quick == profile.settings.quick:
            return older
    return None


def render(
    profile: Profile,
    tables: dict[str, pd.DataFrame],
    older: Profile | None,
    jobs: Sequence[JobProfile] = (),
    *,
    others: Sequence[Profile] = (),
    interactive: bool = False,
) -> str:
    """Write the page as one string; ``others``: profiles of other nodes of its kind."""
    common = _common(older, profile)
    return write(
        "page.html",
        interactive=interactive,
        profile=profile,
        headline=text.headline(profile),
        trust=trust(profile),
        card=card(profile),
        judged=judge(profile, others),
        meanings=MEANINGS | {ROUNDS_DIFFER: ROUNDS_MEANING},
        machine=text.machine_lines(profile.inventory),
        sections=[
            _section(name, profile, tables, interactive=interactive)
            for name in PROBES
            if _has(name, profile, tables)
        ],
        jobs=_jobs(jobs, interactive=interactive),
        older=older,
        common=common,
        changed=[d for d in common if not d.intervals_overlap],
        drift=explain_drift(older, profile) if older else [],
    )


def sections(
    profile: Profile, tables: dict[str, pd.DataFrame], jobs: Sequence[JobProfile] = ()
) -> list[dict[str, Any]]:
    """Return title, explanation and pictures of each probe, and of the job profiles, without the numbers."""
    drawn = [
        _section(name, profile, tables, interactive=False) for name in PROBES if _has(name, profile, tables)
    ]
    if of_jobs := _jobs(jobs, interactive=False):
        drawn.append({"title": "Jobs", "emulated": any(job.emulated for job in jobs)} | of_jobs)
    names = "title", "explanation", "figures", "emulated"
    return [{name: section[name] for name in names} for section in drawn if section["figures"]]


def _jobs(jobs: Sequence[JobProfile], *, interactive: bool) -> dict[str, Any] | None:
    """Return explanation, pictures and a table of the job profiles; None without any."""
    if not jobs:
        return None
    return {
        "explanation": JOBS_EXPLANATION,
        "figures": [picture(fig, interactive=interactive) for fig in job_figures(jobs)],
        "columns": JOB_COLUMNS,
        "rows": job_table(jobs),
    }


def _common(older: Profile | None, profile: Profile) -> list[Difference]:
    return [d for d in compare(older, profile) if d.intervals_overlap is not None] if older else []


def _has(name: str, profile: Profile, tables: dict[str, pd.DataFrame]) -> bool:
    return name in tables or any(m.probe == name for m in profile.models)


def _section(
    name: str, profile: Profile, tables: dict[str, pd.DataFrame], *, interactive: bool
) -> dict[str, Any]:
    """Return explanation, pictures and coefficients of one probe."""
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
        "title": PROBES[name].title,
        "explanation": drawing.explanation if drawing and figures else "",  # of the pictures
        "figures": [picture(fig, interactive=interactive) for fig in figures],
        "models": models,
        "emulated": any(m.emulated for m in models),
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


# -- the pictures alone, for the live page -----------------------------------------------------------------


def main() -> int:
    """Print the pictures of the profile that the first argument names, as JSON."""
    path = Path(sys.argv[1])
    try:
        profile = load(path)
        answer = {
            "id": profile.id,
            "headline": text.headline(profile),
            "trust": trust(profile).sentence,
            "emulated": profile.emulated,
            "sections": sections(profile, samples(path), jobs_beside(path, profile)),
        }
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
