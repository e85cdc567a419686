"""Turns an order into a process, with all that has to hold before its first instruction.

By ``posix_spawn``, not by a fork of this process: for every page that either of the two touches after a fork
there is a fault, together more than two milliseconds. What it cannot do for the new process (working
directory, cores) this process takes upon itself for that moment.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from agent.jobs import tree
from agent.jobs.folder import Order

DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)


def launch(order: Order) -> tuple[int, list[int]]:
    """Start the command, in a session of its own, so that it is killed should this process die.

    Returns: its number, and descriptors to be closed when it is reaped.

    Raises:
        OSError: it cannot be started; ``filename`` is what of the order is to blame.
    """
    with ExitStack() as stack:
        stack.enter_context(_working_in(order.folder))
        files = []
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, order.stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (2, order.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        ):
            opened = os.open(path, flags | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, opened)
            files.append((os.POSIX_SPAWN_DUP2, opened, descriptor))
        if cores := cpus_for(order, order.places):
            stack.enter_context(_on_cores(cores))
        given = {name: value for name, value in os.environ.items() if name.startswith(order.inherit)}
        environment = {**given, **order.environment, tree.MARK: order.mark}
        program = _find(order.command[0], environment.get("PATH", os.defpath))
        try:
            pid = os.posix_spawn(
                program,
                order.command,
                environment,
                file_actions=files,
                setsid=True,
                setsigmask=(),
                setsigdef=DEFAULT,
            )
        except (OSError, ValueError) as error:  # of a name in the environment, for instance
            number = error.errno if isinstance(error, OSError) else errno.EINVAL
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise OSError(number, reason, order.command[0]) from error
    return pid, tree.die_with_me(pid)


def cpus_for(order: Order, places: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of the logical CPUs that the job is bound to now; empty: to none."""
    if not order.places:
        return order.cores
    from agent.jobs.binding import cpus_of  # few jobs share nodes that are not this machine

    return cpus_of(places)


def _find(command: str, path: str) -> str:
    """The program's file, as a shell finds it."""
    if "/" in command:
        return command
    for folder in path.split(os.pathsep):  # most are found so, and shutil takes its time to be imported
        file = f"{folder}/{command}"
        if not folder:
            break
        if os.access(file, os.X_OK) and not os.path.isdir(file):  # noqa: PTH112
            return file
    import shutil

    found = shutil.which(command, path=path)
    if found is None:
        number = errno.ENOENT if shutil.which(command, os.F_OK, path) is None else errno.EACCES
        raise OSError(number, os.strerror(number), command)
    return found


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
        os.fchdir(here)
    finally:
        os.close(here)


@contextmanager
def _on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"cores {', '.join(map(str, cores))}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # they may have been taken from us meanwhile
            os.sched_setaffinity(0, before)
