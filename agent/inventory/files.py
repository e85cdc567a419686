"""Reading the kernel's small text files; what is not there, or may not be read, is ``None``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from profiles.records import Settings


@dataclass(frozen=True)
class Roots:
    """The roots of a machine's files: the real ones, or a tree that was captured or made up."""

    sysfs: Path
    procfs: Path
    root: Path  # the rest: /etc, /run, /dev

    @classmethod
    def of(cls, settings: Settings) -> Roots:
        """Take the roots from settings; a captured machine has its ``etc`` beside its ``sys``."""
        beside = settings.sysfs.parent
        root = beside if (beside / "etc").is_dir() else Path("/")
        return cls(settings.sysfs, settings.procfs, root)


def read(path: Path) -> str | None:
    """Read the stripped text of a file; ``None`` if it is missing, refused, or its driver has no answer."""
    try:
        return path.read_bytes().decode(errors="replace").strip("\0 \t\n")
    except OSError:  # ENOENT, EACCES, and EINVAL or ENODEV from drivers
        return None


def number(path: Path) -> int | None:
    """Read the whole number in a file; ``None`` if there is none."""
    text = read(path)
    return int(text) if text and re.fullmatch(r"[+-]?\d+", text) else None


def fields(text: str | None) -> dict[str, str]:
    """Parse the ``key: value`` lines of ``cpuinfo`` or ``meminfo``; the first of each key counts."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def link_name(path: Path) -> str | None:
    """Read the name that a link points to (a driver, a subsystem); ``None`` if there is no link."""
    try:
        return path.readlink().name
    except OSError:
        return None


def numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """List the entries ``prefix0``, ``prefix1`` ... of a folder, by number."""
    found = [
        (int(match[1]), path)
        for path in folder.glob(f"{prefix}[0-9]*")
        if (match := re.fullmatch(rf"{prefix}(\d+)", path.name))
    ]
    return sorted(found)
