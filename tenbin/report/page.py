"""The report of one profile: a single HTML file that needs no network and no server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from agent.node_profile.identity import node_kind
from probes.registry import PROBES
from profiles.card import MEANINGS, ROUNDS_DIFFER, ROUNDS_MEANING, card, trust
from profiles.compare import Difference, compare, explain_drift
from profiles.errors import BadInput
from profiles.files.safe_files import write_chosen
from profiles.files.store import JobStore, load, load_job, samples
from profiles.jobs import JobProfile
from profiles.records import Profile
from tenbin import text
from tenbin.report.pictures import picture
from tenbin.report.style import write


def write_report(path: Path, output: Path, *, interactive: bool = False) -> None:
    """Draw the profile stored at ``path`` into the HTML file ``output``; ``interactive``: see ``write``."""
    profile = load(path)
    page = render(
        profile, samples(path), previous(path, profile), jobs_beside(path, profile), interactive=interactive
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
        except BadInput:  # a damaged neighbour is 'tenbin list's business
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
    interactive: bool = False,
) -> str:
    """Write the page as one string."""
    common = _common(older, profile)
    return write(
        "page.html",
        interactive=interactive,
        profile=profile,
        headline=text.headline(profile),
        trust=trust(profile),
        card=card(profile),
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
    from tenbin.report import jobs as drawing

    return {
        "explanation": drawing.EXPLANATION,
        "figures": [picture(figure, interactive=interactive) for figure in drawing.figures(jobs)],
        "columns": drawing.COLUMNS,
        "rows": drawing.table(jobs),
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
    drawing = _drawing(name)
    try:
        figures = drawing.figures(tables[name], models) if drawing and name in tables else []
    except KeyError as error:
        what = f"samples/{name}.parquet beside the profile: it has no column {error}"
        raise BadInput(what, "delete it; the profile stays") from error
    if drawing and hasattr(drawing, "figures_across"):
        figures += drawing.figures_across(profile.models)
    return {
        "name": name,
        "title": PROBES[name].title,
        "explanation": drawing.EXPLANATION if drawing and figures else "",  # of the pictures
        "figures": [picture(figure, interactive=interactive) for figure in figures],
        "models": models,
        "emulated": any(m.emulated for m in models),
        "rows": len(tables[name]) if name in tables else 0,
    }


def _drawing(name: str) -> ModuleType | None:
    module = f"tenbin.report.probes.{name}"
    return import_module(module) if find_spec(module) else None


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
