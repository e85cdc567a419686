"""Store of job profiles, beside the profiles of nodes.

    <root>/jobs/<node kind>/<name>/<id>/profile.json
                                       /samples/<table>.parquet

A folder is written aside and renamed, so it is there whole or not at all. A name that is measured again keeps
its older profiles; ``NAME`` means the newest, ``NAME@ID`` any.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import BadInput
from profiles.files.store import Prepared, default_root, load_record, save_profile
from profiles.jobs import JobProfile

if TYPE_CHECKING:
    import pandas as pd


def load(path: Path) -> JobProfile:
    """Read the file of a job profile.

    Raises:
        BadInput: not there, damaged, or not a job profile; the field is named.
    """
    return load_record(JobProfile, path, "delete its folder and measure the job again")


class JobStore(Prepared):
    """All job profiles under a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()) / "jobs"

    def save(self, profile: JobProfile, samples: Mapping[str, pd.DataFrame]) -> Path:
        """Write a profile with its samples; return its folder.

        Raises:
            BadInput: the store cannot be written.
        """
        folder = self.root / profile.kind.key / profile.name / profile.id
        save_profile(folder, profile.model_dump_json(indent=1) + "\n", samples, self.root)
        return folder

    def paths(self, kind: str = "*", name: str = "[!.]*") -> list[Path]:
        """List the profile files of a kind of node and a name, newest first."""
        return sorted(
            self.root.glob(f"{kind}/{name}/[!.]*/profile.json"),
            key=lambda path: path.parent.name,
            reverse=True,
        )

    def newest(self, kind: str) -> dict[str, Path]:
        """Find the newest profile file of each name on that kind of node."""
        found: dict[str, Path] = {}
        for path in self.paths(kind):
            found.setdefault(path.parent.parent.name, path)
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """List every name that has a profile, on any kind of node."""
        return sorted({path.parent.parent.name for path in self.paths()})

    def find(self, selector: str, kind: str) -> Path:
        """Find the profile file of ``NAME`` or ``NAME@ID``, if possible of this kind of node.

        Raises:
            BadInput: there is no such profile.
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
        """Load the profile that ``selector`` names; see ``find``."""
        return load(self.find(selector, kind))
