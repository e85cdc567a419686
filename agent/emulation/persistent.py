"""Emulated power hardware for the jobs of a coordinator, which outlives the process that started it.

It is kept in the folder ``emulated`` of the coordinator's store, and lives as long as a coordinator or a job.
Its loads are the jobs' processes, found by their mark, and slowed down as the caps demand.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.emulation.machines import parse, start_emulation
from profiles.errors import BadInput
from profiles.files.whole_files import is_locked, try_lock, write_whole


@contextmanager
def persistent_node(name: str, store: Path) -> Iterator[Path]:
    """Find, or start, the emulated node of a coordinator's store; return its sysfs root.

    Raises:
        BadInput: there is no such machine, or jobs run on another machine there.
    """
    parse(name)
    folder = store / "emulated"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with holding(folder):
        with _locked(folder / "starting", fcntl.LOCK_EX):
            where = folder / "where.json"
            found = json.loads(where.read_text()) if where.exists() and is_locked(folder / "alive") else None
            if found is not None and found["name"] != name:
                what = f"--emulate {name}: jobs run on an emulated {found['name']}"
                raise BadInput(what, "wait for their end")
            if found:
                sysfs = Path(found["sysfs"])
            else:
                with (folder / "log").open("ab") as log:  # it must not keep its starter's output open
                    sysfs, _ = start_emulation(name, str(store), log=log)
            write_whole(where, json.dumps({"name": name, "sysfs": str(sysfs)}))
        yield sysfs


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep the emulation in ``folder`` alive until the context ends."""
    with _locked(folder / "users", fcntl.LOCK_SH):
        yield


def sign_of_life(folder: Path) -> int:
    """Lock the file ``alive`` for the life of the emulation, and return the descriptor."""
    descriptor = os.open(folder / "alive", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def abandoned(folder: Path) -> int | None:
    """Keep new users away if there are none, and return the descriptor; else None."""
    return try_lock(folder / "users")


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
