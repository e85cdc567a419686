"""Stores of profiles, of nodes and of jobs, and of their raw samples, in plain files.

    <root>/<node>/<id>/profile.json
                      /samples/<probe>.parquet
                      /label                     what its owner calls it, if anything
    <root>/jobs/<node kind>/<name>/<id>/profile.json
                                       /samples/<table>.parquet

A profile's folder is written aside and renamed, so it is there whole or not at all. A job that is measured
again keeps its older profiles; ``NAME`` means the newest, ``NAME@ID`` any.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ..errors import BadInput, UserError, unwritable
from ..records import SCHEMA_VERSION, Profile, Record
from .safe_files import (
    make_folder,
    named_folder,
    new_file,
    read_plain,
    read_regular,
    sync,
    user_folder,
    write_whole,
)

if TYPE_CHECKING:
    import pandas as pd

    from ..jobs import JobProfile


R = TypeVar("R", bound=Record)
SELECTORS = "'last', 'previous' of that node, a node's name, an id, a label, or a path to a profile.json"
LONGEST_LABEL = 60
MOST_NAMED = 5


def default_root() -> Path:
    """Choose ``$TENBIN_STORE``, or ``$XDG_DATA_HOME/tenbin``, or ``~/.local/share/tenbin``."""
    if chosen := named_folder("TENBIN_STORE"):
        return chosen
    return user_folder("XDG_DATA_HOME", ".local/share") / "tenbin"


def id_at(created: datetime) -> str:
    """Make the id of a profile, the second of its creation."""
    return created.strftime("%Y%m%dT%H%M%SZ")


def load(path: Path) -> Profile:
    """Read a profile file.

    Raises:
        BadInput: not there, not JSON, of a newer version, or with a field that does not fit (named).
    """
    remedy = "it is no profile, or a damaged one: restore it from an export, or measure again"
    return load_record(Profile, path, remedy)


def load_record(kind: type[R], path: Path, remedy: str) -> R:
    """Read the file of a record; raises as ``load``, with ``remedy`` for a damaged file."""
    try:
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(f"{path}: cannot be read ({why})", "check the path and its permissions") from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        if newer := _newer_version(text):
            raise BadInput(
                f"{path}: field schema_version is {newer}, this tenbin reads up to {SCHEMA_VERSION}",
                "update tenbin to read it",
            ) from error
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise BadInput(f"{path}: field {where}: {first['msg']}", remedy) from error


def _newer_version(text: str) -> int | None:
    version = re.search(r'"schema_version"\s*:\s*(\d+)', text)
    return int(version[1]) if version and int(version[1]) > SCHEMA_VERSION else None


def save_profile(folder: Path, profile: str, samples: Mapping[str, pd.DataFrame], store: Path) -> None:
    """Write ``profile.json`` and ``samples/<table>.parquet``; the folder is there whole or not at all.

    Raises:
        BadInput: the store cannot be written.
    """
    aside = folder.with_name(f".{folder.name}.partial")
    try:
        make_folder(aside / "samples")
        for name, table in samples.items():
            with os.fdopen(new_file(aside / "samples" / f"{name}.parquet", 0o644), "wb") as file:
                table.to_parquet(file, write_page_checksum=True)
                file.flush()
                os.fsync(file.fileno())
        write_whole(aside / "profile.json", profile)
        aside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise unwritable(f"store {store}", error, ", or choose --store") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class Prepared:
    """Base of the stores: a folder that is tried before minutes are spent on measuring."""

    root: Path

    def prepare(self) -> None:
        """Write and remove a trial file.

        Raises:
            BadInput: the store cannot be written.
        """
        trial = self.root / f".trial.{os.getpid()}"
        try:
            make_folder(self.root)
            write_whole(trial, b"")
            trial.unlink()
        except OSError as error:
            raise unwritable(f"store {self.root}", error, ", or choose --store") from error


class Store(Prepared):
    """All profiles under a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def free_second(self, node: str, created: datetime) -> datetime:
        """Return the first second, from ``created`` on, of which there is no profile of a node."""
        while (self.root / node / id_at(created)).exists():
            created += timedelta(seconds=1)
        return created

    def save(self, profile: Profile, samples: Mapping[str, pd.DataFrame]) -> Path:
        """Write a profile with its samples; return its folder.

        Raises:
            BadInput: the store cannot be written, or emulated and measured profiles would share a node.
        """
        home = self.root / profile.node
        folder = home / profile.id
        if self._holds_emulated(profile.node) not in (None, profile.emulated):
            raise BadInput(f"{home}: emulated and measured profiles never mix", "use another store")
        save_profile(folder, profile.model_dump_json(indent=1) + "\n", samples, self.root)
        return folder

    def _holds_emulated(self, node: str) -> bool | None:
        """Tell whether the profiles of a node are emulated; None where no profile can be read."""
        return next((profile.emulated for profile in self.profiles(node)), None)

    def of_node(self, node: str) -> list[Path]:
        """List the profile files of a node, newest first."""
        return sorted((self.root / node).glob("[!.]*/profile.json"), reverse=True)

    def profiles(self, node: str) -> Iterator[Profile]:
        """Load the profiles of a node, newest first, without those that are damaged."""
        for path in self.of_node(node):
            with suppress(BadInput):
                yield load(path)

    def newest_whole(self, node: str) -> Profile | None:
        """Load the newest profile of a node that is whole; the newest if none is, None if it has none."""
        latest = None
        for profile in self.profiles(node):
            if not profile.partly:
                return profile
            latest = latest or profile
        return latest

    def paths(self) -> list[Path]:
        """List every profile file in the store, newest first."""
        files = self.root.glob("[!.]*/[!.]*/profile.json")
        return sorted(files, key=lambda path: (path.parent.name, path.parent.parent.name), reverse=True)

    def find(self, selector: str = "last") -> Path:
        """Find the profile file that ``selector`` names: see ``SELECTORS``.

        Raises:
            BadInput: nothing matches, or an id is ambiguous.
        """
        if "/" in selector or selector.endswith(".json"):
            path = Path(selector)
            return path / "profile.json" if path.is_dir() else path
        paths = self.paths()
        if not paths:
            raise BadInput(f"no profile in {self.root}", "make one with 'tenbin profile'")
        if selector == "last":
            return paths[0]
        if selector == "previous":
            return self._previous(paths[0])
        if of_node := self.of_node(selector):
            return of_node[0]
        matching = [path for path in paths if selector and path.parent.name.startswith(selector)]
        matching = matching or [path for path in paths if selector and label(path) == selector]
        if len(matching) == 1:
            return matching[0]
        named = ", ".join(f"{path.parent.parent.name} {path.parent.name}" for path in matching[:MOST_NAMED])
        problem = f"matches several profiles ({named})" if matching else "matches no profile"
        raise BadInput(
            f"'{selector}' {problem} in {self.root}", f"give {SELECTORS}; see 'tenbin profile list'"
        )

    def _previous(self, last: Path) -> Path:
        """Find the profile before the last one, of the same node."""
        of_node = self.of_node(last.parent.parent.name)
        if len(of_node) < 2:
            raise BadInput(f"{last.parent.parent.name} has one profile only", "see 'tenbin profile list'")
        return of_node[1]

    def delete(self, path: Path) -> None:
        """Remove a profile file's folder, with samples and label, from the store.

        Raises:
            BadInput: it is not of this store, or cannot be removed.
        """
        folder = path.parent
        if folder.resolve().parent.parent != self.root.resolve():
            raise BadInput(f"{path} is not in the store {self.root}", "delete a file of your own with rm")
        gone = folder.with_name(f".{folder.name}.{os.getpid()}")
        try:
            folder.rename(gone)  # whole, or gone
            shutil.rmtree(gone)
        except OSError as error:
            raise unwritable(folder, error) from error

    def load(self, selector: str = "last") -> Profile:
        """Load the profile that ``selector`` names."""
        return load(self.find(selector))


def label(path: Path) -> str:
    """Read what its owner calls the profile of a file; "": nothing, or it cannot be read."""
    try:
        return read_plain(path.with_name("label"), 4 * LONGEST_LABEL).decode(errors="replace").strip()
    except OSError:
        return ""


def set_label(path: Path, text: str) -> None:
    """Call the profile of a file so; "": nothing.

    Raises:
        BadInput: the text cannot be a label, or cannot be written.
    """
    if text != text.strip() or not text.isprintable() or len(text) > LONGEST_LABEL or "/" in text:
        raise BadInput(
            f"label {text[:LONGEST_LABEL]!r}: no line of text", f"at most {LONGEST_LABEL} characters, no /"
        )
    if text in ("last", "previous"):
        raise BadInput(f"label {text!r} has another meaning", f"a profile is chosen by {SELECTORS}")
    store = Store(path.absolute().parent.parent.parent)
    if text and (store.of_node(text) or any(other.parent.name.startswith(text) for other in store.paths())):
        raise BadInput(f"label {text!r} is the name of a node, or begins an id", "choose another one")
    if text and (others := [o for o in store.paths() if o != path and label(o) == text]):
        what = f"label {text!r} is that of {others[0].parent.parent.name} {others[0].parent.name}"
        raise BadInput(what, "choose another one, or take it off there: an empty label")
    file = path.with_name("label")
    try:
        if text:
            write_whole(file, f"{text}\n".encode())
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(file, error) from error


def samples(path: Path) -> dict[str, pd.DataFrame]:
    """Read the raw samples beside the profile file ``path``; empty where the file travels without them."""
    return {file.stem: _read_samples(file) for file in sorted(path.parent.glob("samples/*.parquet"))}


def read_table(source: BytesIO) -> pd.DataFrame:
    """Read a table of samples in the form of Parquet, in this thread alone.

    pyarrow's threads on a Python object can abort or hang the process at its exit (apache/arrow#50482), and
    pyarrow's own ``read_table`` has them whatever its options.
    """
    from pyarrow.parquet import ParquetFile  # late, because the coordinator does not need these 80 MB

    file = ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
    table: pd.DataFrame = file.read(use_threads=False, use_pandas_metadata=True).to_pandas(use_threads=False)
    return table


def _read_samples(file: Path) -> pd.DataFrame:
    from pyarrow.parquet import read_schema

    try:
        source = BytesIO(read_regular(file))
        table = read_table(source)
        schema = read_schema(source)
        written = [column["field_name"] for column in schema.pandas_metadata["columns"]]
        if schema.names != written or list(table) != written[: len(table.columns)]:
            raise ValueError(f"columns {list(table)}, written were {written}")
    except Exception as error:  # pandas and pyarrow raise whatever the damage leads them to
        raise BadInput(
            f"{file}: not a readable parquet file ({error})", "delete it; the profile stays"
        ) from error
    return table


def load_job(path: Path) -> JobProfile:
    """Read the file of a job profile.

    Raises:
        BadInput: not there, damaged, or not a job profile; the field is named.
    """
    from ..jobs import JobProfile  # late, because most commands load profiles of nodes only

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
        paths: dict[str, Path] = {}
        for path in self.paths(kind):
            paths.setdefault(path.parent.parent.name, path)
        return dict(sorted(paths.items()))

    def names(self) -> list[str]:
        """List every name that has a profile, on any kind of node."""
        return sorted({path.parent.parent.name for path in self.paths()})

    def find(self, selector: str, kind: str) -> Path:
        """Find the profile file of ``NAME`` or ``NAME@ID``, if possible of this kind of node.

        Raises:
            BadInput: there is no such profile.
        """
        name, _, number = selector.partition("@")
        paths = self.paths(name=name) if name and "/" not in name and "*" not in name else []
        paths = [path for path in paths if path.parent.name.startswith(number)]
        if not paths:
            known = ", ".join(self.names()) or "none yet"
            raise BadInput(
                f"no job profile '{selector}' in {self.root} (there are: {known})",
                f"make it with: tenbin program profile {name or 'NAME'} -- CMD...",
            )
        return next((path for path in paths if path.parents[2].name == kind), paths[0])

    def load(self, selector: str, kind: str) -> JobProfile:
        """Load the profile that ``selector`` names; see ``find``."""
        return load_job(self.find(selector, kind))


def save_measured(store: Store | JobStore, made: Any, samples: Any, show: str) -> None:
    """Store a profile; where the store has become unusable meanwhile, keep it in a temporary folder.

    Args:
        show: the command that shows it.

    Raises:
        UserError: it is in that folder, which is named.
    """
    try:
        store.save(made, samples)
    except BadInput as error:
        refuge = Path(tempfile.mkdtemp(prefix="tenbin-"))
        type(store)(refuge).save(made, samples)
        raise UserError(error.what, f"the profile is kept: {show} --store {refuge}") from error
