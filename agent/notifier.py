"""Tells what has happened to jobs: by a command of the shell, by mail, or to a URL.

    python -P -m agent.notifier        (a notice on each line of standard input, as JSON)

Commands may hang and networks be slow, so all of it happens in a process beside the coordinator, which starts
at the first notice. It tells a few at a time, ends each after a while, and ends itself when the coordinator
has ended and nothing is left to tell. What fails is a line in the coordinator's log, and in the job's folder.

Each notice is told at most once: the journal has what it is about before it is handed over, and it is not
handed over again. It is lost if the coordinator, or this process, is killed before it is told.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import NamedTuple
from urllib.request import Request, urlopen

from profiles.files.safe_files import user_name

LIMIT_S = 60.0  # for a command, a mail, or a request to a URL
AT_ONCE = 4
CLOSE_S = 2.0  # for what is not handed over yet
URLS = ("http://", "https://")
MAIL = "mail"
FAILURES = "failed-notices.jsonl"  # in a job's folder
log = logging.getLogger("tenbin")


class Notice(NamedTuple):
    """News of a job, and whom to tell.

    Attributes:
        to: a URL, "mail", "mail:ADDRESS", or a command of the shell.
        about: the variables that say it: ``TENBIN_JOB`` and so on.
        folder: working directory of a command.
    """

    to: str
    about: dict[str, str]
    folder: str

    @property
    def sentence(self) -> str:
        """Say it in a line."""
        about = {name.removeprefix("TENBIN_").lower(): text for name, text in self.about.items()}
        name, reason = about.get("job_name"), about.get("reason")
        job = f"job {about.get('job')}{f' ({name})' if name else ''}"
        if not about.get("job"):
            return " ".join(str(reason).split())
        return " ".join(f"{job}: {about.get('state')}{f': {reason}' if reason else ''}".split())


class Notifier:
    """Hands notices to the process that tells them, in a thread of its own.

    Args:
        home: of the coordinator, which commands are told.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._waiting: queue.SimpleQueue[Iterable[Notice] | None] = queue.SimpleQueue()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def tell(self, notices: Iterable[Notice]) -> None:
        """Have notices told, soon; this never waits, and never fails."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="tenbin-notifier", daemon=True)
            self._thread.start()
        self._waiting.put(notices)

    def close(self) -> None:
        """Hand over what is left; the process tells it."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (notices := self._waiting.get()) is not None:
            for notice in notices:
                try:
                    self._hand_over(json.dumps(notice).encode() + b"\n")
                except OSError as error:
                    log.error("%s: this cannot be told: %s", notice.sentence, error)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _hand_over(self, line: bytes) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent.notifier"],
                stdin=subprocess.PIPE,
                stdout=sys.__stderr__,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "TENBIN_HOME": str(self._home)},
            )
        assert self._process.stdin is not None
        self._process.stdin.write(line)


# -- the process ---------------------------------------------------------------------------------------------


def main() -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:  # its end waits for all of them
        for line in sys.stdin:
            pool.submit(tell, Notice(*json.loads(line)))


def tell(notice: Notice) -> None:
    """Tell a notice; what fails is said on standard error."""
    try:
        if notice.to.startswith(URLS):
            _post(notice)
        elif notice.to == MAIL or notice.to.startswith(f"{MAIL}:"):
            _mail(notice)
        else:
            _command(notice)
    except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
        failure = " ".join(f"notice {notice.to!r}: {_failure(error)}".split())
        print(f"tenbin: {notice.sentence}; {failure}", file=sys.stderr, flush=True)
        _note(notice, failure)


def _note(notice: Notice, failure: str) -> None:
    """Note a failure in the folder of the job, if it has one."""
    folder = Path(os.environ.get("TENBIN_HOME", ""), "jobs", notice.about.get("TENBIN_JOB") or "none")
    with suppress(OSError), (folder / FAILURES).open("a") as file:
        file.write(json.dumps({"at_s": time.time(), "what": "not told", "detail": failure}) + "\n")


def _failure(error: Exception) -> str:
    """Say why a notice could not be told."""
    match error:
        case subprocess.TimeoutExpired():
            return f"killed after {error.timeout:g} s"
        case subprocess.CalledProcessError(returncode=127):
            return "no such command (exit code 127)"
        case FileNotFoundError():
            return f"no such command: {error.filename}"
        case subprocess.CalledProcessError(returncode=code):
            return f"signal {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    return str(error)


def _post(notice: Notice) -> None:
    body = {name.removeprefix("TENBIN_").lower(): text for name, text in notice.about.items()}
    content = json.dumps({**body, "text": f"tenbin: {notice.sentence}"}).encode()
    with urlopen(Request(notice.to, content, {"Content-Type": "application/json"}), timeout=LIMIT_S):
        pass


def _mail(notice: Notice) -> None:
    address = notice.to.removeprefix(MAIL).removeprefix(":") or user_name()
    lines = "".join(f"{name}: {text}\n" for name, text in notice.about.items())
    command = [MAIL, "-s", f"tenbin: {notice.sentence}", address]
    subprocess.run(command, input=lines, text=True, timeout=LIMIT_S, check=True)


def _command(notice: Notice) -> None:
    folder = notice.folder if os.access(notice.folder, os.X_OK) else "/"
    process = subprocess.Popen(
        ["sh", "-c", notice.to],
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **notice.about},
        start_new_session=True,
    )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, "the command")


if __name__ == "__main__":
    main()
