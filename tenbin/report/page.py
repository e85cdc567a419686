"""The report of one profile: a single HTML file that needs no network and no server.

To draw it, samples are read and numpy and pandas imported, which takes longer than all the rest. So the
pictures are kept, in the user's cache and not in the store, because a store may come from somebody else, and
what is kept becomes part of the page as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

import profiles
from agent.node_profile.identity import kin, node_kind
from probes.registry import PROBES
from profiles.card import MEANINGS, ROUNDS_MEANING, card, trust
from profiles.errors import BadInput
from profiles.files.safe_files import closed_folder, default_storage, open_own, write_chosen, write_whole
from profiles.files.store import JobStore, Store, load, load_job, samples
from profiles.peaks import judge
from profiles.records import ROUNDS_DIFFER, Profile
from tenbin import text
from tenbin.report.html import write

if TYPE_CHECKING:
    from profiles.compare import Difference
    from profiles.jobs import JobProfile

KEPT = 50  # profiles


def write_report(path: Path, output: Path, *, interactive: bool = False) -> None:
    """Draw the profile stored at ``path`` into the HTML file ``output``; ``interactive``: see ``write``."""
    profile, path = load(path), path.absolute()
    drawn = _draw(path, profile, interactive=True) if interactive else pictures(path, profile)
    older, others = previous(path, profile), kin(Store(_root(path)), profile)
    try:
        write_chosen(output, render(profile, drawn, older, others=others, interactive=interactive))
    except OSError as error:
        raise BadInput(
            f"report {output}: {error.strerror}", "choose a file in a folder you may write"
        ) from error


def jobs_beside(path: Path, profile: Profile) -> list[Path]:
    """List the newest job profile of each name, of this kind of node, in the same store."""
    return list(JobStore(_root(path)).newest(node_kind(profile.inventory).key).values())


def _root(path: Path) -> Path:
    """Return the folder that is the store of a profile's file, if it is in one."""
    return path.parent.parent.parent


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


# -- pictures, drawn once --------------------------------------------------------------------------------


def pictures(path: Path, profile: Profile) -> dict[str, Any]:
    """Return the pictures as ``drawings.draw`` does: those that were kept, if nothing has changed since."""
    kept = None
    with suppress(OSError, ValueError, BadInput):  # no folder for them, or one that others may change
        folder = closed_folder(closed_folder(default_storage()) / "pictures")
        kept = folder / f"{_drawn_from(path, profile)}.json"
        with os.fdopen(open_own(kept, os.O_RDONLY), encoding="utf-8") as file:
            drawn: dict[str, Any] = json.load(file)
        return drawn
    drawn = _draw(path, profile)
    if kept:
        with suppress(OSError):
            write_whole(kept, json.dumps(drawn), mode=0o600)
            every = sorted(kept.parent.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
            for old in every[KEPT:]:
                old.unlink(missing_ok=True)
    return drawn


def _drawn_from(path: Path, profile: Profile) -> str:
    """Return a digest of what the pictures are drawn from: profiles, samples, and the code."""
    code = [file for package in (__file__, profiles.__file__) for file in Path(package).parent.rglob("*.py")]
    files = [path, *path.parent.glob("samples/*.parquet"), *jobs_beside(path, profile), *code]
    about = [(str(file.absolute()), file.stat()) for file in files]
    return hashlib.sha256(repr(sorted((n, s.st_size, s.st_mtime_ns) for n, s in about)).encode()).hexdigest()


def _draw(path: Path, profile: Profile, *, interactive: bool = False) -> dict[str, Any]:
    from tenbin.report.drawings import draw  # late, because this imports numpy and pandas

    jobs: list[JobProfile] = []
    for job in jobs_beside(path, profile):
        with suppress(BadInput):  # damaged
            jobs.append(load_job(job))
    return draw(profile, samples(path), jobs, interactive=interactive)


# -- the page --------------------------------------------------------------------------------------------


def render(
    profile: Profile,
    drawn: dict[str, Any],
    older: Profile | None,
    *,
    others: Sequence[Profile] = (),
    interactive: bool = False,
) -> str:
    """Write the page as one string; ``drawn``: its pictures; ``others``: profiles of nodes of its kind."""
    common, drift = _compared(older, profile) if older else ([], [])
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
        sections=_sections(profile, drawn),
        jobs=drawn["jobs"] and _marked(drawn["jobs"]),
        older=older,
        common=common,
        changed=[d for d in common if not d.intervals_overlap],
        drift=drift,
    )


def _compared(older: Profile, profile: Profile) -> tuple[list[Difference], list[str]]:
    """List the coefficients that both have, and how the conditions differed."""
    from profiles.compare import compare, explain_drift  # late: most profiles are their node's first

    common = [d for d in compare(older, profile) if d.intervals_overlap is not None]
    return common, explain_drift(older, profile)


def _sections(profile: Profile, drawn: dict[str, Any]) -> list[dict[str, Any]]:
    """Add the coefficients of each probe to its pictures."""
    sections = []
    for section in drawn["sections"]:
        models = [m for m in profile.models if m.probe == section["name"]]
        of = {"models": models, "emulated": any(m.emulated for m in models)}
        sections.append(_marked(section) | {"title": PROBES[section["name"]].title} | of)
    return sections


def _marked(section: dict[str, Any]) -> dict[str, Any]:
    """Mark the pictures as text that is HTML already."""
    return section | {"figures": [Markup(figure) for figure in section["figures"]]}


# -- the pictures alone, for the live page ---------------------------------------------------------------


def sections(path: Path, profile: Profile) -> list[dict[str, Any]]:
    """Return title, explanation and pictures of each probe, and of the job profiles, without the numbers."""
    drawn = pictures(path, profile)
    of_jobs = [{"title": "Jobs"} | drawn["jobs"]] if drawn["jobs"] else []
    names = "title", "explanation", "figures", "emulated"
    every = [*_sections(profile, drawn), *of_jobs]
    return [{name: section[name] for name in names} for section in every if section["figures"]]


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
            "sections": sections(path, profile),
        }
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
