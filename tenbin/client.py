"""A light client of the coordinator, for programs: ``import tenbin``; only the standard library.

with tenbin.Client() as client:
    job = client.submit(["./simulate", "--steps", "1000"], cores=4, time_s=600)
    job.wait()
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from tenbin.errors import TenbinError

LONGEST_SOCKET_PATH = 90
POLL_S = 30.0
FINAL = frozenset({"done", "failed", "cancelled", "killed"})


def default_home() -> Path:
    """``$TENBIN_HOME``, else ``$XDG_STATE_HOME/tenbin/coordinator``, else below ``~/.local/state``."""
    if "TENBIN_HOME" in os.environ:
        return Path(os.environ["TENBIN_HOME"])
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tenbin" / "coordinator"


def socket_folder(home: Path) -> Path:
    """Where a coordinator's sockets are: its own folder, or a short one where that is too long a name."""
    home = home.absolute()
    if len(str(home)) <= LONGEST_SOCKET_PATH:
        return home
    key = sha256(str(home).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tenbin-{os.getuid()}-{key}"


class Client:
    """Speaks to one coordinator.

    Args:
        home: its folder; None: ``default_home``.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self.home = Path(home) if home is not None else default_home()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def submit(self, command: Sequence[str], **needs: Any) -> Job:
        """Submit one job; ``needs`` are fields of the API's JobSpec (tasks, cores, time_s, after, ...)."""
        needs.setdefault("folder", str(Path.cwd()))
        return self.submit_all([{"command": list(command), **needs}])[0]

    def submit_all(
        self, specs: Sequence[dict[str, Any]], environment: dict[str, str] | None = None
    ) -> list[Job]:
        """Submit jobs, all or none."""
        variables = dict(os.environ) if environment is None else environment
        answer = self.call("POST", "/jobs", {"specs": list(specs), "environment": variables})
        return [Job(self, job_id) for job_id in answer["ids"]]

    def job(self, job_id: int) -> Job:
        """A job by its number."""
        return Job(self, job_id)

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> Any:
        """One call of the API; what it answers.

        Raises:
            TenbinError: nobody answers, or the answer is an error.
        """
        connection = _Connection(socket_folder(self.home) / "api.sock", timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            text = f"no coordinator answers at {self.home}; start one with: tenbin up --daemon"
            raise TenbinError(text, exit_code=4) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise TenbinError(_explain(content), exit_code=2 if response.status < 500 else 1)
        if response.headers.get_content_type() != "application/json":
            return content.decode()
        return json.loads(content)


class Job:
    """A submitted job, in the shape of a ``concurrent.futures.Future``."""

    def __init__(self, client: Client, job_id: int) -> None:
        self.client, self.id = client, job_id

    def __repr__(self) -> str:
        return f"Job({self.id})"

    def info(self) -> dict[str, Any]:
        """Everything that is known of it."""
        found: dict[str, Any] = self.client.call("GET", f"/jobs/{self.id}")
        return found

    def done(self) -> bool:
        """Whether it has ended, however."""
        return self.info()["stage"] in FINAL

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for its end; its ``info``.

        Raises:
            TimeoutError: it has not ended by then.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            span = max(min(POLL_S, deadline - time.monotonic()), 0.0)
            found: dict[str, Any] = self.client.call("GET", f"/jobs/{self.id}?wait_s={span}", None, span + 30)
            if found["stage"] in FINAL:
                return found
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {self.id} has not ended within {timeout_s:g} s")

    def result(self, timeout_s: float | None = None) -> int:
        """Its exit code, when it has ended.

        Raises:
            TenbinError: it did not get as far as an exit code.
            TimeoutError: it has not ended by then.
        """
        found = self.wait(timeout_s)
        if found["code"] is None:
            raise TenbinError(f"job {self.id} is {found['stage']}: {found['trouble']}")
        return int(found["code"])

    def cancel(self) -> None:
        """End it."""
        self.client.call("POST", "/cancel", {"ids": [self.id]})

    def suspend(self) -> None:
        """Pause it."""
        self.client.call("POST", "/suspend", {"ids": [self.id]})

    def resume(self) -> None:
        """Let it go on."""
        self.client.call("POST", "/resume", {"ids": [self.id]})


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _explain(content: bytes) -> str:
    """The line that an error answer carries."""
    try:
        detail = json.loads(content)["detail"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
    if isinstance(detail, list):  # FastAPI's account of what does not fit the schema
        return "; ".join(f"{'.'.join(map(str, part['loc'][1:]))}: {part['msg']}" for part in detail)
    return str(detail)
