"""One job as its view shows it: what it is, its story, its output, what it uses."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, Literal

from scheduler.coordinator.journal.reader import job_record
from scheduler.engines.common.job_folders import JobFolders
from scheduler.jobs.entry import Entry
from tenbin.server.api import piece

TAIL = 64 << 10  # bytes of output that are shown
MOST_POINTS = 400  # of a chart
Stream = Literal["stdout", "stderr"]


def account(store: Path, job_id: int) -> dict[str, Any] | None:
    """Return what the journal has of a job; None if there is none of that number."""
    record = job_record(store, job_id)
    if record is None:
        return None
    entry, folders = record.entry, JobFolders(store)
    return {
        "command": list(entry.spec.command),
        "folder": entry.spec.folder,
        "stdout": str(folders.output(entry, "stdout")),
        "cpus": list(entry.cores),
        "preemptions": entry.preemptions,
        "migrations": entry.migrations,
        "usage": entry.usage,
        "history": [{"at_s": at, "what": what, "detail": detail} for at, what, detail in record.history],
        "predictions": [one.told() for one in record.predictions],
    }


def output(store: Path, entry: Entry, stream: Stream, start: int | None) -> dict[str, Any]:
    """Return the output from a byte on, or its end; at most ``TAIL`` bytes, to the end of a character.

    Raises:
        OSError: it cannot be read.
    """
    folders = JobFolders(store)
    path = folders.output(entry, stream)
    size = path.stat().st_size if path.exists() else len(folders.packed.content(path) or b"")
    begin = max(size - TAIL, 0) if start is None or start > size else max(start, size - TAIL)
    content = piece(folders, path, begin)[:TAIL]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(content)
    end = begin + len(content) - len(decoder.getstate()[0])  # the rest of a character is yet to be written
    skipped = begin if start is None or begin != start else 0
    return {"start": begin, "end": end, "skipped": skipped, "text": text}


def samples(store: Path, entry: Entry) -> list[dict[str, Any]]:
    """Return what the last attempt used over time: between two points cores, watts and the most memory."""
    rows = JobFolders(store).samples(entry.id, entry.attempt)
    step = len(rows) // MOST_POINTS + 1
    found = []
    for first in range(0, len(rows) - 1, step):
        group = rows[first : first + step + 1]
        before, row = group[0], group[-1]
        passed_s = row.at_s - before.at_s
        if passed_s <= 0:
            continue
        power_w = None
        if row.energy_j is not None and before.energy_j is not None:
            power_w = (row.energy_j - before.energy_j) / passed_s
        found.append(
            {
                "at_s": row.at_s,
                "cores": (row.cpu_s - before.cpu_s) / passed_s,
                "memory_mb": max(one.memory_mb for one in group[1:]),
                "power_w": power_w,
                "processes": row.processes,
                "threads": row.threads,
            }
        )
    return found
