"""``tenbin top`` on a terminal that only Textual's pilot sees."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from tenbin.client.client import Client
from tenbin.commands.top.app import Top
from tests.support.coordinator import Up


class Session:
    """One ``tenbin top`` of 80x24, and what it has asked the coordinator."""

    def __init__(self, up: Up) -> None:
        client = Client(up.home)
        self.asked: list[str] = []

        def call(method: str, path: str, *arguments: Any, **more: Any) -> Any:
            self.asked.append(f"{method} {path}")
            return Client.call(client, method, path, *arguments, **more)

        client.call = call  # type: ignore[method-assign]
        self.app = Top(client)
        self.pilot: Pilot[None]

    @property
    def screen(self) -> list[str]:
        return ["".join(text for text, _ in line).rstrip() for line in self.app.screenful.drawn]

    @property
    def rows(self) -> list[str]:
        """The first two words of each job, after the signs of cursor and mark."""
        return [" ".join(line[2:].split()[:2]) for line in self.screen[4:-1] if line.strip()]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], object], limit_s: float = 8.0) -> None:
        """Wait for the screen; what it shows in place of it is the failure."""
        for _ in range(int(limit_s / 0.02)):
            if condition():
                return
            await self.pilot.pause(0.02)
        raise AssertionError("\n".join(self.screen))

    async def shows(self, *patterns: str) -> None:
        """Wait until each pattern is there: in a line, or in the words of all lines."""

        def found() -> bool:
            text = "\n".join(self.screen)
            words = " ".join(text.split())
            return all(re.search(p, text, re.MULTILINE) or re.search(p, words) for p in patterns)

        await self.until(found)


def play(up: Up, script: Callable[[Session], Awaitable[None]]) -> None:
    """Run a script on a terminal of 80x24."""

    async def run() -> None:
        session = Session(up)
        async with session.app.run_test(size=(80, 24)) as session.pilot:
            await script(session)

    asyncio.run(run())
