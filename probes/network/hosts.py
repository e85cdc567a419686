"""Checks of other hosts before a start: they can be reached, and have the same tenbin and MPI."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from probes.mpi.launchers import SSH_OPTIONS
from probes.network.rank import identity
from profiles.errors import BadInput, Unavailable

REACH_S = 20.0

# Messages of ssh (exit code 255), or of shell and Python there; our words, and the remedy.
_INSTALL = "install the same tenbin there, at the same path"
_OF_SSH = (
    ("Permission denied", "asks for a password", "ssh {host} must work without one: ssh-copy-id {host}"),
    ("Host key verification failed", "is not known to ssh", "log in once by hand: ssh {host}"),
    ("", "cannot be reached", "try: ssh {host} true"),
)
_OF_THE_HOST = (
    ("No module named 'mpi4py'", "has no mpi4py in {python}", _INSTALL),
    ("No module named", "has no tenbin in {python}", _INSTALL),
    ("No such file", "has no {python}", _INSTALL),
    ("not found", "has no {python}", _INSTALL),
    ("libmpi", "has no MPI that mpi4py can load", "install the same MPI there"),
    ("", "does not answer as tenbin does", "try: ssh {host} {python} -P -m probes.network.rank hello"),
)


def greet(hosts: Sequence[str], library: str) -> list[dict[str, str]]:
    """Ask every host for its identity, all at once, the way mpiexec will reach it.

    Returns:
        ``probes.network.rank.identity()`` of each host, in their order.

    Raises:
        BadInput: ``hosts`` is not a list of at least two different names.
        Unavailable: a host cannot be reached, lacks what is needed, has another tenbin or MPI, or is named
            twice; the error names the host.
    """
    check_names(hosts)
    answers = _ask(hosts)
    here = identity()
    seen: dict[tuple[str, str], str] = {}
    for host, answer in zip(hosts, answers, strict=True):
        if answer["tenbin"] != here["tenbin"]:
            raise Unavailable(
                f"host {host} has tenbin {answer['tenbin']}, this one {here['tenbin']}",
                "install the same version on all hosts",
            )
        if answer["library"] != library:
            raise Unavailable(
                f"mpi4py loads {answer['library']} on host {host} and {library} here",
                "install the same MPI on all hosts",
            )
        place = (answer["boot"], answer["namespace"])
        if place in seen:
            raise Unavailable(f"{seen[place]} and {host} are one host", "name every host once in --hosts")
        seen[place] = host
    return answers


def check_names(hosts: Sequence[str]) -> None:
    """Raise BadInput unless ``hosts`` are at least two different names."""
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host):  # never an option of ssh
            raise BadInput(f"--hosts: {host!r} is not a host name or IPv4 address")
    if len(hosts) < 2 or len(set(hosts)) < len(hosts):
        raise BadInput(f"--hosts: {','.join(hosts)}", "name at least two hosts, each once: --hosts a,b")


def _ask(hosts: Sequence[str]) -> list[dict[str, str]]:
    started: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + REACH_S
    try:
        started.extend(_start_hello(host) for host in hosts)
        return [_answer(host, process, deadline) for host, process in zip(hosts, started, strict=True)]
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _start_hello(host: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "probes.network.rank", "hello"]
    if not _is_here(host):
        launcher = os.environ.get("TENBIN_MPI_LAUNCHER", "ssh")
        command = [launcher, *SSH_OPTIONS, host, shlex.join(command)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(
            f"cannot start {command[0]} to reach host {host}: {error.strerror}",
            "install ssh, or name another launcher in TENBIN_MPI_LAUNCHER",
        ) from None


def _answer(host: str, process: subprocess.Popen[str], deadline: float) -> dict[str, str]:
    try:
        output, errors = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise Unavailable(f"host {host} did not answer in {REACH_S:g} s", f"try: ssh {host} true") from None
    for line in output.splitlines():
        if line.startswith('{"event": "hello"'):
            answer: dict[str, str] = json.loads(line)
            return answer
    raise _explained(host, errors, process.returncode)


def _explained(host: str, stderr: str, code: int) -> Unavailable:
    words = (stderr.strip().splitlines() or [f"exit code {code}"])[-1]
    names = {"host": host, "python": sys.executable}
    sayings = _OF_SSH if code == 255 else _OF_THE_HOST
    what, remedy = next((what, remedy) for saying, what, remedy in sayings if saying in stderr)
    return Unavailable(f"host {host} {what.format(**names)} ({words})", remedy.format(**names))


def _is_here(host: str) -> bool:
    """Tell whether ``host`` is this machine, where mpiexec starts ranks without ssh."""
    if host in {"localhost", socket.gethostname()}:
        return True
    own = {address.address for several in psutil.net_if_addrs().values() for address in several}
    try:
        return socket.gethostbyname(host) in own
    except OSError:
        return False  # ssh may know the name, and says so if not
