"""The page's process: HTTP on one port, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from tenbin.page.access import Gate
from tenbin.page.app import Page, make_app
from tenbin.server import tcp
from tenbin.server.serve import Server
from tenbin.server.tcp import configure


def serve(store: Path, listener: socket.socket, name: str, tell: Callable[[str, bool], None]) -> None:
    """Serve the page of a coordinator's folder until SIGINT or SIGTERM.

    Args:
        listener: closed at the end. name: of this machine, as callers may know it.
        tell: called with the address to open, and False for the ones after the first.

    Raises:
        BadInput: the journal cannot be read.
    """
    try:
        page = Page(store)
        page.warm()
        asyncio.run(_serve(page, listener, name, tell))
    finally:
        listener.close()


async def _serve(page: Page, listener: socket.socket, name: str, tell: Callable[[str, bool], None]) -> None:
    url = tcp.url_of(listener)
    names = {name, socket.gethostname(), socket.getfqdn()}

    def address(token: str) -> str:
        return f"{url}/enter?token={token}"

    gate = Gate(make_app(page), names, listener.getsockname()[1], lambda token: tell(address(token), False))
    # A log of calls would have the token.
    server = Server(configure(gate))

    def end() -> None:
        server.should_exit, server.force_exit = True, server.should_exit
        page.streams.end()  # else the server would wait for them

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    tasks = [asyncio.create_task(page.streams.run()), asyncio.create_task(page.explainer.run())]
    for task in tasks:
        task.add_done_callback(lambda _: end())  # one that fails must not leave a page that stands still
    try:
        tell(address(gate.token), True)
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        page.mirror.close()
    for error in ended:
        if not isinstance(error, asyncio.CancelledError) and error is not None:
            raise error
