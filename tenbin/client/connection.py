"""HTTP calls to a coordinator, over its Unix socket or over TCP; only the standard library."""

from __future__ import annotations

import http.client
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tenbin.client.callbacks import Callbacks
from tenbin.errors import TenbinError

if TYPE_CHECKING:
    from profiles.files import folders
else:  # by a name that no module of a user's program has
    from tenbin._profiles.files import folders

LONGEST_SOCKET_PATH = 90


def default_home() -> Path:
    """Return ``$TENBIN_HOME``, else ``tenbin/coordinator`` in ``$XDG_STATE_HOME`` or ``~/.local/state``.

    Raises:
        TenbinError: there is no home, or its name is not UTF-8.
    """
    try:
        if named := folders.named_folder("TENBIN_HOME"):
            return named
        return folders.user_folder("XDG_STATE_HOME", ".local/state") / "tenbin" / "coordinator"
    except folders.NoFolder as error:
        raise TenbinError(str(error), error.exit_code) from None


def socket_folder(home: Path) -> Path:
    """Return the folder of a coordinator's sockets: its own, or a short one (names are limited)."""
    home = home.absolute()
    if len(str(home)) <= LONGEST_SOCKET_PATH:
        return home
    key = sha256(str(home).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tenbin-{os.getuid()}-{key}"


class Connection:
    """The way to one coordinator; threads may share it.

    Args:
        home: the coordinator's folder, where its socket is; None: ``default_home``.
        url: for TCP, the URL of a coordinator started with --listen; None: $TENBIN_URL, unless ``home`` is
            given.
        token: for TCP; None: $TENBIN_TOKEN.

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
        self.callbacks = Callbacks(self.ended)

    def ended(self, job_ids: Sequence[int], wait_s: float, all: bool = False) -> list[dict[str, Any]]:
        """Wait at most ``wait_s`` for the first of the jobs to end, or for all; return those that ended."""
        body = {"ids": list(job_ids), "wait_s": wait_s, "all": all}
        found: list[dict[str, Any]] = self.call("POST", "/wait", body, wait_s + 30)
        return found

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> Any:
        """Call the API, and return its answer.

        Raises:
            TenbinError: there is no answer, or the answer is an error.
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
        """Explain why there is no answer: the coordinator is busy, or there is none."""
        late = isinstance(
            error, TimeoutError | BlockingIOError
        )  # the latter: too many calls stand before this one
        if late and connection.sock is not None:
            busy = f"the coordinator at {self.address} is busy: no answer within {timeout_s:g} s"
            return f"{busy}; see later what became of the call: tenbin jobs"
        if not self._url and (pid := holder(self.home)) is not None:
            return f"the coordinator at {self.address} is starting or ending (pid {pid}); try again"
        start = "tenbin up --listen PORT" if self._url else "tenbin up --daemon"
        return f"no coordinator answers at {self.address}; start one with: {start}"

    def _connection(self, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
        """Open a connection; return it, and the prefix of every path."""
        if not self._url:
            return _UnixConnection(socket_folder(self.home) / "api.sock", timeout_s), ""
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


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def holder(home: Path) -> int | None:
    """Find the process that holds the lock of a coordinator's folder; None: no process, or unknown."""
    try:
        end = f":{(home / 'lock').stat().st_ino}"
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
    except OSError:
        return None
    found = (lock for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(end))
    return next((int(lock[4]) for lock in found), None)


def _explain(content: bytes) -> str:
    """Read the sentence in an error answer."""
    try:
        detail = json.loads(content)["detail"]
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
    return str(detail)
