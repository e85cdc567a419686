"""Pages of text that can be scrolled: all about a job, its output, the nodes, the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tenbin.commands.top.screen import Back, Effect, Line, Open, Quit, Redraw, fit, wrapped

if TYPE_CHECKING:
    from tenbin.client.client import Client

LAST_BYTES = 1 << 15  # of an output
SLOW_EVERY = 5  # questions: what costs a request of its own is asked for with each fifth


class Page:
    """Text under a title.

    Attributes:
        scroll: lines above the screen; None: the end is shown, also when there is more.
    """

    hints = "up, down, PgUp, PgDn scroll  Esc back  q quit"

    def __init__(self, title: str, text: list[str] | None = None, *, at_end: bool = False) -> None:
        self.title, self.text = title, text
        self.scroll: int | None = None if at_end else 0
        self._follows = at_end
        self._last = self._height = 0

    def question(self) -> Callable[[Client], Any] | None:
        """Return nothing: the text is complete."""
        return None

    def take(self, answer: Any) -> None:
        """Take the lines of the text."""
        self.text = answer

    def lines(self, width: int, height: int) -> list[Line]:
        """Draw the title, and the lines that fit."""
        if self.text is None:
            return [((fit(self.title, width), "bold underline"),), (("...", ""),)]
        wrapped_lines = [part for line in self.text for part in wrapped(line, width)]
        self._height = height - 1
        self._last = max(len(wrapped_lines) - self._height, 0)
        begin = self._last if self.scroll is None else min(self.scroll, self._last)
        shown = wrapped_lines[begin : begin + self._height]
        where = f"  (lines {begin + 1} to {begin + len(shown)} of {len(wrapped_lines)})" if self._last else ""
        title = fit(f"{self.title}{where}", width)
        return [((title, "bold underline"),), *(((fit(line, width), ""),) for line in shown)]

    def press(self, key: str) -> Effect | None:
        """Take a key."""
        if key in ("escape", "left"):
            return Back()
        if key == "q":
            return Quit()
        if key == "?" and not isinstance(self, KeysPage):
            return Open(KeysPage())
        here = self._last if self.scroll is None else min(self.scroll, self._last)
        step = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._height, "pagedown": self._height}
        ends = {"home": 0, "g": 0, "end": self._last, "G": self._last}
        if key not in step and key not in ends:
            return None
        there = ends.get(key, min(max(here + step.get(key, 0), 0), self._last))
        self.scroll = None if self._follows and there == self._last else there
        return Redraw()


class KeysPage(Page):
    """The keys."""

    def __init__(self) -> None:
        super().__init__("tenbin top: keys", key_lines())


class NodesPage(Page):
    """The nodes, as ``tenbin nodes`` lists them."""

    def __init__(self) -> None:
        super().__init__("nodes")

    def question(self) -> Callable[[Client], Any]:
        """Return the call for the nodes."""
        from tenbin.commands.status import node_lines

        return lambda client: node_lines(client.call("GET", "/nodes", timeout_s=30))


class OfJob(Page):
    """A page about one job."""

    def __init__(self, job_id: int, name: str, title: str, *, at_end: bool = False) -> None:
        super().__init__(f"{title} {name}", at_end=at_end)
        self.job_id, self.name = job_id, name

    def press(self, key: str) -> Effect | None:
        """Take a key; pages of one job take the place of each other."""
        if key == "e":
            return Open(AccountPage(self.job_id, self.name), instead=True)
        if key in ("t", "T"):
            stream = "stdout" if key == "t" else "stderr"
            return Open(OutputPage(self.job_id, self.name, stream), instead=True)
        return super().press(key)


class AccountPage(OfJob):
    """Everything about a job, as ``tenbin info`` says it; of an array how far it is."""

    hints = "t stdout  T stderr  up, down scroll  Esc back  q quit"

    def __init__(self, job_id: int, name: str) -> None:
        super().__init__(job_id, name, "all about job")
        self._asked = 0
        self._stage = ""
        self._slow: dict[str, Any] = {}

    def question(self) -> Callable[[Client], Any]:
        """Return the call for the account; samples, and what would start it sooner, come with each fifth."""
        from tenbin.commands.jobs.account import account, array_account, last_error, used_now

        whole = self._asked % SLOW_EVERY == 0
        self._asked += 1

        def ask(client: Client) -> list[str]:
            job = client.job(self.job_id).info(sooner=whole)
            if "members" in job:
                return array_account(job).split("\n")
            runs = job["stage"] in ("running", "stopping")
            if whole or job["stage"] != self._stage:
                now = used_now(client.job(self.job_id).samples()) if runs else None
                self._slow = {"now": now, "stderr_end": last_error(client, job)}
                self._slow["sooner"] = job.get("sooner", [])
                self._stage = job["stage"]
            return account({**job, **self._slow}).split("\n")

        return ask


class OutputPage(OfJob):
    """The end of what a job has written."""

    hints = "t stdout  T stderr  e explain  up, down scroll  End follow  Esc back  q quit"

    def __init__(self, job_id: int, name: str, stream: str) -> None:
        super().__init__(job_id, name, f"end of {stream} of job", at_end=True)
        self._stream = stream

    def question(self) -> Callable[[Client], Any]:
        """Return the call for the end of the output."""
        path = f"/jobs/{self.job_id}/{self._stream}?last={LAST_BYTES}"
        return lambda client: output_lines(client.call("GET", path, timeout_s=30))


def output_lines(content: bytes) -> list[str]:
    """Make lines of the end of an output; of a line that was written over the last version is shown."""
    lines = content.decode(errors="replace").removesuffix("\n").split("\n")
    if len(content) >= LAST_BYTES and len(lines) > 1:
        lines = lines[1:]  # the begin of the first line is missing
    return [line.rstrip("\r").rpartition("\r")[2].expandtabs() for line in lines]


# -- the keys; ``?`` shows them ----------------------------------------------------------------------------


class Key(NamedTuple):
    """Names of one key, and its purpose."""

    names: tuple[str, ...]
    purpose: str


MOVES = (
    Key(("up", "k"), "one line up"),
    Key(("down", "j"), "one line down"),
    Key(("pageup",), "one screen up"),
    Key(("pagedown",), "one screen down"),
    Key(("home", "g"), "to the first line"),
    Key(("end", "G"), "to the last line"),
)
LIST = (
    Key(("enter",), "open: the jobs of an array, or all about a job"),
    Key(("escape",), "go back"),
    Key(("e",), "explain: why it waits, what it uses now, its story, predictions"),
    Key(("t",), "the end of its standard output, as it comes"),
    Key(("T",), "the end of its standard error"),
    Key(("n",), "nodes: what is free, jobs, regions"),
    Key(("/",), "filter: fit name=fit* state=held place=node1 user=ann since=2h"),
    Key(("s",), "next order: queue, since, name, stage, cores, place, user, id"),
    Key(("S",), "reverse the order"),
    Key(("a",), "also jobs that have ended (the last 1,000), or not"),
    Key(("space",), "mark a job, or unmark it"),
    Key(("*",), "mark all that are listed (the first 1,000)"),
    Key(("u",), "unmark all"),
    Key(("c",), "cancel the marked jobs, else the job under the cursor"),
    Key(("p",), "suspend (pause) them; their cores are free for others"),
    Key(("r",), "resume them"),
    Key(("R",), "retry those that did not succeed"),
    Key(("m",), "migrate them to another device or node"),
    Key(("P",), "change their priority; the higher is first"),
    Key(("?",), "these keys"),
    Key(("q",), "end tenbin top; jobs and coordinator go on"),
)


def key_lines() -> list[str]:
    """Write a line for each key."""
    return [f"{' '.join(key.names):>12}  {key.purpose}" for key in (*MOVES, *LIST)]
