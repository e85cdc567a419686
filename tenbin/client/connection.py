"""HTTP calls to a coordinator, over its Unix socket or over TCP; only the standard library."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from select import select
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tenbin.errors import NO_ANSWER, TenbinError

if TYPE_CHECKING:
    from profiles.files import safe_files
    from profiles.quantities import local
else:  # by a name that no module of a user's program has
    from tenbin._profiles.files import safe_files
    from tenbin._profiles.quantities import local


# -- callbacks for the end of jobs -------------------------------------------------------------------------


END_S = 60.0  # for a coordinator that is told to end; a busy machine takes seconds
CHECK_S = 1.0  # longest delay of a callback, and the pause before a lost coordinator is asked again


class Callbacks:
    """Callbacks of one client's jobs; a thread runs while there are any.

    Args:
        ended: waits at most so many seconds for one of these jobs, and returns those that have ended.
    """

    def __init__(self, ended: Callable[[Sequence[int], float], list[dict[str, Any]]]) -> None:
        self._ended = ended
        self._lock = Lock()
        self._waiting: dict[int, list[Callable[[], object]]] = {}

    def add(self, job_id: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the job has ended."""
        with self._lock:
            is_first = not self._waiting
            self._waiting.setdefault(job_id, []).append(callback)
        if is_first:
            Thread(target=self._run, name="tenbin-callbacks", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                ids = list(self._waiting)
            try:
                ended = [job["id"] for job in self._ended(ids, CHECK_S)]
            except TenbinError:  # the coordinator may be started again
                time.sleep(CHECK_S)
                continue
            with self._lock:
                due = [(job_id, callback) for job_id in ended for callback in self._waiting.pop(job_id)]
                is_last = not self._waiting
            for job_id, callback in due:
                run_callback(job_id, callback)
            if is_last:
                return


def run_callback(job_id: int, callback: Callable[[], object]) -> None:
    """Run a callback, and log what it raises."""
    try:
        callback()
    except Exception:
        logging.getLogger("tenbin").exception("callback of job %d", job_id)


# -- the connection ----------------------------------------------------------------------------------------


LONGEST_SOCKET_PATH = 90  # bytes
MOST_IDS = 100_000  # of a request
SHARED_WAIT_S = 1.0  # for each part of those that are waited for, where there are several
FULL, FULL_S = 503, 0.5  # status where too many call at once; seconds until the next try
SHARED = "/tmp"  # not TMPDIR, which need not be the same for coordinator and client


def default_home() -> Path:
    """Return ``$TENBIN_HOME``, else ``tenbin/coordinator`` in ``$XDG_STATE_HOME`` or ``~/.local/state``.

    Raises:
        TenbinError: there is no home, or its name is not UTF-8.
    """
    try:
        if named := safe_files.named_folder("TENBIN_HOME"):
            return named
        return safe_files.user_folder("XDG_STATE_HOME", ".local/state") / "tenbin" / "coordinator"
    except safe_files.NoFolder as error:
        raise TenbinError(str(error), error.exit_code) from None


def socket_folder(home: Path) -> Path:
    """Return the folder of a coordinator's sockets: its own, or a short one (names are limited)."""
    home = home.absolute()
    place = os.fsencode(home)
    if len(place) <= LONGEST_SOCKET_PATH:
        return home
    return Path(SHARED) / f"tenbin-{os.getuid()}-{sha256(place).hexdigest()[:16]}"


def _parts(job_ids: Sequence[int]) -> list[list[int]]:
    """Divide jobs into as many as a request may name; at least one part."""
    return [list(job_ids[start : start + MOST_IDS]) for start in range(0, max(len(job_ids), 1), MOST_IDS)]


def _joined(answer: Any, other: Any) -> Any:
    """Join the answers to two parts of a request: lists, and objects of them."""
    if not isinstance(answer, dict):
        return answer + other
    both = {key: _joined(answer[key], other[key]) for key in answer.keys() & other.keys()}
    return {**answer, **other, **both}


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
        self._home_option = "" if home is None else f" --home {shlex.quote(str(home))}"
        self.callbacks = Callbacks(self.ended)

    @property
    def is_remote(self) -> bool:
        """True if the coordinator may be on another machine."""
        return bool(self._url)

    def ended(self, job_ids: Sequence[int], wait_s: float, all: bool = False) -> list[dict[str, Any]]:
        """Wait at most ``wait_s`` for the first of the jobs to end, or for all; return those that ended."""
        parts = _parts(job_ids)
        part_s = wait_s if len(parts) == 1 else min(wait_s / len(parts), SHARED_WAIT_S)
        for part in parts:
            body = {"ids": part, "wait_s": part_s, "all": all}
            jobs: list[dict[str, Any]] = self.call("POST", "/wait", body, part_s + 30)
            if jobs:
                return jobs
        return []

    def change(
        self, verb: str, ids: Sequence[int], where_possible: Sequence[int], **more: str | float | None
    ) -> dict[str, Any]:
        """Ask for a change of jobs; very many of ``where_possible`` go in several requests."""
        named = set(ids)
        first, *others = _parts([job_id for job_id in dict.fromkeys(where_possible) if job_id not in named])
        answer: dict[str, Any] = self.call(
            "POST", f"/{verb}", {"ids": list(ids), "where_possible": first, **more}
        )
        for part in others:
            answer = _joined(answer, self.call("POST", f"/{verb}", {"where_possible": part, **more}))
        return answer

    def call(self, method: str, path: str, body: object = None, timeout_s: float = 60.0) -> Any:
        """Call the API, and return its answer.

        Raises:
            TenbinError: there is no answer, or the answer is an error.
        """
        deadline = time.monotonic() + timeout_s
        text = None if body is None else json.dumps(body)
        while True:
            response, content = self._exchange(method, path, text, timeout_s)
            if response.status != FULL or time.monotonic() >= deadline:
                break
            time.sleep(FULL_S)  # nothing of the call was looked at
        if response.status >= 400:
            raise _refusal(content, exit_code=2 if response.status < 500 else 1)
        kind = response.headers.get_content_type()
        if kind != "application/json":
            return content if kind == "application/octet-stream" else content.decode()
        return json.loads(content)

    def _exchange(
        self, method: str, path: str, text: str | None, timeout_s: float
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Call once; TenbinError if there is no answer."""
        connection, prefix = self._connection(timeout_s)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, prefix + path, text, headers)
            response = connection.getresponse()
            return response, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise TenbinError(self._silence(error, connection, timeout_s), NO_ANSWER) from error
        except ValueError as error:  # a header cannot have such characters
            raise TenbinError("TENBIN_TOKEN is no token; see the file token in the home", 2) from error
        finally:
            connection.close()

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
        start = "tenbin up --listen PORT" if self._url else f"tenbin up --daemon{self._home_option}"
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
        user = safe_files.credentials_of_peer(self.sock)[1]
        if user != os.geteuid():  # who made a folder in /tmp first would be sent environments
            what = f"{self._path}: a process of user {user} listens there, and not one of yours"
            raise TenbinError(f"{what}; nothing was sent to it; choose another --home", 2)


def holder(home: Path) -> int | None:
    """Find the process that holds the lock of a coordinator's folder; None: no process, or unknown.

    The process that the lock names is looked at, because the list of all locks (``/proc/locks``) is read in
    pieces: where others lock and unlock files meanwhile, a lock is missed that is held all the time.
    """
    try:
        lock, pid = (home / "lock").stat(), int((home / "lock").read_text())
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
    except (OSError, ValueError):
        return None
    for number in descriptors:
        with suppress(OSError):  # it was closed meanwhile
            is_lock = os.path.samestat(Path(f"/proc/{pid}/fd/{number}").stat(), lock)
            if is_lock and "FLOCK" in Path(f"/proc/{pid}/fdinfo/{number}").read_text():
                return pid
    return None


def await_end(pid: int) -> None:
    """Wait until a coordinator has ended, and with it has given back its folder and its cores.

    Raises:
        TenbinError: it has not within a minute.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select([descriptor], [], [], END_S)[0]:
            what = f"the coordinator (pid {pid}) was told to end, and has not within {END_S:g} s"
            raise TenbinError(f"{what}; see coordinator.log in its folder", NO_ANSWER)
    finally:
        os.close(descriptor)


def _refusal(content: bytes, exit_code: int) -> TenbinError:
    """Read an error answer."""
    try:
        answer = json.loads(content)
        text = local(str(answer["detail"]))
        return TenbinError(text, exit_code, answer.get("place"), local(str(answer.get("reason", text))))
    except (ValueError, KeyError, TypeError, AttributeError):
        return TenbinError(content.decode(errors="replace")[:500], exit_code)
