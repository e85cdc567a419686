"""The store of job profiles, beside the profiles of nodes.

    <root>/jobs/<node kind>/<name>/<id>/profile.json
                                       /samples/<table>.parquet

A folder is written aside and renamed, so it is there whole or not at all. A name that is measured again keeps
its older profiles; the newest is meant unless another is named: ``NAME@ID``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from profiles.errors import BadInput
from profiles.files import check_store, read_regular, save_profile
from profiles.jobs import JobProfile
from profiles.store import default_root

if TYPE_CHECKING:
    import pandas as pd


def load(path: Path) -> JobProfile:
    """Read one file of a job profile.

    Raises:
        BadInput: not there, damaged, or not a job profile; the field is named.
    """
    try:
        return JobProfile.model_validate_json(read_regular(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})", "check the path and its permissions") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise BadInput(
            f"{path}: field {where}: {first['msg']}", "delete its folder and measure the job again"
        ) from error


class JobStore:
    """All job profiles under one folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()) / "jobs"

    def prepare(self) -> None:
        """Make sure that the store can be written, before minutes are spent on measuring.

        Raises:
            BadInput: it cannot.
        """
        check_store(self.root)

    def save(self, profile: JobProfile, samples: Mapping[str, pd.DataFrame]) -> Path:
        """Write a profile with its samples; returns its folder.

        Raises:
            BadInput: the store cannot be written.
        """
        folder = self.root / profile.kind.key / profile.name / profile.id
        save_profile(folder, profile.model_dump_json(indent=1) + "\n", samples, self.root)
        return folder

    def paths(self, kind: str = "*", name: str = "[!.]*") -> list[Path]:
        """The profile files of a kind of node and a name, newest first."""
        return sorted(
            self.root.glob(f"{kind}/{name}/[!.]*/profile.json"),
            key=lambda path: path.parent.name,
            reverse=True,
        )

    def newest(self, kind: str) -> dict[str, Path]:
        """The newest profile file of each name on that kind of node."""
        found: dict[str, Path] = {}
        for path in self.paths(kind):
            found.setdefault(path.parent.parent.name, path)
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """Every name that has a profile, on whatever kind of node."""
        return sorted({path.parent.parent.name for path in self.paths()})

    def find(self, selector: str, kind: str) -> Path:
        """The profile file of ``NAME`` or ``NAME@ID``: of this kind of node if there is one, else of another.

        Raises:
            BadInput: there is none.
        """
        name, _, wanted = selector.partition("@")
        paths = self.paths(name=name) if name and "/" not in name and "*" not in name else []
        paths = [path for path in paths if path.parent.name.startswith(wanted)]
        if not paths:
            known = ", ".join(self.names()) or "none yet"
            raise BadInput(
                f"no job profile '{selector}' in {self.root} (there are: {known})",
                f"make it with: tenbin job profile {name or 'NAME'} -- CMD...",
            )
        return next((path for path in paths if path.parents[2].name == kind), paths[0])

    def load(self, selector: str, kind: str) -> JobProfile:
        """The profile that ``selector`` names; see ``find``."""
        return load(self.find(selector, kind))
