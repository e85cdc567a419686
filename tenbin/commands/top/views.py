"""The views of ``tenbin top``: the list of jobs, and pages of text. They know nothing of Textual."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from rich.cells import cell_len, chop_cells

from profiles.errors import BadInput
from profiles.quantities import duration, local, number
from scheduler.jobs.literals import memory_text
from tenbin.commands.jobs.account import wait_words
from tenbin.commands.jobs.jobs import (
    HEADINGS,
    STAGES,
    age_s,
    cell,
    chosen_stages,
    job_ranges,
    left_out_lines,
)
from tenbin.commands.status import node_lines, use_words
from tenbin.option_values import past_instant
from tenbin.terminal import LONGEST, fit
from tenbin.text import label, printable

if TYPE_CHECKING:
    from tenbin.client.client import Client

# -- lines of text with styles, shown and never obeyed -----------------------------------------------------


Piece = tuple[str, str]  # text, and its style in rich's words
Line = tuple[Piece, ...]


def wrapped(text: str, width: int) -> list[str]:
    """Break a line at its spaces, else in the middle of a word; what follows is indented as the line is."""
    width = max(width, 1)  # before the first layout there is none
    text = printable(text[:LONGEST]) + "…" * (len(text) > LONGEST)
    indent = " " * min(len(text) - len(text.lstrip()) + 2, width // 2)
    if cell_len(text) <= width:
        return [text]
    if not text.isascii():
        return chop_cells(text, width)
    return textwrap.wrap(text, width, subsequent_indent=indent, drop_whitespace=True)


def changes(old: Line, new: Line) -> Iterator[tuple[int, int | None]]:
    """Yield the cells of a line that have changed: from where, and how many (None: all that follow)."""
    x = 0
    for before, after in zip(old, new, strict=False):
        width = cell_len(after[0])
        if before != after:
            if cell_len(before[0]) != width:
                yield x, None
                return
            yield x, width
        x += width
    if len(old) != len(new):
        yield x, None


# -- effects of keys and answers, which the application carries out ----------------------------------------


@dataclass(frozen=True)
class Redraw:
    """Draw again. ``ask``: other contents are wanted, so ask the coordinator at once."""

    ask: bool = False


@dataclass(frozen=True)
class Tell:
    """Show a sentence in the last line."""

    text: str


@dataclass(frozen=True)
class Open:
    """Show a view in front of this one, or ``instead`` of it."""

    view: View
    instead: bool = False


@dataclass(frozen=True)
class Back:
    """Show the view behind this one; before the first there is none."""


@dataclass(frozen=True)
class Quit:
    """End the application."""


@dataclass(frozen=True)
class Call:
    """Ask the coordinator for something; its answer has an effect."""

    ask: Callable[[Client], Any]
    then: Callable[[Any], Effect]


@dataclass(frozen=True)
class Confirm:
    """Ask the user back."""

    text: str
    call: Call


@dataclass(frozen=True)
class Prompt:
    """Let the user write a line; it has an effect, or BadInput is raised."""

    text: str
    value: str
    then: Callable[[str], Effect]


Effect = Redraw | Tell | Open | Back | Quit | Call | Confirm | Prompt


# -- pages of text that can be scrolled: all about a job, its output, the nodes, the keys ------------------


LAST_BYTES = 1 << 15  # of an output
SLOW_EVERY = 5  # questions: what costs a request of its own is asked for with each fifth


class Page:
    """Text under a title.

    As every view it asks the coordinator for what it shows (``question``: a call, or None: it has all),
    takes the answer, draws lines, and makes an effect of a key, or None of one without a meaning.

    Attributes:
        hints: the keys to name in the last line.
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
        there = moved(key, here, self._height, self._last)
        if there is not None:
            self.scroll = None if self._follows and there == self._last else there
        return None if there is None else Redraw()


def moved(key: str, here: int, screen: int, last: int) -> int | None:
    """Return the place to which a key moves from ``here``; None: it moves nothing."""
    places = {
        **{"up": here - 1, "k": here - 1, "down": here + 1, "j": here + 1},
        **{"pageup": here - screen, "pagedown": here + screen, "home": 0, "g": 0, "end": last, "G": last},
    }
    return max(min(places[key], last), 0) if key in places else None


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
        from tenbin.commands.jobs.account import account, last_error, used_now

        whole = self._asked % SLOW_EVERY == 0
        self._asked += 1

        def ask(client: Client) -> list[str]:
            job = client.job(self.job_id).info(sooner=whole)
            runs = job.get("stage") in ("running", "stopping")
            if "members" not in job and (whole or job["stage"] != self._stage):
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
    Key(("/",), "filter: fit name=fit* stage=held place=node1 user=ann since=2h"),
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


# -- the list of jobs: its query ---------------------------------------------------------------------------


ORDERS = ("queue", "since", "name", "stage", "cores", "place", "user", "id")
ENDED = 1000  # jobs that have ended, the last ones
FIELDS = ("name", "stage", "place", "user", "since")


@dataclass(frozen=True)
class Query:
    """The list of jobs that is wanted.

    Attributes:
        text: the filter as the user wrote it. filters: as the API takes it.
        everything: also jobs that have ended.
        array: only the members of this array, each in a row.
    """

    text: str = ""
    filters: Mapping[str, Any] = field(default_factory=dict)
    order: str = ORDERS[0]
    reverse: bool = False
    everything: bool = False
    array: int | None = None

    def path(self, start: int, rows: int, *, top: int = 0, details: int = 0) -> str:
        """Return the path of the request for these rows, with details of those from ``top`` on."""
        given: dict[str, Any] = {**self.filters, "order": self.order, "start": start, "rows": rows}
        given |= {"detail_start": top, "details": details}
        if self.array is not None:
            given["array"] = self.array
        flags = {"reverse": self.reverse, "all": self.everything, "members": self.array is not None}
        given |= {name: str(value).lower() for name, value in flags.items()}
        return f"/queue?{urlencode({**given, 'limit': ENDED}, doseq=True)}"

    def words(self) -> str:
        """Say what is listed, and in which order."""
        parts = [f"by {self.order}{', reversed' if self.reverse else ''}"]
        parts += [f"jobs of array {self.array}"] if self.array is not None else []
        parts += ["also ended ones"] if self.everything else []
        parts += [f"filter: {self.text}"] if self.text else []
        return "; ".join(parts)

    def next_order(self) -> Query:
        """Return the same list in the next order."""
        return replace(self, order=ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)], reverse=False)

    def filtered(self, text: str) -> Query:
        """Return the list with another filter.

        Raises:
            BadInput: the filter cannot be read.
        """
        return replace(self, text=text.strip(), filters=read_filter(text))


def read_filter(text: str) -> dict[str, Any]:
    """Read ``fit name=fit* stage=running,held``; a word alone is a part of the name, or its pattern."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"filter {text!r}: {error}", "write for instance name='my fit*'") from error
    filters: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            name, value = "name", word if any(c in word for c in "*?[") else f"*{word}*"
        name = "stage" if name == "state" else name
        if name not in FIELDS:
            raise BadInput(f"filter {name!r} is not known", f"one of {', '.join(FIELDS)}")
        if name == "stage":
            filters["stages"] = chosen_stages(value, STAGES)
        elif name == "since":
            filters["since_s"] = past_instant(value, "since")
        else:
            filters[name] = value
    return filters


# -- its rows, and the lines above them, as wide as the terminal -------------------------------------------


STYLES = {"running": "green", "suspended": "yellow", "failed": "red", "killed": "red"}
WIDE, WIDEST = 110, 160  # cells from which the place has a column, and the user, use, and start
LONGEST_NAME = 23  # cells, unless reasons leave more
LEAST = {  # cells, so that what grows does not move all columns
    **{"id": 4, "user": 4, "stage": 9, "cores": 5, "since_s": 9, "place": 5, "cpu_s": 9, "memory_mb": 8},
    **{"gpus": 3, "gpus_used": 7, "start": 6},
}
MOST = {"user": 10, "place": 12, "gpus": 10}  # likewise; on the widest terminals twice as much
RIGHT = ("id", "cores", "since_s", "cpu_s", "memory_mb")
TITLES = {
    **HEADINGS,
    "cpu_s": "CPU time",
    "memory_mb": "memory",
    "gpus": "GPU",
    "gpus_used": "at work",
    "start": "starts",
    "trouble": "why",
}


class Column(NamedTuple):
    """A column of the list, and its width in cells."""

    name: str
    width: int


def columns(rows: list[dict[str, Any]], width: int) -> list[Column]:
    """Choose the columns for these jobs in so many cells, each as wide as it needs, the reason the rest."""
    widest = width >= WIDEST

    def needed(name: str, least: int, most: int) -> int:
        cells = [] if name == "since_s" else [_cell(row, name, with_start=not widest) for row in rows]
        return min(max([least, *(cell_len(printable(text[:most])) for text in cells)]), most)

    by_user = widest or any(row["slurm"] for row in rows)
    known = {name for row in rows for name in ("gpus", "gpus_used") if row.get(name) not in (None, [])}
    names = ["id", *["user"] * by_user, "stage", "cores", "since_s", *["place"] * (width >= WIDE)]
    names += [*["cpu_s", "memory_mb"] * widest, *sorted(known) * widest, *["start"] * widest]
    fixed = [Column(name, needed(name, LEAST[name], MOST.get(name, 40) * (1 + widest))) for name in names]
    rest = max(width - 2 - sum(column.width + 1 for column in fixed), 0)
    name = needed("name", 8, max(LONGEST_NAME, rest - 1 - needed("trouble", 0, width)))
    place = 1 + by_user
    return [*fixed[:place], Column("name", name), *fixed[place:], Column("trouble", max(rest - name - 1, 0))]


def headings(shown: list[Column], width: int) -> Line:
    """Write the names of the columns."""
    texts = [
        fit(TITLES.get(column.name, column.name), column.width, right=column.name in RIGHT)
        for column in shown
    ]
    return ((fit("  " + " ".join(texts), width), "bold underline"),)


def row_line(
    row: dict[str, Any], shown: list[Column], now: float, *, here: bool = False, marked: bool = False
) -> Line:
    """Write one job. ``here``: the cursor is on it."""
    row = {**row, "since_s": steady_s(age_s(row, now))}
    base = "reverse" if here else ""
    pieces: list[Piece] = [(f"{'>' if here else ' '}{'*' if marked else ' '}", base)]
    for column in shown:
        style = f"{base} {STYLES.get(row['stage'], '')}".strip() if column.name == "stage" else base
        text = _cell(row, column.name, with_start=shown[-2].name != "start")
        pieces += [(fit(text, column.width, right=column.name in RIGHT), style), (" ", base)]
    return tuple(pieces[:-1])


def _cell(row: dict[str, Any], column: str, *, with_start: bool) -> str:
    """Write one value; ``with_start``: the reason of a wait has the expected start, which has no column."""
    match column:
        case "trouble" if row.get("why"):
            why = wait_words(row if with_start else row | {"expected_start_s": None})
            return f"{row['trouble']}; {why}" if row["trouble"] and row.get("members") else why
        case "start":
            return start_text(row)
        case "cpu_s":
            return "" if row.get("cpu_s") is None else duration(steady_s(row["cpu_s"]))
        case "memory_mb":
            return "" if row.get("memory_mb") is None else memory_text(float(f"{row['memory_mb']:.3g}"))
        case "gpus" | "gpus_used":
            value = row.get(column)
            return ", ".join(value or ()) if value is None or isinstance(value, list) else number(value)
    return cell(row, column)


def start_text(row: dict[str, Any]) -> str:
    """Write an expected start, with its interval if that is known: ``12:03 (11:58 to 12:14)``."""
    names = ("expected_start_s", "start_low_s", "start_high_s")
    texts = [short_instant(row[name]) for name in names if row.get(name)]
    return f"{texts[0]} ({texts[1]} to {texts[2]})" if texts[1:] else "".join(texts)


def short_instant(at_s: float) -> str:
    """Write an instant in 10 cells: ``12:03``, ``Sat 12:03`` within six days, else ``2026-12-01``."""
    when, now = time.localtime(at_s), time.time()
    if when[:3] == time.localtime(now)[:3]:
        return time.strftime("%H:%M", when)
    return time.strftime("%a %H:%M" if at_s - now < 6 * 86_400 else "%Y-%m-%d", when)


def steady_s(seconds: float) -> float:
    """Round down to 10 s from a minute on: a row that is drawn each second fills a slow line."""
    return seconds if seconds < 60 else seconds - seconds % 10


def state_lines(state: dict[str, Any], listed: str, width: int) -> list[Line]:
    """Write the coordinator's state in three lines, of which the last one says what is listed."""
    counts = ", ".join(f"{count:,} {stage}" for stage, count in state["jobs"].items() if count) or "no jobs"
    held = f"; {local(state['held'])}" if state["held"] else ""
    return [
        (("tenbin top", "bold"), (fit(f"  policy {state['policy']}; {counts}{held}", width - 10), "")),
        ((fit(use_words(state), width), ""),),
        ((fit(listed, width), ""),),
    ]


# -- as the application shows it: rows, cursor and marks, and changes of the marked jobs -------------------


MOST_ROWS = 1000  # of one answer
HEAD = 4  # lines above the first job
VERBS = {"c": "cancel", "p": "suspend", "r": "resume", "R": "retry"}


class Mark(NamedTuple):
    """A job, or an array with its number of jobs, that a change is meant for."""

    label: str
    members: int | None


class JobList:
    """The window of the list of jobs that the screen shows, and somewhat more on both sides of it.

    Attributes:
        cursor, top: places in the whole list of the cursor, and of the first job on the screen.
        start, rows: the place of the first row that is known, and the rows.
    """

    hints = "? keys  / filter  s order  e explain  t output  n nodes  c cancel  q quit"

    def __init__(self, query: Query | None = None) -> None:
        self.query = query or Query()
        self.state: dict[str, Any] | None = None
        self.cursor = self.top = self.start = self.total = 0
        self.height = 20
        self.rows: list[dict[str, Any]] = []
        self.marks: dict[int, Mark] = {}
        self._current: int | None = None  # number of the job under the cursor, which the cursor follows

    # -- answers ----------------------------------------------------------------------------------

    def question(self) -> Callable[[Client], Any]:
        """Return the call for the rows on the screen, and for a screen before and after them."""
        query, start = self.query, max(self.top - self.height, 0)
        details = min(self.height, MOST_ROWS)
        path = query.path(start, min(3 * self.height, MOST_ROWS), top=self.top, details=details)
        return lambda client: (query, start, client.call("GET", path, timeout_s=30))

    def take(self, answer: Any) -> None:
        """Take the rows; the cursor stays on its job, if the job is among them."""
        query, start, queue = answer
        if query != self.query:  # a late answer to what was wanted before
            return
        self.state, self.total, self.start, self.rows = queue, queue["total"], start, queue["rows"]
        places = {row["id"]: start + place for place, row in enumerate(self.rows)}
        if self._current in places:
            self.cursor = places[self._current]
        self._move_to(self.cursor)

    def _row(self, place: int) -> dict[str, Any] | None:
        inside = 0 <= place - self.start < len(self.rows)
        return self.rows[place - self.start] if inside else None

    # -- lines ------------------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> list[Line]:
        """Draw the coordinator's state, the headings, and the jobs."""
        if height - HEAD != self.height:
            self.height = max(height - HEAD, 1)
            self._move_to(self.cursor)
        if self.state is None:
            return [(("tenbin top: waits for the coordinator", ""),)]
        marked = f"; {len(self.marks)} marked" if self.marks else ""
        listed = f"{self.total:,} listed, {self.query.words()}{marked}"
        shown = columns(self.rows, width)
        drawn = [*state_lines(self.state, listed, width), headings(shown, width)]
        now = time.time()
        for place in range(self.top, min(self.top + self.height, self.total)):
            row = self._row(place)
            here = place == self.cursor
            if row is None:
                drawn.append(((f"{'>' if here else ' '} ...", "reverse" if here else ""),))
            else:
                is_marked = row["id"] in self.marks
                drawn.append(row_line(row, shown, now, here=here, marked=is_marked))
        if not self.total:
            drawn += [((line, ""),) for line in self._nothing()]
        return drawn

    def _nothing(self) -> list[str]:
        """Say why the list is empty, and what to do."""
        if self.query.text:
            return ["  no job is like this; /: another filter"]
        first = [] if self.query.everything else ["  a: also jobs that have ended"]
        return ["  no jobs; the first one, typed in a shell:  tenbin submit -- echo hello", *first]

    # -- keys -------------------------------------------------------------------------------------

    def press(self, key: str) -> Effect | None:
        """Take a key."""
        place = moved(key, self.cursor, self.height - 1, self.total - 1)
        if place is not None:
            return self._moved(place)
        if key in (*VERBS, "m", "P"):
            return self._of_marked(key)
        simple: dict[str, Callable[[], Effect]] = {
            "enter": self._open,
            "escape": Back,
            "q": Quit,
            "?": lambda: Open(KeysPage()),
            "n": lambda: Open(NodesPage()),
            "e": lambda: self._of_job(AccountPage),
            "t": lambda: self._of_job(lambda number, name: OutputPage(number, name, "stdout")),
            "T": lambda: self._of_job(lambda number, name: OutputPage(number, name, "stderr")),
            "/": lambda: Prompt("filter: ", self.query.text, self._filter),
            "s": lambda: self._ask_for(self.query.next_order()),
            "S": lambda: self._ask_for(replace(self.query, reverse=not self.query.reverse)),
            "a": lambda: self._ask_for(replace(self.query, everything=not self.query.everything)),
            "space": self._mark,
            "*": self._mark_all,
            "u": self._unmark,
        }
        return simple[key]() if key in simple else None

    def _move_to(self, place: int) -> None:
        self.cursor = max(min(place, self.total - 1), 0)
        self.top = max(min(self.top, self.cursor, self.total - 1), self.cursor - self.height + 1, 0)
        row = self._row(self.cursor)
        self._current = row["id"] if row else None

    def _moved(self, place: int) -> Redraw:
        """Move the cursor; if a row on the screen is not known, ask for the rows at once."""
        self._move_to(place)
        last = min(self.top + self.height, self.total) - 1
        return Redraw(ask=self._row(self.top) is None or self._row(last) is None)

    def _ask_for(self, query: Query) -> Redraw:
        """Show another list, from its begin."""
        self.query, self._current = query, None
        self.cursor = self.top = 0
        return Redraw(ask=True)

    def _filter(self, text: str) -> Effect:
        return self._ask_for(self.query.filtered(text))

    def _open(self) -> Effect:
        row = self._row(self.cursor)
        if row is not None and "members" in row:
            return Open(JobList(Query(array=row["id"], everything=True)))
        return self._of_job(AccountPage)

    def _of_job(self, page: Callable[[int, str], Any]) -> Effect:
        row = self._row(self.cursor)
        return Tell("no job under the cursor") if row is None else Open(page(row["id"], label(row)))

    # -- marks and changes ------------------------------------------------------------------------

    def _mark(self) -> Effect:
        row = self._row(self.cursor)
        if row is not None and self.marks.pop(row["id"], None) is None:
            self.marks[row["id"]] = _mark(row)
        return self._moved(self.cursor + 1)

    def _unmark(self) -> Effect:
        self.marks.clear()
        return Redraw()

    def _mark_all(self) -> Effect:
        path = self.query.path(0, MOST_ROWS)

        def mark(queue: dict[str, Any]) -> Effect:
            self.marks |= {row["id"]: _mark(row) for row in queue["rows"]}
            rest = queue["total"] - len(queue["rows"])
            return Tell(f"{rest:,} more are not marked") if rest else Redraw()

        return Call(lambda client: client.call("GET", path), mark)

    def _meant(self) -> dict[int, Mark]:
        """Return the marked jobs, else the job under the cursor."""
        row = self._row(self.cursor)
        return dict(self.marks) or ({row["id"]: _mark(row)} if row else {})

    def _of_marked(self, key: str) -> Effect:
        """Change the marked jobs; some changes need a word first."""
        if not self._meant():
            return Tell("no job under the cursor")
        if key in VERBS:
            return self._change(VERBS[key])
        jobs = _in_words(self._meant())
        if key == "m":
            return Prompt(f"migrate {jobs} to which device or node: ", "", self._migrate)
        return Prompt(f"priority of {jobs}: ", "", self._prioritize)

    def _migrate(self, to: str) -> Effect:
        return self._change("migrate", to=to.strip()) if to.strip() else Redraw()

    def _prioritize(self, text: str) -> Effect:
        if not text.strip():
            return Redraw()
        try:
            return self._change("priority", priority=int(text))
        except ValueError:
            raise BadInput(f"priority {text!r} is not a whole number", "for instance 10") from None

    def _change(self, verb: str, **more: str | int) -> Effect:
        meant = self._meant()
        if not meant:
            return Tell("no job under the cursor")
        body = {"ids" if len(meant) == 1 else "where_possible": list(meant), **more}
        to = "".join(f" to {value}" for value in more.values())

        def changed(answer: dict[str, Any]) -> Effect:
            self._unmark()
            labels = [meant[number].label for number in answer["ids"] if number in meant]
            jobs = job_ranges(labels) or f"{len(answer['ids']):,} jobs"  # retry names the members of an array
            accepted = [f"{verb} {jobs}{to}: accepted"] if answer["ids"] else []
            return Tell("; ".join([*accepted, *left_out_lines(answer)]))

        call = Call(lambda client: client.call("POST", f"/{verb}", body), changed)
        return Confirm(f"{verb} {_in_words(meant)}{to}?", call)


def _mark(row: dict[str, Any]) -> Mark:
    return Mark(label(row), row.get("members"))


def _in_words(meant: dict[int, Mark]) -> str:
    """Write ``job 5`` or ``3 jobs: 5, 7-8``; an array counts as its jobs."""
    count = sum(mark.members or 1 for mark in meant.values())
    labels = job_ranges(mark.label for mark in meant.values())
    if count == 1:
        return f"job {labels}"
    return f"{count:,} jobs: {labels if len(labels) < 40 else labels[:37] + '...'}"


View = Page | JobList
