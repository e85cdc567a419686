"""The application: draws what has changed, takes keys, and asks the coordinator once a second.

One widget draws all lines. Textual's ``DataTable`` draws the whole screen when cells change: on 80x24 it
sends 5.2 kB and takes 23 ms of processor time each second where 20 cells change, ``Screenful`` 1.3 kB and 4
ms; a move of the cursor 0.7 kB, here 0.3 kB. It also wants all rows, of which the list of jobs asks a window.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from profiles.errors import UserError
from profiles.quantities import clock
from tenbin.commands.top import views
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.terminal import fit
from tenbin.text import printable

if TYPE_CHECKING:
    from textual import events

    from tenbin.client.client import Client

EVERY_S, SELDOM_S = 1.0, 5.0
SHARE = 20  # a question is followed by a pause so many times as long, within these bounds
SILENT_S = 3.0  # after so long without an answer the screen says so
ANSWERS = "y: yes; any other key: no"
UNKNOWN = "the coordinator answers again; what was asked last may not have been done"
LOWEST = 5  # lines below the view, at most


class Screenful(Widget, can_focus=True):
    """Lines of text; of new lines only the cells that have changed are drawn."""

    DEFAULT_CSS = "Screenful { width: 1fr; height: 1fr; background: ansi_default; color: ansi_default; }"

    def __init__(self, top: Top) -> None:
        super().__init__()
        self.top = top
        self.drawn: list[views.Line] = []

    def show(self, lines: list[views.Line]) -> None:
        """Draw these lines."""
        before, self.drawn = self.drawn, lines
        for y in range(max(len(before), len(lines))):
            old, new = (screen[y] if y < len(screen) else () for screen in (before, lines))
            for x, width in views.changes(old, new):
                self.refresh(Region(x, y, self.size.width - x if width is None else width, 1))

    def render_line(self, y: int) -> Strip:
        """Draw one line, when Textual wants it."""
        line = self.drawn[y] if y < len(self.drawn) else ()
        strip = Strip([Segment(text, Style.parse(style)) for text, style in line])
        return strip.adjust_cell_length(self.size.width, self.rich_style)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.top.resized()

    async def on_key(self, event: events.Key) -> None:
        """Hand a key over."""
        event.stop()
        event.prevent_default()
        character = event.character if event.is_printable and event.character != " " else None
        self.top.pressed(character or event.key)

    def on_paste(self, event: events.Paste) -> None:
        """Add what was pasted to the line that is being written."""
        event.stop()
        self.top.write(event.text.strip())


class Top(App[None]):
    """The views of one coordinator, the last one in front."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; }"

    def __init__(self, client: Client) -> None:
        super().__init__(ansi_color=True)
        self.client = client
        self.views: list[views.View] = [views.JobList()]
        self.message = self.trouble = ""
        self.confirm: views.Confirm | None = None
        self.prompt: views.Prompt | None = None
        self.answered_s = time.time()
        self.questions = 0
        self._calls: deque[views.Call] = deque()
        self._again = asyncio.Event()

    def compose(self) -> ComposeResult:
        """Make the only widget."""
        yield Screenful(self)

    def on_mount(self) -> None:
        """Begin to ask."""
        self.screenful.focus()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.exit)
        self.run_worker(self._ask_on(), exclusive=False)

    def on_unmount(self) -> None:
        """Take the signal handler away."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    def resized(self) -> None:
        """Draw for the new size, for which more rows may be needed."""
        self.redraw()
        self._again.set()

    @property
    def screenful(self) -> Screenful:
        """The widget with the lines."""
        return self.query_one(Screenful)

    # -- drawing ----------------------------------------------------------------------------------

    def redraw(self) -> None:
        """Draw the view in front, and the last line."""
        width, height = self.screenful.size
        below = self._below(width)
        lines = self.views[-1].lines(width, height - len(below))[: height - len(below)]
        lines += [()] * (height - len(below) - len(lines))
        self.screenful.show([*lines, *below])

    def _below(self, width: int) -> list[views.Line]:
        """Return the last lines: a trouble or message, and a question, the line being written, or hints."""
        view, message = self.views[-1], self.message
        if self.trouble:
            message = f"LOST since {clock(self.answered_s)}: {self.trouble}"
        texts = [message] if message else []
        if self.confirm is not None:
            texts.append(f"{self.confirm.text} {ANSWERS}")
        elif self.prompt is not None:
            texts.append(f"{self.prompt.text}{self.prompt.value}_")
        if not texts:
            return [((fit(view.hints, width), "dim"),)]
        parts = [part for text in texts for part in views.wrapped(text, width)]
        return [((fit(part, width), "bold"),) for part in parts[-LOWEST:]]

    # -- keys -------------------------------------------------------------------------------------

    def pressed(self, key: str) -> None:
        """Take a key."""
        self.message = ""
        if key == "ctrl+c":
            self.exit()
        elif self.confirm is not None:
            confirm, self.confirm = self.confirm, None
            self.carry_out(confirm.call if key == "y" else views.Tell("nothing was changed"))
        elif self.prompt is not None:
            self.carry_out(self._write_key(self.prompt, key))
        else:
            effect = self.views[-1].press(key)
            self.carry_out(effect or views.Tell(f"the key {key} has no meaning here; ?: all keys, Esc: back"))

    def carry_out(self, effect: views.Effect) -> None:
        """Do what a key or an answer is to do."""
        match effect:
            case views.Redraw(ask=True):
                self._again.set()
            case views.Tell(text):
                self.message = text
            case views.Open(view, instead):
                self.views[-1 if instead else len(self.views) :] = [view]
                self._again.set()
            case views.Back():
                if len(self.views) > 1:
                    self.views.pop()
                    self._again.set()
            case views.Quit():
                self.exit()
            case views.Call():
                self._calls.append(effect)
                self._again.set()
            case views.Confirm():
                self.confirm = effect
            case views.Prompt():
                self.prompt = effect
        self.redraw()

    def write(self, text: str) -> None:
        """Add text to the line that is being written."""
        if self.prompt is not None:
            self.prompt = replace(self.prompt, value=self.prompt.value + printable(text))
            self.redraw()

    def _write_key(self, prompt: views.Prompt, key: str) -> views.Effect:
        """Take a key of the line that is being written; a line that cannot be read stays, with the reason."""
        if key == "enter":
            try:
                effect = prompt.then(prompt.value)
            except UserError as error:
                return views.Tell(str(error))
            self.prompt = None
            return effect
        if key == "escape":
            self.prompt = None
        elif key in ("backspace", "ctrl+u"):
            self.prompt = replace(prompt, value=prompt.value[:-1] if key == "backspace" else "")
        elif len(key) == 1 or key == "space":
            self.write(" " if key == "space" else key)
        return views.Redraw()

    # -- questions --------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        """Ask for the view in front, once a second, and for what keys want, one question at a time."""
        while True:
            self._again.clear()
            began = time.monotonic()
            if self._calls:
                call = self._calls.popleft()
                await self._answered(call.ask, partial(self._take_answer, call), lost=UNKNOWN)
                continue
            view = self.views[-1]
            if (ask := view.question()) is not None:
                await self._answered(ask, view.take)
                self.redraw()
            pause_s = min(max(EVERY_S, SHARE * (time.monotonic() - began)), SELDOM_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._again.wait()
            except TimeoutError:
                pass

    async def _answered(
        self, ask: Callable[[Client], Any], take: Callable[[Any], None], *, lost: str = ""
    ) -> None:
        """Ask, and take the answer; say it if there is none (``lost``: as well), or if it is a refusal."""
        self.questions += 1
        call = asyncio.ensure_future(in_thread(lambda: ask(self.client)))
        done, _ = await asyncio.wait([call], timeout=SILENT_S)
        if not done:
            self.trouble = f"the coordinator at {self.client.address} has not answered yet"
            self.redraw()
        try:
            answer = await call
        except TenbinError as error:
            if error.exit_code == NO_ANSWER:
                self.trouble, self.message = str(error), lost or self.message
            else:
                self._is_back()
                self.message = str(error)
            self.redraw()
            return
        self._is_back()
        take(answer)

    def _take_answer(self, call: views.Call, answer: Any) -> None:
        self.carry_out(call.then(answer))

    def _is_back(self) -> None:
        """Note that the coordinator has answered."""
        if self.trouble:
            self.trouble, self.message = "", self.message or "the coordinator answers again"
        self.answered_s = time.time()


async def in_thread(ask: Callable[[], Any]) -> Any:
    """Run a call in a thread that nobody waits for at the end, because it may hang."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
