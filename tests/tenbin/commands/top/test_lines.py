"""Texts of ``tenbin top``: widths in cells, nothing obeyed, only changed cells, filters, keys."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from profiles.errors import BadInput
from tenbin.commands.status import use_words
from tenbin.commands.top import top
from tenbin.commands.top.views import (
    LAST_BYTES,
    LIST,
    MOVES,
    ORDERS,
    WIDEST,
    Line,
    Query,
    changes,
    columns,
    headings,
    output_lines,
    read_filter,
    row_line,
    state_lines,
    steady_s,
    wrapped,
)
from tenbin.terminal import fit

HOSTILE = [
    "[red]x[/red]",
    "a\x1b[31mb",
    "a\u202eb\u200fc",
    "漢字" * 30,
    "e\u0301" * 40,
    "\ud800",
    "x\r\ny\tz\0",
]
ROW: dict[str, Any] = {
    **{"id": 7, "name": "fit", "array": None, "array_index": None, "stage": "running", "slurm": None},
    **{"user": "ann", "cores": 2, "place": "core", "submit_s": 1.0, "start_s": 2.0, "end_s": None},
    **{"trouble": ""},
}


@given(st.text() | st.sampled_from(HOSTILE), st.integers(0, 100), st.booleans())
def test_a_text_fills_its_cells(text: str, width: int, right: bool) -> None:
    fitted = fit(text, width, right=right)
    assert cell_len(fitted) == width and fitted.isprintable()
    assert all(line.isprintable() and cell_len(line) <= 40 for line in wrapped(text, 40))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [40, 80, 81, 200])
def test_a_row_is_as_wide_as_the_terminal(name: str, width: int) -> None:
    """Cursor and marks are signs, not only colours."""
    for slurm in (None, 12):
        row = {**ROW, "name": name, "user": name, "place": name, "trouble": name, "slurm": slurm}
        shown = columns([row, ROW], width)
        text = "".join(part for part, _ in row_line(row, shown, time.time(), here=True, marked=True))
        assert text.isprintable() and text.startswith(">*") and "running" in text
        assert cell_len(text) == width or width == 40
        assert cell_len("".join(part for part, _ in headings(shown, width))) == width
        assert ("user" in [column.name for column in shown]) == (slurm is not None or width >= WIDEST)
    assert row_line(ROW, columns([ROW], 80), 9.0)[0] == ("  ", "")


def test_a_wide_terminal_says_how_many_gpus_of_a_job_work() -> None:
    row = {**ROW, "cpu_s": None, "memory_mb": None, "gpus": ["0", "1"], "gpus_used": 1.3, "why": ""}
    shown = columns([row, ROW], 200)
    assert "at work" in "".join(part for part, _ in headings(shown, 200))
    assert "0, 1 1.3" in "".join(part for part, _ in row_line(row, shown, 9.0))
    assert row_line(ROW, shown, 9.0)


def test_a_wide_terminal_has_reason_start_user_and_use() -> None:
    later_s = time.time() + 30 * 86_400
    more = {"cpu_s": None, "memory_mb": None, "gpus": [], "why": "", "expected_start_s": None}
    runs = {**ROW, **more, "cpu_s": 3725.5, "memory_mb": 1234.5, "gpus": ["pocl-0"]}
    waits = {**ROW, **more, "stage": "waiting", "why": "waits for 2 cores (0 of 2 free); behind job 7"}
    waits |= {"expected_start_s": later_s, "start_s": None}

    def text(row: dict[str, Any], width: int) -> str:
        return "".join(part for part, _ in row_line(row, columns([runs, waits], width), 9.0))

    top = "".join(part for part, _ in headings(columns([runs, waits], 200), 200))
    assert " ".join(top.split()) == "job user name stage cores since place CPU time memory GPU starts why"
    assert text(runs, 200).split()[-6:] == ["core", "1:02", "h", "1.23", "GB", "pocl-0"]
    day = time.strftime("%Y-%m-%d", time.localtime(later_s))
    assert re.search(rf"ann .* {day} waits for 2 cores \(0 of 2 free\); behind job 7 *$", text(waits, 200))
    narrow = text(waits, 140)
    assert "(0 of 2 free); behind job 7; starts about" in narrow and "ann" not in narrow
    assert "waits for 2 cores" in text(waits, 80) and cell_len(text(waits, 80)) == 80


def test_only_what_has_changed_is_drawn() -> None:
    def line(*texts: str) -> Line:
        return tuple((text, "") for text in texts)

    old = line("aa", "漢字", "cc")
    assert list(changes(old, old)) == []
    assert list(changes(old, line("aa", "漢字", "cX"))) == [(6, 2)]
    assert list(changes(old, line("aX", "漢字", "cX"))) == [(0, 2), (6, 2)]
    assert list(changes(old, line("aa", "bb", "cc"))) == [(2, None)]
    assert list(changes(old, line("aa"))) == [(2, None)] and list(changes((), old)) == [(0, None)]
    assert [steady_s(s) for s in (5, 59, 60, 69, 3605)] == [5, 59, 60, 60, 3600]


def test_filters() -> None:
    assert read_filter("") == {} and read_filter("fit") == {"name": "*fit*"}
    assert read_filter("fit* stage=running,failed place=node1 user=ann") == {
        "name": "fit*",
        "stages": ["running", "failed"],
        "place": "node1",
        "user": "ann",
    }
    assert read_filter("'my fit'")["name"] == "*my fit*"
    assert abs(read_filter("since=2h")["since_s"] - (time.time() - 7200)) < 60
    for bad in ("odd=1", "stage=odd", "since=odd", "name='open"):
        with pytest.raises(BadInput):
            read_filter(bad)
    query = Query(array=7).filtered("'fit&x' since=2h")
    assert "name=%2Afit%26x%2A" in Query().filtered("'fit&x'").path(0, 9) and "array=7" in Query(
        array=7
    ).path(0, 9)
    assert query.words() == "by queue; jobs of array 7; filter: 'fit&x' since=2h"
    after = Query()
    for _ in ORDERS:
        after = after.next_order()
    assert after == Query()


def test_output_is_text() -> None:
    """A line that was written over shows its last version; a first line that was cut is left out."""
    assert output_lines(b"a\n10%\r20%\r30%\nb\tc\n") == ["a", "30%", "b       c"]
    assert output_lines(b"dos\r\n\xff\n") == ["dos", "\ufffd"] and output_lines(b"") == [""]
    assert output_lines(b"x" * (LAST_BYTES - 2) + b"\nb") == ["b"]


def test_state_in_three_lines() -> None:
    state = {
        "policy": "easy",
        "jobs": {"held": 0, "waiting": 9999, "running": 2, "stopping": 0, "suspended": 0},
        "in_use": [
            {"name": "core", "used": 2.0, "total": 4.0},
            {"name": "pocl-0", "used": 0.0, "total": 1.0},
        ],
        "memory": {"set_aside_mb": 500.0, "total_mb": 8000.0},
        "power": {"allotted_w": 80.0, "budget_w": 100.0},
        "held": "",
    }
    texts = ["".join(part for part, _ in line).rstrip() for line in state_lines(state, "5 listed", 110)]
    assert texts == [
        "tenbin top  policy easy; 9,999 waiting, 2 running",
        "in use: 2 of 4 cores, 0 of 1 pocl-0, 0.5 of 8 GB memory, 80 of 100 W",
        "5 listed",
    ]
    ((_, (first, _)), *_) = state_lines({**state, "held": "the queue is suspended"}, "5 listed", 110)
    assert first.rstrip().endswith("2 running; the queue is suspended")


def test_memory_of_nodes_is_said_once() -> None:
    """A node has it among its resources, and the check of each start counts the same."""
    memory = {"name": "memory_mb", "used": 500.0, "total": 8000.0}
    state = {"in_use": [memory], "memory": {"set_aside_mb": 500.0, "total_mb": 8000.0}, "power": None}
    assert use_words(state) == "in use: 0.5 of 8 GB memory"


def test_help_teaches_every_key() -> None:
    words = re.sub(r"[(),;.]", " ", top.__doc__ or "").split()
    known = {"pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "g": "Home", "G": "End"}
    for key in (*MOVES, *LIST):
        names = [known.get(name, name) for name in key.names]
        assert all(name in words or name.capitalize() in words for name in names), key
