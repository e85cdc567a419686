"""The coordinator's process: one event loop for engine, timers and API."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import uvicorn

from agent.node_profile.identity import node_kind
from agent.processes import tree
from profiles.checks.check import Fitness
from profiles.errors import BadInput
from profiles.files.safe_files import make_folder, own_folder, write_whole
from profiles.files.store import JobStore
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.journal_file import FILE
from scheduler.coordinator.journal.packing import KEEP, packing
from scheduler.coordinator.journal.recovery import check_folders, recover
from scheduler.engines.local.cores import put_back
from scheduler.engines.local.engine import SWEEP_S
from scheduler.engines.protocol import Machine
from scheduler.policies.registry import DEFAULT, FORMER_DEFAULT
from scheduler.prediction.profiles import ProfiledJobs
from tenbin.client.connection import LONGEST_SOCKET_PATH, socket_folder
from tenbin.server import tcp
from tenbin.server.api import JobEnds, make_api
from tenbin.server.tcp import configure

DEFAULT_FILE = "default-policy"


class TcpDoor(NamedTuple):
    """The way in over TCP: its socket, what to know, and the name that was asked for."""

    listener: socket.socket
    token: str
    name: str


class Server(uvicorn.Server):
    """Leaves signals to the caller: uvicorn raises them again at its end, which would skip the rest."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    home: Path,
    policy: str,
    machine: Machine,
    *,
    place: str | None = None,
    tell: Callable[[str], None] = lambda url: None,
    drain_unfit: bool = False,
    keep: int = KEEP,
    on_event: str = "",
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Run the coordinator of ``home`` until SIGINT, SIGTERM or ``tenbin down``; what runs goes on.

    Args:
        place: address for TCP (``tcp.where``); None: no TCP.
        tell: called with the URL when the coordinator listens on TCP.
        drain_unfit: start no job here while this machine's last check failed.
        keep: number of ended jobs whose files are not packed.
        on_event: command of the shell that is run when a job has ended; "": none.
        beside: makes what is there as long as the coordinator answers.

    Raises:
        Busy: another coordinator runs there.
        BadInput: the journal, the policy or the jobs do not fit this machine, or the address cannot be used.
    """
    tree.make_files_private()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # until the loop takes it
    journal = Journal(home)
    try:
        check_folders(journal)
        put_back()
        sockets = own_sockets(home)
        report = sockets / "report.sock"
        engine = machine.engine(home, report)
        try:
            profiles, unit = machine.job_profiles, machine.unit
            measured = ProfiledJobs(JobStore(), profiles.kind if profiles is not None else node_kind())
            coordinator = Coordinator(
                journal,
                engine,
                policy,
                machine.costs,
                unit=unit,
                profiles=profiles,
                measured=measured,
                on_event=on_event,
            )
            if drain_unfit and not engine.nodes.named:  # a cluster drains its nodes by itself
                fitness, node = Fitness(), socket.gethostname()
                coordinator.hold_while_unfit(
                    lambda: fitness.why_unfit(node, but_devices=engine.gpus.able) or ""
                )
            door = None
            if place is not None:
                door = TcpDoor(tcp.listen(place), tcp.token_of(home), tcp.where(place)[0])
                tell(tcp.url_of(door.listener))
            with beside(), packing(home, keep):
                asyncio.run(_serve(coordinator, sockets / "api.sock", door))
        finally:
            engine.close()
            (sockets / "api.sock").unlink(missing_ok=True)
    finally:
        journal.close()


def default_policy(home: Path, tell: Callable[[str], object] = lambda text: None) -> str:
    """Return the policy where none is named: what was the default when the queue began.

    Args:
        tell: called with a sentence if that is no longer the default.
    """
    policy = FORMER_DEFAULT if (home / FILE).exists() else DEFAULT
    with suppress(OSError):
        policy = (home / DEFAULT_FILE).read_text().strip()
    if policy != DEFAULT:
        tell(f"tenbin: policy {policy}, the default when this queue began (now {DEFAULT})")
    return policy


def make_ready(home: Path, anew: bool) -> Iterator[str]:
    """Close the coordinator's folder to others; with ``anew`` make a damaged journal anew.

    A new queue notes the default policy, so that a later tenbin with another one leaves it as it is.

    Yields: what was done, as sentences.
    """
    if closed := close_home(home):
        yield closed
    if not (home / FILE).exists():
        with suppress(OSError):  # no room: the journal says it
            write_whole(home / DEFAULT_FILE, f"{DEFAULT}\n", mode=0o600)
    if anew:
        yield recover(home)


async def _serve(coordinator: Coordinator, address: Path, door: TcpDoor | None) -> None:
    loop = asyncio.get_running_loop()
    pending: asyncio.TimerHandle | None = None

    def plan() -> None:
        """Have the next turn when a timer is due, at the latest after ``SWEEP_S``."""
        nonlocal pending
        if pending is not None:
            pending.cancel()
        due = coordinator.next_timer_s()
        left = SWEEP_S if due is None else min(max(due - time.time(), 0.0), SWEEP_S)
        pending = loop.call_later(left, turn)

    news = JobEnds(plan)

    def turn() -> None:
        nonlocal pending
        if pending is not None:
            pending.cancel()
        pending = loop.call_later(SWEEP_S, turn)  # also after a turn that fails
        coordinator.turn()
        coordinator.journal.tidy()
        news.tell()

    loop.add_reader(coordinator.engine.fileno(), turn)
    turn()
    server = Server(configure(""))

    def end() -> None:
        server.should_exit, server.force_exit = True, server.should_exit  # told twice: at once
        news.end()  # else it would wait for those who wait for jobs

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    url = None if door is None else tcp.url_of(door.listener)
    api = make_api(coordinator, news, end, url)
    server.config.app, listeners = api, [listen(address)]
    if door is not None:
        names = {door.name, socket.gethostname(), socket.getfqdn()}
        server.config.app = tcp.Guard(api, address, door.token, names)
        listeners.append(door.listener)
    await server.serve(sockets=listeners)
    loop.remove_reader(coordinator.engine.fileno())
    if pending is not None:
        pending.cancel()
    with suppress(sqlite3.Error):  # a full disk: remarks are lost, and nothing else
        coordinator.job_table.commit()
    coordinator.notifier.close()


def close_home(home: Path) -> str:
    """Close a coordinator's folder to all but its owner; return what was done, or nothing."""
    try:
        make_folder(home, 0o700)
    except OSError as error:
        raise BadInput(
            f"{error.filename}: {error.strerror}", "name another folder: --home, TENBIN_HOME"
        ) from error
    status = home.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.getuid():
        raise BadInput(f"{home} belongs to somebody else", "choose another --home")
    if not mode & 0o077:
        return ""
    if mode & 0o022 or not ((home / "lock").exists() or not any(home.iterdir())):
        what = f"others can enter {home} (mode {mode:o}), where a job's secrets would be"
        raise BadInput(what, f"chmod 700 {home}, or choose another --home")
    home.chmod(0o700)
    return f"others could enter {home} (mode {mode:o}): closed, its mode is 700 now"


def own_sockets(home: Path) -> Path:
    """Return the folder of a coordinator's sockets; one outside of its home is made, for its user alone."""
    folder = socket_folder(home)
    if folder != home.absolute():
        own_folder(folder, f"see who made it, or choose a --home of at most {LONGEST_SOCKET_PATH} bytes")
    return folder


def listen(address: Path) -> socket.socket:
    """Open a listening socket that only its owner may use."""
    address.unlink(missing_ok=True)
    listener = tcp.Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(address))
    finally:
        os.umask(before)
    listener.listen(128)
    return listener
