"""Callers who say nothing, or too much, beside those who know the token."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from tenbin.client.client import Client
from tenbin.page.serve import MOST_VIEWERS, _Viewing
from tenbin.server import tcp
from tenbin.server.serve import Server, listen
from tenbin.server.tcp import (
    AT_ONCE,
    LIKE_RECORDS,
    LIKE_S,
    Callers,
    Connection,
    LikeRecords,
    Listener,
    recognise,
)
from tests.support.coordinator import Up
from tests.support.page import PageProcess

MOST = 5
CALL = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nAuthorization: right\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    if dict(scope["headers"]).get(b"authorization") == b"right":
        recognise(scope)
    await PlainTextResponse("heard")(scope, receive, send)


def with_server(
    test: Callable[[Callers, Callable[[], Awaitable[Streams]]], Awaitable[None]], listener: socket.socket
) -> None:
    """Run a test beside a server of few connections."""

    async def run() -> None:
        callers = Callers(MOST, MOST)
        kind: Any = partial(Connection, callers)
        server = Server(uvicorn.Config(app, http=kind, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        address = listener.getsockname()

        async def connect() -> Streams:
            if listener.family == socket.AF_UNIX:
                return await asyncio.open_unix_connection(address)
            return await asyncio.open_connection(*address)

        try:
            await asyncio.wait_for(test(callers, connect), 60)
        finally:
            server.should_exit = server.force_exit = True
            await serving

    asyncio.run(run())


def on_tcp() -> Listener:
    listener = Listener(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


async def answer(streams: Streams, call: bytes = CALL) -> bytes:
    reader, writer = streams
    writer.write(call)
    found = await reader.read()
    writer.close()
    return found


def test_a_caller_is_heard_among_any_number_of_silent_ones() -> None:
    async def test(callers: Callers, connect: Callable[[], Awaitable[Streams]]) -> None:
        silent = []
        for _ in range(10 * MOST):
            silent.append(await connect())
            assert b"heard" in await answer(await connect())
            assert len(callers.known) + len(callers._strangers) <= MOST + 1
        ended = [await reader.read() for reader, _ in silent[: 8 * MOST]]  # the oldest were let go
        assert ended == [b""] * 8 * MOST
        for _, writer in silent:
            writer.close()

    with_server(test, on_tcp())


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: ", CALL.replace(b"right", b"wrong")])
def test_a_stranger_may_not_stay(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "STRANGER_S", 0.05)

    async def test(callers: Callers, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(said.replace(b"Connection: close\r\n", b""))
        assert (b"heard" in await reader.read()) == (b"wrong" in said)  # and it ends
        assert not callers._strangers
        writer.close()

    with_server(test, on_tcp())


def test_one_that_is_known_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(callers: Callers, connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(CALL.replace(b"Connection: close\r\n", b""))
        assert await reader.readuntil(b"heard")
        strangers = [await connect() for _ in range(3 * MOST)]
        for stranger, _ in strangers[:MOST]:
            assert await stranger.read() == b""
        assert len(callers.known) == 1
        writer.write(CALL)
        assert b"heard" in await reader.read()
        for _, one in strangers:
            one.close()

    with_server(test, on_tcp())


def test_one_too_many_of_the_own_user_is_told_so(tmp_path: Path) -> None:
    async def test(callers: Callers, connect: Callable[[], Awaitable[Streams]]) -> None:
        waiting = [await connect() for _ in range(MOST)]
        while len(callers.known) < MOST:
            await asyncio.sleep(0)
        found = await answer(await connect())
        assert b" 503 " in found and b"5 calls are under way; try again" in found
        assert b"heard" in await answer(waiting.pop())
        assert b"heard" in await answer(await connect())
        for _, writer in waiting:
            writer.close()

    with_server(test, listen(tmp_path / "socket"))


def test_few_connections_are_taken_in_one_turn() -> None:
    async def run() -> None:
        with on_tcp() as listener, ExitStack() as stack:
            listener.setblocking(False)
            for _ in range(2 * AT_ONCE):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            for _ in range(2):
                for _ in range(AT_ONCE):
                    stack.enter_context(listener.accept()[0])
                with pytest.raises(BlockingIOError):
                    listener.accept()
                await asyncio.sleep(0)

    asyncio.run(run())


def test_when_no_file_is_left_that_is_said_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def run() -> None:
        monkeypatch.setattr(socket.socket, "accept", fail)
        with on_tcp() as listener:
            for _ in range(3):
                with pytest.raises(OSError, match="Too many open files"):
                    listener.accept()
                with pytest.raises(BlockingIOError):
                    listener.accept()
                await asyncio.sleep(0)

    asyncio.run(run())


def failure(kind: type[Exception]) -> logging.LogRecord:
    """Make a record of an exception of one of two places."""
    try:
        if kind is ValueError:
            raise ValueError
        raise KeyError
    except kind:
        return logging.LogRecord("asyncio", logging.ERROR, "app.py", 7, "in a call", None, sys.exc_info())


def test_a_log_cannot_be_made_to_grow() -> None:
    now_s = 0.0
    like = LikeRecords(lambda: now_s)
    assert sum(like.filter(failure(ValueError)) for _ in range(1000)) == LIKE_RECORDS
    assert like.filter(failure(KeyError))  # from elsewhere
    now_s = LIKE_S + 1
    written = [record for _ in range(1000) if like.filter(record := failure(ValueError))]
    assert len(written) == LIKE_RECORDS
    assert "not logged" in written[-1].getMessage()
    assert "not logged" not in written[0].getMessage()


def test_viewers_are_counted_before_they_are_served() -> None:
    class Streams:
        viewers = 0

        async def stream(self, last: int | None) -> Any:
            yield "here"
            await over.wait()

    async def run() -> list[int]:
        codes: list[int] = []
        streams: Any = Streams()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                codes.append(message["status"])
                if len(codes) == MOST_VIEWERS + 60:
                    over.set()

        async def receive() -> Any:
            await over.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await asyncio.gather(
            *(_Viewing(streams, None)(scope, receive, send) for _ in range(MOST_VIEWERS + 60))
        )
        assert streams.viewers == 0
        return codes

    over = asyncio.Event()
    codes = asyncio.run(run())
    assert (codes.count(200), codes.count(503)) == (MOST_VIEWERS, 60)


@contextmanager
def files(most: int) -> Iterator[None]:
    """Let processes that are started in the context open so many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silent_callers_stop_neither_coordinator_nor_page(up: Up) -> None:
    with files(1024):
        up.start("--cores", "1", "--listen", "0")
        page = PageProcess(up.home)
    url = up.client.call("GET", "/status")["url"]
    token = (up.home / "token").read_text().strip()
    ports = [int(place.rpartition(":")[2]) for place in (url, page.url)]
    with ExitStack() as stack:
        for port in ports:
            for _ in range(1100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert Client(url=url, token=token).submit(["true"]).result(60) == 0
        jobs = [up.client.submit(["true"]) for _ in range(14)]
        assert [job.result(60) for job in jobs] == [0] * 14
        page.enter()
        up.until(lambda: len(page.get("/api/jobs")["rows"]) == 15)  # it follows the journal
    assert page.stop() == 0
    for log in (page.log, up.home.parent / "coordinator.log"):
        assert "Traceback" not in log.read_text() and log.stat().st_size < 10_000
