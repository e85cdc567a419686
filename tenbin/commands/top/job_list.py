"""The list of jobs: cursor, marks, and changes of the marked jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from profiles.errors import BadInput
from tenbin.commands.jobs.selection import job_ranges, left_out_lines
from tenbin.commands.top.effects import Back, Call, Confirm, Effect, Open, Prompt, Quit, Redraw, Tell
from tenbin.commands.top.lines import Line
from tenbin.commands.top.pages import AccountPage, KeysPage, NodesPage, OutputPage
from tenbin.commands.top.query import Query
from tenbin.commands.top.rows import columns, headings, row_line, state_lines
from tenbin.text import label

if TYPE_CHECKING:
    from tenbin.client.client import Client

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
        path = query.path(start, min(3 * self.height, MOST_ROWS))
        return lambda client: (query, start, client.call("GET", path, timeout_s=30))

    def take(self, answer: Any) -> None:
        """Take the rows; the cursor stays on its job, if the job is among them."""
        query, start, found = answer
        if query != self.query:  # a late answer to what was wanted before
            return
        self.state, self.total, self.start, self.rows = found, found["total"], start, found["rows"]
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
            drawn.append((("  no jobs; a: also those that have ended, /: another filter", ""),))
        return drawn

    # -- keys -------------------------------------------------------------------------------------

    def press(self, key: str) -> Effect | None:
        """Take a key."""
        page = self.height - 1
        moves = {
            **{"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page},
            **{"home": -self.total, "g": -self.total, "end": self.total, "G": self.total},
        }
        if key in moves:
            return self._moved(self.cursor + moves[key])
        if key in VERBS:
            return self._change(VERBS[key])
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
            "m": self._migrate,
            "P": self._prioritize,
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

        def mark(found: dict[str, Any]) -> Effect:
            self.marks |= {row["id"]: _mark(row) for row in found["rows"]}
            rest = found["total"] - len(found["rows"])
            return Tell(f"{rest:,} more are not marked") if rest else Redraw()

        return Call(lambda client: client.call("GET", path), mark)

    def _meant(self) -> dict[int, Mark]:
        """Return the marked jobs, else the job under the cursor."""
        row = self._row(self.cursor)
        return dict(self.marks) or ({row["id"]: _mark(row)} if row else {})

    def _change(self, verb: str, **more: str | int) -> Effect:
        meant = self._meant()
        if not meant:
            return Tell("no job under the cursor")
        body = {"ids" if len(meant) == 1 else "where_possible": list(meant), **more}
        to = "".join(f" to {value}" for value in more.values())

        def changed(found: dict[str, Any]) -> Effect:
            self._unmark()
            labels = [meant[number].label for number in found["ids"] if number in meant]
            jobs = job_ranges(labels) or f"{len(found['ids']):,} jobs"  # retry names the members of an array
            told = [f"{verb} {jobs}{to}: accepted"] if found["ids"] else []
            return Tell("; ".join([*told, *left_out_lines(found)]))

        call = Call(lambda client: client.call("POST", f"/{verb}", body), changed)
        return Confirm(f"{verb} {_in_words(meant)}{to}?", call)

    def _migrate(self) -> Effect:
        meant = self._meant()
        if not meant:
            return Tell("no job under the cursor")

        def change(to: str) -> Effect:
            return self._change("migrate", to=to.strip()) if to.strip() else Redraw()

        return Prompt(f"migrate {_in_words(meant)} to which device or node: ", "", change)

    def _prioritize(self) -> Effect:
        meant = self._meant()
        if not meant:
            return Tell("no job under the cursor")

        def change(text: str) -> Effect:
            if not text.strip():
                return Redraw()
            try:
                return self._change("priority", priority=int(text))
            except ValueError:
                raise BadInput(f"priority {text!r} is not a whole number", "for instance 10") from None

        return Prompt(f"priority of {_in_words(meant)}: ", "", change)


def _mark(row: dict[str, Any]) -> Mark:
    return Mark(label(row), row.get("members"))


def _in_words(meant: dict[int, Mark]) -> str:
    """Write ``job 5`` or ``3 jobs: 5, 7-8``; an array counts as its jobs."""
    count = sum(mark.members or 1 for mark in meant.values())
    labels = job_ranges(mark.label for mark in meant.values())
    if count == 1:
        return f"job {labels}"
    return f"{count:,} jobs: {labels if len(labels) < 40 else labels[:37] + '...'}"
