"""A light client of the coordinator, for programs: ``import tenbin``; only the standard library.

job = tenbin.submit(["./simulate", "--steps", "1000"], cores=4, time_s=600)
job.result()
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tenbin.client.futures import Job, Watcher
from tenbin.errors import TenbinError

LONGEST_SOCKET_PATH = 90


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
    """Speaks to one coordinator; threads may share it.

    Args:
        home: its folder, to speak over its socket there; None: ``default_home``.
        url: to speak over TCP to one that was started with --listen; None: $TENBIN_URL, unless ``home`` is
            given.
        token: what that one wants to hear; None: $TENBIN_TOKEN.

    Attributes:
        address: folder or URL, for people.
    """

    def __init__(
        self, home: Path | str | None = None, url: str | None = None, token: str | None = None
    ) -> None:
        self.home = Path(home) if home is not None else default_home()
        self._url = url or (os.environ.get("TENBIN_URL") if home is None else None) or ""
        self._token = (token or os.environ.get("TENBIN_TOKEN") or "").strip() if self._url else ""
        self.address = self._url or str(self.home)
        self.watcher = Watcher(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def submit(self, command: Sequence[str], **needs: Any) -> Job:
        """Submit one job; ``needs`` are fields of the API's JobSpec (tasks, cores, time_s, after, ...)."""
        needs.setdefault("folder", str(Path.cwd()))
        return self.submit_all([{"command": list(command), **needs}])[0]

    def submit_all(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        waits_for: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Job]:
        """Submit jobs, all or none.

        Args:
            specs: each a JobSpec of the API. environment: of all of them; None: this process's.
            waits_for: which of them wait for which others of them, by their places from 0 on.
        """
        variables = dict(os.environ) if environment is None else environment
        whole, arrays = _arrays(specs)
        body = {
            "specs": whole,
            "environment": variables,
            "waits_for": dict(waits_for or {}),
            "arrays": arrays,
        }
        answer = self.call("POST", "/jobs", body)
        return [Job(self, job_id) for job_id in answer["ids"]]

    def job(self, job_id: int) -> Job:
        """A job by its number."""
        return Job(self, job_id)

    def ended(self, job_ids: Sequence[int], wait_s: float, all: bool = False) -> list[dict[str, Any]]:
        """Those of the jobs that have ended, as soon as one has, or all; at the latest after ``wait_s``."""
        body = {"ids": list(job_ids), "wait_s": wait_s, "all": all}
        found: list[dict[str, Any]] = self.call("POST", "/wait", body, wait_s + 30)
        return found

    def output(self, job_id: int, stream: str = "stdout", start: int = 0) -> bytes:
        """What a job has written to stdout or stderr, from a byte on; at most 4 MiB at once."""
        found: bytes = self.call("GET", f"/jobs/{job_id}/{stream}?start={start}")
        return found

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> Any:
        """One call of the API; what it answers.

        Raises:
            TenbinError: nobody answers, or the answer is an error.
        """
        connection, prefix = self._connection(timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, prefix + path, text, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise TenbinError(self._silence(error, connection, timeout_s), exit_code=4) from error
        except ValueError as error:  # a header cannot have such characters
            raise TenbinError("TENBIN_TOKEN is no token; see the file token in the home", 2) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise TenbinError(_explain(content), exit_code=2 if response.status < 500 else 1)
        kind = response.headers.get_content_type()
        if kind != "application/json":
            return content if kind == "application/octet-stream" else content.decode()
        return json.loads(content)

    def _silence(self, error: Exception, connection: http.client.HTTPConnection, timeout_s: float) -> str:
        """Why nobody answers: there is a coordinator, and it is busy, or there is none."""
        late = isinstance(
            error, TimeoutError | BlockingIOError
        )  # the latter: too many calls stand before this one
        if late and connection.sock is not None:
            busy = f"the coordinator at {self.address} is busy: no answer within {timeout_s:g} s"
            return f"{busy}; see later what became of the call: tenbin jobs"
        if not self._url and (pid := _holder(self.home)) is not None:
            return f"the coordinator at {self.address} is starting or ending (pid {pid}); try again"
        start = "tenbin up --listen PORT" if self._url else "tenbin up --daemon"
        return f"no coordinator answers at {self.address}; start one with: {start}"

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
        """A connection, and what to put before every path."""
        if not self._url:
            return _Connection(socket_folder(self.home) / "api.sock", timeout_s), ""
        try:
            parts = urlsplit(self._url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise TenbinError(
                f"TENBIN_URL {self._url!r} is no URL; write for instance http://127.0.0.1:8470", 2
            )
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s), parts.path.rstrip("/")
        return http.client.HTTPConnection(host, port, timeout=timeout_s), parts.path.rstrip("/")


def submit(command: Sequence[str], **needs: Any) -> Job:
    """Submit one job to the coordinator of this user; as ``Client.submit``."""
    return Client().submit(command, **needs)


def job(job_id: int) -> Job:
    """A job of the coordinator of this user, by its number."""
    return Client().job(job_id)


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _holder(home: Path) -> int | None:
    """The process that holds the lock of a coordinator's folder; None: nobody does, or it cannot be said."""
    try:
        end = f":{(home / 'lock').stat().st_ino}"
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
    except OSError:
        return None
    found = (lock for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(end))
    return next((int(lock[4]) for lock in found), None)


def _arrays(specs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """Specs in a row that differ in their ``array_index`` alone as one; its numbers, by its place."""
    whole: list[dict[str, Any]] = []
    arrays: dict[int, list[int]] = {}
    for spec in specs:
        index = spec.get("array_index")
        if index is None:
            whole.append(spec)
            continue
        common = {name: value for name, value in spec.items() if name != "array_index"}
        if len(whole) - 1 not in arrays or whole[-1] != common:
            whole.append(common)
        arrays.setdefault(len(whole) - 1, []).append(index)
    return whole, arrays


def _explain(content: bytes) -> str:
    """The line that an error answer carries."""
    try:
        detail = json.loads(content)["detail"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
    return str(detail)
