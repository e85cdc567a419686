"""Claims of cores and devices, so that no two coordinators of a machine give away the same ones.

A claim is a listening socket with an abstract name. The kernel gives a name to one process only, whoever's it
is, and takes it back however that process ends; and nothing lies in a folder that others can write. Each
network namespace has names of its own, so that containers do not see each other's claims.

Jobs outlive their coordinator, their claims do not. So what jobs have is looked up in ``/proc``: the children
of supervisors, and the cores to which they are bound.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.processes import tree
from probes.topology import cpu_list
from profiles.files.safe_files import credentials_of_peer, user_name

NAME = "\0tenbin/{}"
BY_UUID = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # tell a job its GPUs
SUPERVISOR = b"agent.supervisor.spawner"  # in the command line of all supervisors, which are forks of it


class Claims:
    """The claims of this process."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def take(self, name: str) -> bool:
        """Claim what has this name; False if another process has."""
        if name in self._sockets:
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(NAME.format(name))
            claim.listen()
        except OSError:
            claim.close()
            return False
        claim.setblocking(False)
        self._sockets[name] = claim
        return True

    def renew(self) -> None:
        """Name this process as the one that has them, after a fork."""
        for claim in self._sockets.values():
            claim.listen()

    def answer(self) -> None:
        """Let go those who have asked whose the claims are: the kernel has told them."""
        for claim in self._sockets.values():
            with suppress(BlockingIOError):
                while True:
                    claim.accept()[0].close()

    def keep(self, names: Collection[str]) -> None:
        """Give back all but these."""
        for name in self._sockets.keys() - set(names):
            self._sockets.pop(name).close()

    def close(self) -> None:
        self.keep(())


def holder(name: str) -> str:
    """Say as a clause which process has claimed what has this name; "": none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(NAME.format(name))
        except BlockingIOError:  # too many have asked
            return "another coordinator"
        except OSError:
            return ""
        pid, uid, _ = credentials_of_peer(probe)
    return f"another coordinator, process {pid} of user {user_name(uid)}"


class Bound(NamedTuple):
    """A running job of some coordinator of this machine.

    Attributes:
        pid: its first process.
        cores: to which it is bound; (): to none, as far as can be seen.
        devices: numbers of the OpenCL devices that it has, as far as can be seen. gpus: UUIDs, likewise.
        mark: of its coordinator's folder, job and attempt; "": another user's, which cannot be read.
    """

    pid: int
    cores: tuple[int, ...]
    devices: tuple[int, ...]
    gpus: tuple[str, ...]
    mark: str

    def is_of(self, home: Path) -> bool:
        """Tell if it is a job of the coordinator with that folder."""
        return self.mark.startswith(f"{home}:")


def running_jobs(procfs: Path) -> list[Bound]:
    """List the jobs on this machine whose supervisors can be seen, of all users."""
    parents: dict[int, int] = {}
    cores: dict[int, tuple[int, ...]] = {}
    supervisors = set()
    for pid, folder in _processes(procfs):
        with suppress(OSError, ValueError, KeyError):  # it has ended, or is hidden
            status = dict(line.partition(":")[::2] for line in (folder / "status").read_text().splitlines())
            parents[pid], cores[pid] = int(status["PPid"]), cpu_list(status["Cpus_allowed_list"])
            if SUPERVISOR in (folder / "cmdline").read_bytes().split(b"\0"):
                supervisors.add(pid)
    return [
        _bound(procfs / str(pid), cores[pid], everywhere=cores[parent])
        for pid, parent in parents.items()
        if parent in supervisors and pid not in supervisors
    ]


def _bound(folder: Path, cores: tuple[int, ...], *, everywhere: tuple[int, ...]) -> Bound:
    """Describe a job; one that may run wherever its supervisor may is bound, unless it has a device."""
    environment: dict[str, str] = {}
    with suppress(OSError):
        words = (folder / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
        environment = dict(word.partition("=")[::2] for word in words)
    devices = tuple(int(n) for n in environment.get("TENBIN_DEVICE", "").split(",") if n.isdecimal())
    gpus = tuple(uuid for name in BY_UUID for uuid in environment.get(name, "").split(",") if uuid)
    mark = environment.get(tree.MARK, "")
    bound = cores != everywhere or (mark and not devices)
    return Bound(int(folder.name), cores if bound else (), devices, gpus, mark)


def _processes(procfs: Path) -> Iterator[tuple[int, Path]]:
    for folder in procfs.iterdir():
        if folder.name.isdecimal():
            yield int(folder.name), folder
