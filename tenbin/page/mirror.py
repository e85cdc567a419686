"""All jobs of one journal in memory, brought up to date from the file."""

from __future__ import annotations

import gc
from collections import Counter, deque
from pathlib import Path

from scheduler.coordinator.journal.reader import Changes, JournalEvent, JournalReader
from tenbin.page import spans
from tenbin.page.rows import COLUMNS, Row, row_of

REMEMBERED = 20_000  # events, and changes of jobs, for viewers that are behind


class Mirror:
    """The jobs of a store as the page shows them. One thread refreshes; others may read meanwhile.

    Attributes:
        rows: all jobs by number. spans: when each held its place.
        number: of the last event, which is the id of what viewers are told.
        version: counts the changes. epoch: counts the journals, because ``up --recover`` makes a new one.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.rows: dict[int, Row] = {}
        self.spans: spans.Spans = {}
        self.number = self.version = self.epoch = 0
        self._reader = JournalReader(store, COLUMNS, row_of)
        self._counts: tuple[int, Counter[str]] = -1, Counter()
        self._events: deque[JournalEvent] = deque(maxlen=REMEMBERED)
        self._changed: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)  # version, job

    def close(self) -> None:
        self._reader.close()

    def refresh(self) -> bool:
        """Read what has changed; True if something has.

        Raises:
            BadInput: the journal cannot be read; all is as before.
        """
        gc.disable()  # the rows stay: to look for garbage in them takes long
        try:
            found = self._reader.changes()
        finally:
            gc.enable()
        if found is None:
            return False
        if found.anew:
            self._begin(found)
        else:
            spans.extend(self.spans, found.events, self.rows)
            self._note(found)
        self.number = found.number
        self.version += 1
        return True

    def _begin(self, found: Changes[Row]) -> None:
        made: spans.Spans = {}
        spans.extend(made, found.events, {})
        for row in found.jobs:
            spans.go_on(made, row)
            for place, span in enumerate(made.get(row.id, ())):
                if span.attempt < row.attempt:
                    lane = spans.earlier_lane(self.store, row.id, span.attempt)
                    made[row.id][place] = span._replace(lane=lane)
        self.rows, self.spans = {row.id: row for row in found.jobs}, made
        self._events.clear()
        self._events.extend(found.events[-REMEMBERED:])
        self._changed.clear()
        self.epoch += 1

    def _note(self, found: Changes[Row]) -> None:
        for row in found.jobs:
            self.rows[row.id] = row
            spans.go_on(self.spans, row)
        self._events.extend(found.events)
        jobs = {event.job for event in found.events} | {row.id for row in found.jobs}
        self._changed.extend((self.version + 1, job) for job in jobs)

    def events_since(self, number: int) -> list[JournalEvent] | None:
        """List the events after one; None: it is too long ago, or of another journal."""
        if number >= self.number:
            return [] if number == self.number else None
        found = [event for event in list(self._events) if event.number > number]
        return found if found and found[0].number == number + 1 else None

    def changed_since(self, version: int) -> list[int] | None:
        """List the jobs that changed after a version; None: they are too many to remember."""
        changed = list(self._changed)
        if len(changed) == REMEMBERED and changed[0][0] > version + 1:
            return None
        return sorted({job for at, job in changed if at > version})

    def counts(self) -> dict[str, int]:
        """Count the jobs by stage."""
        if self._counts[0] != self.version:
            self._counts = self.version, Counter(row.stage for row in list(self.rows.values()))
        return dict(self._counts[1])
