"""``tenbin page`` in a process of its own, called as browsers and others would."""

from __future__ import annotations

import http.client
import json
import re
import selectors
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.programs import start

OWN = {"X-Tenbin-Page": "1", "Content-Type": "application/json"}


class PageProcess:
    """The page of one coordinator's folder.

    Attributes:
        address: to open, with the token. url: without. cookie: of this caller, "" before ``enter``.
    """

    def __init__(self, home: Path, place: str = "0") -> None:
        self.home = home
        self.log = home.parent / "page.log"
        with self.log.open("w") as log:
            self.process = start("page", "--home", str(home), "--listen", place, "--no-open", out=log)
        self.cookie = ""
        self.address = self.addresses(1)[0]
        self.url = self.address.partition("/enter")[0]

    def addresses(self, count: int) -> list[str]:
        """Wait until so many addresses are printed; return them."""
        deadline = time.monotonic() + 90
        while len(found := re.findall(r"http://\S+/enter\?token=\S+", self.log.read_text())) < count:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return found

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def ask(
        self, path: str, body: object = None, method: str | None = None, **headers: str | None
    ) -> tuple[int, Any, dict[str, str]]:
        """Make one call with the cookie, and for a change as the page does; None takes a header away."""
        found: dict[str, str | None] = {"Cookie": self.cookie}
        method = method or ("GET" if body is None else "POST")
        if method != "GET":
            found |= OWN | {"Origin": self.url}
        found |= {name.replace("_", "-"): value for name, value in headers.items()}
        given = {name: value for name, value in found.items() if value}
        connection = self.connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), given)
            answer = connection.getresponse()
            content = answer.read()
            told = {name.lower(): value for name, value in answer.getheaders()}
            is_json = told.get("content-type") == "application/json"
            return answer.status, json.loads(content) if is_json else content, told
        finally:
            connection.close()

    def enter(self) -> None:
        """Exchange the token for a cookie."""
        code, _, told = self.ask(self.address.removeprefix(self.url))
        assert code == 303, code
        self.cookie = told["set-cookie"].partition(";")[0]

    def get(self, path: str) -> Any:
        code, found, _ = self.ask(path)
        assert code == 200, (code, found)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


class Messages:
    """The messages of one stream, as they come."""

    def __init__(self, page: PageProcess, last_id: int | None = None) -> None:
        self._connection = page.connect()
        headers = {"Cookie": page.cookie} | ({} if last_id is None else {"Last-Event-ID": str(last_id)})
        self._connection.request("GET", "/api/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()

    def next(self, event: str) -> dict[str, Any]:
        """Wait for the next message of a kind."""
        kind = ""
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind == event:
                return dict(json.loads(value))
        raise EOFError(event)

    def close(self) -> None:
        self._connection.close()


class Relay:
    """A way to a page that can be cut, as ``ssh -L`` is one.

    Attributes:
        url: of this end.
    """

    def __init__(self, page: PageProcess) -> None:
        self._to = urlsplit(page.url)
        self._open = True
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections, and those that come, until ``mend``."""
        self._open = False
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._open:
                    near.close()
                    continue
                far = socket.create_connection((self._to.hostname or "", self._to.port or 0))
                self._pairs.append((near, far))
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, selectors.DefaultSelector() as chosen, suppress(OSError):
            for end in other:
                chosen.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in chosen.select():
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    content = end.recv(1 << 16)
                    if not content:
                        return
                    other[end].sendall(content)
