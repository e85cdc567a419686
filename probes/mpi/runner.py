"""Ranks at work: started, listened to, and ended together."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import psutil

from probes.mpi.launchers import Launcher, die_with_parent
from probes.mpi.rank_failure import LAUNCHER_LINE, describe_failure, last_words
from probes.mpi.rank_guard import RANK_VARIABLES, RankEnd
from probes.mpi.rank_segments import sweep_segments
from profiles.errors import UserError

ASK_S = 0.1
_MARK = "TENBIN_RANKS"


class RanksFailed(UserError):
    """A rank died, or the ranks did not end in time."""


def run_ranks(
    install: Launcher,
    program: Sequence[str],
    ranks: int,
    *,
    timeout_s: float,
    on_line: Callable[[str], None],
    hosts: Sequence[str] = (),
    cores: Sequence[int] | None = None,
    env: dict[str, str] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Start the ranks, hand each line of their stdout to ``on_line``, and return when they have ended.

    ``enough`` is asked often; once it is true the ranks are ended. However this function is left (also by an
    exception of ``on_line`` or Ctrl-C), no rank is left behind on this node, and mpiexec has been asked to
    end those on other hosts. They also end when this process is killed.

    A rank that leaves early with exit code 0 is no failure to mpiexec, which then silently ends the others.
    So let rank 0 print its result as the last line, and check that it came. Start Python programs by
    ``python -P -m mpi4py -m module``, so that an exception in one rank ends all.

    Raises:
        RanksFailed: a rank died, or ``timeout_s`` is over; with rank, host and last words where known.
    """
    mark = uuid.uuid4().hex
    # tenbin may itself be a rank of another MPI, whose number must not pass for that of every rank here;
    inherited = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    if not hosts:  # and it may run in a Slurm job, whose nodes launchers would take for theirs
        slurm = [name for name in inherited if name.startswith("SLURM_") and name != "SLURM_CONF"]
        inherited = {name: value for name, value in inherited.items() if name not in slurm}
    environment = inherited | install.environment(timeout_s) | {_MARK: mark} | (env or {})
    since_s = time.time()
    process = subprocess.Popen(
        [*die_with_parent("TERM"), *install.command(ranks, program, hosts, cores)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    told = _Told()
    try:
        in_time = _listen(process, told, time.monotonic() + timeout_s, on_line=on_line, enough=enough)
    finally:
        _end(process, mark, since_s)
    if enough():
        return
    if not in_time:
        failure = describe_failure(0, told.errors, told.ends, ranks=ranks, hosts=hosts)
        why = f": {failure}" if told.ends else last_words(told.errors)
        raise RanksFailed(f"{ranks} ranks had not ended after {timeout_s:g} s{why}")
    if process.returncode != 0:
        raise RanksFailed(
            describe_failure(process.returncode, told.errors, told.ends, ranks=ranks, hosts=hosts)
        )


@dataclass
class _Told:
    """Standard error of launcher and ranks, its reports of ended ranks apart."""

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=60))
    ends: list[RankEnd] = field(default_factory=list)


def _listen(
    process: subprocess.Popen[str],
    told: _Told,
    deadline: float,
    *,
    on_line: Callable[[str], None],
    enough: Callable[[], bool],
) -> bool:
    """Hand lines on until the output ends or ``enough`` is true; False if the deadline came first."""
    assert process.stdout is not None and process.stderr is not None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read_stdout(stream: IO[str]) -> None:
        for line in stream:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def read_stderr(stream: IO[str]) -> None:
        for line in stream:
            if end := RankEnd.from_line(line):
                told.ends.append(end)
            else:
                told.errors.append(line.rstrip())

    readers = (
        threading.Thread(target=read_stdout, args=(process.stdout,), daemon=True),
        threading.Thread(target=read_stderr, args=(process.stderr,), daemon=True),
    )
    for reader in readers:
        reader.start()
    while not enough():
        try:
            line = lines.get(timeout=min(max(deadline - time.monotonic(), 0.0), ASK_S))
        except queue.Empty:
            if time.monotonic() > deadline:
                return False
            continue
        if line is None:
            break
        if LAUNCHER_LINE.search(line):
            told.errors.append(line)
        else:
            on_line(line)
    if enough():
        return True
    try:
        process.wait(timeout=max(deadline - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        return False
    readers[1].join(timeout=1.0)
    return True


def _end(process: subprocess.Popen[str], mark: str, since_s: float) -> None:
    """End mpiexec and everything that it started on this node, shared memory included."""
    if process.poll() is None:
        process.terminate()  # only mpiexec itself can end the ranks on other hosts
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    survivors = list(_marked(mark))  # launchers put their ranks into sessions of their own
    for survivor in survivors:
        with suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(survivors, timeout=3)
    if process.wait() != 0:
        sweep_segments(since_s)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for candidate in psutil.process_iter():
        with suppress(psutil.Error):
            if candidate.environ().get(_MARK) == mark:
                yield candidate
