"""The folders of jobs, as they lie in the coordinator's folder."""

from __future__ import annotations

from pathlib import Path


def job_folders(store: Path) -> dict[int, Path]:
    """Return the folders of jobs, by the job's number."""
    try:
        found = list((store / "jobs").iterdir())
    except FileNotFoundError:
        return {}
    return {int(path.name): path for path in found if path.name.isascii() and path.name.isdecimal()}


def attempts_of(folder: Path) -> list[int]:
    """Return the numbers of the attempts that have a folder in that of their job."""
    names = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
    return [int(name) for name in names if name.isascii() and name.isdecimal()]
