"""``tenbin run``: a job in the foreground. It waits in the queue as others do, and has the terminal then.

The job's streams are this process's own (``agent.attempts.terminal``). Where standard input and output are a
terminal, the job has a pseudo-terminal, and this process copies between the two; else it has the pipes and
files themselves, and this process only hands signals on. The coordinator has no part in it: it may end and
start again meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from profiles.errors import BadInput
from tenbin.commands.jobs.jobs import Output
from tenbin.commands.jobs.submit import CommandWithFields, print_remarks, spec_of, with_fields
from tenbin.commands.options import HomeOption, client_of, handled
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.text import remark

if TYPE_CHECKING:
    from tenbin.client.client import Client, Job

T = TypeVar("T")
LOOK_S = 1.0  # between looks why the job waits
PIECE = 65536  # bytes, copied at once
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# Such a job is started once, and its output has no file.
NOT_HERE = {
    *("array", "retries", "retry-on", "retry-pause", "requeue", "output", "error"),
    *("checkpoint", "checkpoint-signal", "checkpoint-code"),
}


class RunCommand(CommandWithFields):
    """The command ``run``: all that follows the first word of the command is the command's own."""

    allow_interspersed_args = False


CommandClass = RunCommand  # of ``tenbin.cli``


@with_fields(after="keep", leave_out=NOT_HERE)
def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD...")],
    *,
    keep: bool = False,
    home: HomeOption = None,
    **fields: Any,
) -> None:
    """Run a program now, or as soon as it is its turn, with this terminal; exit with its code.

    While it waits, a line says why, and Ctrl-C cancels it. Then keys, Ctrl-C and Ctrl-Z are the program's,
    as with [bold]ssh -t[/bold]; in a pipe it reads and writes the pipe. It ends with its terminal, and is
    never started again. Its output is not kept.

    [bold]Examples[/bold]

      tenbin run -c 4 --time 1h python

      tenbin run --device gpu -- python train.py --epochs 3

      sort words | tenbin run uniq -c > counts

    Args:
        command: A program and its arguments.
        keep: The job outlives the terminal: it reads nothing, and its output is kept (tenbin logs).
    """
    client = client_of(home)
    spec = spec_of(fields, command, home)
    if keep:
        job = _submit(client, spec)
        raise typer.Exit(Output(client, job.id).attend())
    if client.is_remote:
        raise BadInput("over TCP a job cannot have this terminal", "tenbin run --keep, or log in there")
    with Streams() as streams:
        job = _submit(client, {**spec, "terminal": streams.name, "requeue": False})
        try:
            with _raising({signal.SIGTERM, signal.SIGHUP}):
                ended = streams.wait_for_turn(job)
        except (KeyboardInterrupt, SystemExit):
            with suppress(TenbinError, OSError):  # its terminal may be gone
                job.cancel()
                remark(f"job {job.id}: cancelled")
            raise
        if ended is None:
            streams.attend()
            ended = _outcome_of(job, streams.folder)
    raise typer.Exit(_exit_code(client, ended))


def _submit(client: Client, spec: dict[str, Any]) -> Job:
    """Submit the job, and say what will probably not go as wished."""
    answer = client.hand_over([spec])
    print_remarks(answer)
    return client.job(answer["ids"][0])


def patiently(call: Callable[[], T]) -> T:
    """Call the coordinator; as long as it does not answer, because it starts again, try once more."""
    silent = False
    while True:
        try:
            return call()
        except TenbinError as error:
            if error.exit_code != NO_ANSWER:
                raise
            if not silent:
                remark(f"{error}; waiting for it")
            silent = True
            time.sleep(LOOK_S)


# -- the end of the job --------------------------------------------------------------------------------------


def _outcome_of(job: Job, folder: str) -> dict[str, Any]:
    """Return what is known of an ended job; from the attempt itself if the coordinator does not answer."""
    from agent.attempts.folder import Attempt

    def ask() -> dict[str, Any]:
        try:
            return job.wait()
        except TenbinError as error:
            result = Attempt(Path(folder)).result() if error.exit_code == NO_ANSWER else None
            if result is None:
                raise
            stage = "done" if result.how == "exited" and result.code == 0 else "failed"
            how = {"stage": stage, "code": result.code, "signal": result.signal}
            return {**how, "id": job.id, "array": None, "trouble": result.trouble or result.how}

    return patiently(ask)


def _exit_code(client: Client, ended: dict[str, Any]) -> int:
    """Say why the job has ended where its program does not; return the exit code."""
    from tenbin.commands.jobs.account import exit_code, outcome

    by_itself = ended["stage"] == "failed" and (ended["code"] or ended["signal"])
    if ended["stage"] != "done" and not by_itself:
        remark(outcome(client, ended))
    return exit_code(ended)


# -- the streams ---------------------------------------------------------------------------------------------


class Streams(ExitStack):
    """The streams of this process, and the socket at which the job's supervisor fetches them.

    Attributes:
        name: of the socket, for the job.
        folder: of the job's attempt, once it has begun.
    """

    def __init__(self) -> None:
        from agent.attempts.terminal import address

        super().__init__()
        self.name, self.folder = f"tenbin-run-{os.getpid()}-{secrets.token_hex(8)}", ""
        self._listener = self.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._listener.bind(address(self.name))
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._master: int | None = None  # of the pseudo-terminal, if the job has one

    def wait_for_turn(self, job: Job) -> dict[str, Any] | None:
        """Wait until the job's supervisor comes, and say why the job waits; return it if it ends before."""
        from profiles.files.safe_files import credentials_of_peer
        from tenbin.client.client import FINAL
        from tenbin.commands.jobs.account import wait_words

        reason = ""
        while True:
            if select.select([self._listener], [], [], LOOK_S if reason else 0.1)[0]:
                self._connection, _ = self._listener.accept()
                if credentials_of_peer(self._connection)[1] == os.geteuid():
                    self.enter_context(self._connection)
                    self._listener.close()  # it is started once
                    return None
                self._connection.close()  # everybody sees the names of such sockets
                continue
            now = patiently(job.info)
            if now["stage"] in FINAL:
                return now
            if now["why"] not in ("", reason):
                remark(f"job {job.id} {wait_words(now)}")
            reason = now["why"] or reason

    def attend(self) -> None:
        """Give the job the streams, copy between the terminals, hand on signals, until the job has ended."""
        assert self._connection is not None
        connection = self._connection

        def hand_on(number: int, _: FrameType | None) -> None:
            with suppress(OSError):
                connection.send(bytes([number]))

        def resize(_number: int, _: FrameType | None) -> None:
            if self._master is not None:
                _copy_size(self._master)

        handlers = {**dict.fromkeys(HANDED_ON, hand_on), signal.SIGWINCH: resize}
        # What becomes of a job whose supervisor is lost here is known to the coordinator.
        with _handling(handlers), _raising({signal.SIGHUP}), suppress(ConnectionError, TimeoutError):
            self._hand_over(connection)
            if self._master is None:
                connection.recv(1)
                return
            with _raw():
                _copy(connection, self._master)

    def _hand_over(self, connection: socket.socket) -> None:
        """Hand over the streams; a pseudo-terminal in place of the terminal, if it is read and written."""
        from agent.attempts.terminal import hand_over

        streams, terminals = [0, 1, 2], [False] * 3
        slave = None
        if os.isatty(0) and os.isatty(1):
            self._master, slave = os.openpty()
            self.callback(os.close, self._master)
            termios.tcsetattr(slave, termios.TCSANOW, termios.tcgetattr(0))
            _copy_size(self._master)
            terminals = [os.isatty(number) for number in streams]
            streams = [slave if terminals[number] else number for number in streams]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # they are handed on after the streams
        try:
            self.folder = hand_over(connection, streams, terminals)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if slave is not None:
                os.close(slave)


def _copy(connection: socket.socket, master: int) -> None:
    """Copy keys to the job and its output to the terminal, until the connection closes."""
    os.set_blocking(master, False)
    keys = b""
    open_streams = {connection.fileno(), master}
    while True:
        readers = [*open_streams, *([] if keys else [0])]
        ready, writable, _ = select.select(readers, [master] if keys else [], [])
        if master in ready and not _pass_on(master):
            open_streams.discard(master)  # no process of the job has its terminal any more
        if connection.fileno() in ready:
            while _pass_on(master):
                pass
            return
        if 0 in ready:
            with suppress(OSError):
                keys = os.read(0, PIECE)
            if not keys:
                sys.exit(128 + signal.SIGHUP)  # the terminal is gone
        if writable:
            with suppress(BlockingIOError):
                keys = keys[os.write(master, keys) :]


def _pass_on(master: int) -> bool:
    """Write what the job has written to its terminal to this one; return whether there was something."""
    try:
        piece = os.read(master, PIECE)
    except OSError:  # nothing more now, or ever
        return False
    while piece:
        piece = piece[os.write(1, piece) :]
    return True


def _copy_size(master: int) -> None:
    """Give the pseudo-terminal the size of the terminal."""
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)


@contextmanager
def _raw() -> Iterator[None]:
    """Let the terminal hand on all keys as they are."""
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _handling(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]],
) -> AbstractContextManager[None]:
    """Handle signals so in the block, but those that are ignored, as by ``nohup``."""
    heard = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
    return handled({number: handlers[number] for number in heard})


@contextmanager
def _raising(numbers: set[signal.Signals]) -> Iterator[None]:
    """End by these signals in order."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    with _handling(dict.fromkeys(numbers, leave)):
        yield
