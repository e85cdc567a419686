"""Emulated power hardware that outlives who started it, as real hardware does: for real jobs.

It is kept in the folder ``emulated`` of the coordinator's store, and lives as long as a coordinator or a job.
Its loads are the jobs' processes, by their mark; they go at the speed that the caps allow.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.emulation.machines import Machine, build, parse
from profiles.errors import BadInput, UserError
from profiles.files import is_locked, try_lock, write_whole


@contextmanager
def standing_node(name: str, store: Path) -> Iterator[Path]:
    """Find, or start, the emulated node of a coordinator's store; return its sysfs root.

    Raises:
        BadInput: no such machine, or jobs run there on another one.
    """
    machine, faults = parse(name)
    folder = store / "emulated"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with holding(folder):
        with _locked(folder / "starting", fcntl.LOCK_EX):
            where = folder / "where.json"
            found = json.loads(where.read_text()) if where.exists() and is_locked(folder / "alive") else None
            if found is not None and found["name"] != name:
                what = f"--emulate {name}: jobs run on an emulated {found['name']}"
                raise BadInput(what, "wait for their end")
            sysfs = Path(found["sysfs"]) if found else _start(name, store, machine, faults)
            write_whole(where, json.dumps({"name": name, "sysfs": str(sysfs)}))
        yield sysfs


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """As long as somebody is in here the emulation in ``folder`` goes on."""
    with _locked(folder / "users", fcntl.LOCK_SH):
        yield


def _start(name: str, store: Path, machine: Machine, faults: frozenset[str]) -> Path:
    memory = Path("/dev/shm")
    sysfs = Path(tempfile.mkdtemp(prefix="tenbin-emulated-", dir=memory if memory.is_dir() else None))
    build(sysfs, machine, faults)
    with (store / "emulated" / "log").open("ab") as log:  # it must not hold on to its starter's output
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.emulation.emulated_tree", str(sysfs), name, str(store)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    if not process.stdout.readline():
        shutil.rmtree(sysfs, ignore_errors=True)
        raise UserError(f"the emulation of {name} did not start (exit {process.wait()})")
    process.stdout.close()
    return sysfs


def sign_of_life(folder: Path) -> int:
    """Held by the emulation itself, as long as it lives; the descriptor."""
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
