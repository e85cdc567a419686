"""Events and lists of the page's process beside a real coordinator."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from tenbin.page.mirror import Mirror
from tenbin.page.serve import serve
from tenbin.server import tcp
from tests.support.coordinator import Up
from tests.support.page import Messages, PageProcess


def numbers(page: PageProcess, path: str = "/api/jobs?count=200") -> list[int]:
    return [row["id"] for row in page.get(path)["rows"]]


def test_events_have_no_gap_however_often_the_viewer_is_away(up: Up, page: PageProcess) -> None:
    page.enter()
    seen: list[int] = []
    last: int | None = None
    jobs = []
    for _ in range(4):
        jobs.append(up.client.submit(["true"]))
        stream = Messages(page, last)
        told = stream.next("changes")
        last = told["from"] if last is None else last
        while True:
            assert told["from"] == last
            last = told["to"]
            seen += [event[0] for event in told["events"]]
            if jobs[-1].done() and any(
                row["id"] == jobs[-1].id and row["end_s"] for row in page.get("/api/jobs")["rows"]
            ):
                break
            told = stream.next("changes")
        stream.close()
        for _ in range(3):  # while nobody listens
            up.client.submit(["true"]).result(30)
    up.until(lambda: page.get("/api/jobs?stages=done")["total"] == 16)
    told = Messages(page, last).next("changes")
    seen += [event[0] for event in told["events"]]
    assert seen == list(range(seen[0], seen[0] + len(seen))) and told["counts"] == {"done": 16}
    known = page.get("/api/jobs?count=200")
    assert known["total"] == 16
    ahead = Messages(page, 10**12).next("changes")  # of another journal
    assert ahead["from"] is None and ahead["jobs"] is None and ahead["events"] is None
    up.kill(signal.SIGTERM)  # the last remarks are written
    with_journal = Journal(up.home)
    assert with_journal.count() == 16
    with_journal.close()


def test_the_page_outlives_the_coordinator_and_costs_it_little(up: Up, page: PageProcess) -> None:
    page.enter()
    first, second = (up.client.submit(["sleep", "600"], cores=2, time_s=900) for _ in range(2))
    stream = Messages(page)
    up.until(lambda: page.get("/api/jobs")["reasons"].get(str(second.id)))
    reason = page.get("/api/jobs")["reasons"][str(second.id)]
    told = second.info()
    assert reason["why"] == told["why"] and abs(reason["expected_start_s"] - told["expected_start_s"]) < 1
    assert reason["start_low_s"] is None and reason["outcomes"] == 0  # no forecast has had its outcome
    up.kill()
    while not (state := stream.next("coordinator"))["trouble"]:
        pass
    assert "tenbin up" in state["trouble"]
    assert set(numbers(page)) == {first.id, second.id}
    code, found, _ = page.ask("/api/change/cancel", {"ids": [first.id]})
    assert code == 503 and "no coordinator" in found["detail"]
    up.start("--cores", "2")
    while stream.next("coordinator")["trouble"]:
        pass
    assert page.ask("/api/change/cancel", {"ids": [first.id, 999]})[1] == {
        "ids": [first.id],
        "left_out": {"999": "there is no job 999"},
        "reasons": {"there is no such job": ["999"]},
    }
    up.until(
        lambda: {row["id"]: row["stage"] for row in page.get("/api/jobs")["rows"]}.get(second.id) == "running"
    )
    page.process.send_signal(signal.SIGSTOP)  # a page that is stuck
    assert up.client.submit(["true"]).id == second.id + 1
    page.process.send_signal(signal.SIGCONT)
    up.until(lambda: second.id + 1 in numbers(page))


def test_streams_are_ended_at_the_end(page: PageProcess) -> None:
    page.enter()
    streams = [Messages(page) for _ in range(3)]
    for stream in streams:
        stream.next("coordinator")
    began = time.monotonic()
    assert page.stop() == 0
    assert time.monotonic() - began < 15
    for stream in streams:
        with pytest.raises(EOFError):
            while True:
                stream.next("changes")


def journal_of(home: Path, entries: list[Entry]) -> None:
    """Write a journal without a coordinator."""
    journal = Journal(home)
    key = journal.keep_environment({})
    for entry in entries:
        entry.id, entry.environment = journal.next_id(), key
    journal.commit((), [(entry.submit_s, entry.id, "submitted", "") for entry in entries], entries)
    journal.close()


def test_lists_agree_with_a_plain_filter(tmp_path: Path) -> None:
    def spec(place: int) -> JobSpec:
        return JobSpec(
            command=(f"prog{place % 3}",),
            folder="/",
            name=f"fit{place}" if place % 2 else "",
            priority=place % 4,
        )

    stages = [Stage.WAITING, Stage.DONE, Stage.FAILED, Stage.HELD]
    entries = [
        Entry(
            0,
            spec(place),
            "",
            1000.0 + 7 * (place % 11),
            stage=stages[place % 4],
            end_s=5000.0 - place if place % 4 in (1, 2) else None,
        )
        for place in range(100)
    ]
    shared = spec(1)
    entries += [
        Entry(0, shared, "", 900.0, array=500, array_index=index, stage=stages[index % 2])
        for index in range(10)
    ]
    home = tmp_path / "home"
    journal_of(home, entries)
    page = PageProcess(home)
    try:
        page.enter()
        plain = entries[:100]
        assert page.get("/api/jobs?count=200")["total"] == 101
        array = next(row for row in page.get("/api/jobs?count=200&text=fit1")["rows"] if row.get("members"))
        assert (array["id"], array["members"], array["stages"]) == (500, 10, {"waiting": 5, "done": 5})
        assert numbers(page, "/api/jobs?count=200&array=500&sort=id") == [entry.id for entry in entries[100:]]
        assert len(numbers(page, "/api/jobs?count=200&members=true")) == 110
        for stage in stages:
            found = set(numbers(page, f"/api/jobs?count=200&stages={stage}&sort=id&members=true"))
            assert found == {entry.id for entry in entries if entry.stage is stage}
        assert set(numbers(page, "/api/jobs?count=200&text=PROG2")) == {
            entry.id for entry in plain if not entry.spec.name and entry.spec.command[0] == "prog2"
        }
        assert numbers(page, "/api/jobs?count=200&text=fit*9&sort=id") == [
            entry.id for entry in plain if entry.spec.name and entry.spec.name.endswith("9")
        ]
        queue = sorted(
            plain, key=lambda e: (e.stage.final, e.stage is Stage.HELD, -(e.end_s or e.priority), e.id)
        )
        in_order = sorted(queue, key=lambda entry: entry.submit_s, reverse=True)
        window = page.get("/api/jobs?sort=submit_s&down=true&start=30&count=25")
        assert [row["id"] for row in window["rows"]] == [entry.id for entry in in_order][30:55]
        assert page.get("/api/ids?stages=failed")["ids"] == numbers(page, "/api/jobs?count=200&stages=failed")
        job = page.get(f"/api/jobs/{entries[0].id}")
        assert job["command"] == ["prog0"] and job["history"] == [
            {"at_s": 1000.0, "what": "submitted", "detail": ""}
        ]
        assert page.get("/api/jobs/500") == {"array": True}
        assert page.ask("/api/jobs/777")[0] == 404 and page.ask(f"/api/jobs/{10**30}")[0] in (404, 422)
        for query in (
            "sort=evil",
            "count=0",
            "count=1000",
            "start=-1",
            "stages=x",
            "text=" + "x" * 300,
            "else=1",
        ):
            assert page.ask(f"/api/jobs?{query}")[0] == 422, query
        assert page.ask("/api/events", Last_Event_ID="1 or 1=1")[0] == 422
    finally:
        assert page.stop() == 0


def test_a_journal_made_anew_is_read_anew(tmp_path: Path) -> None:
    def job(name: str) -> Entry:
        return Entry(0, JobSpec(command=(name,), folder="/"), "", 1000.0)

    journal_of(tmp_path / "old", [job("one"), job("two"), job("three")])
    journal_of(tmp_path / "new", [job("other")])
    mirror = Mirror(tmp_path / "old")
    assert mirror.refresh() and [row.name for row in mirror.rows.values()] == ["one", "two", "three"]
    assert not mirror.refresh()
    (tmp_path / "new" / "journal.sqlite").replace(tmp_path / "old" / "journal.sqlite")
    assert mirror.refresh() and [row.name for row in mirror.rows.values()] == ["other"]
    assert (mirror.epoch, mirror.number) == (2, 1)
    mirror.close()


def test_a_change_without_an_event_is_seen(tmp_path: Path) -> None:
    entries = [Entry(0, JobSpec(command=("a",), folder="/"), "", 1000.0) for _ in range(3)]
    journal_of(tmp_path, entries)
    mirror = Mirror(tmp_path)
    mirror.refresh()
    version = mirror.version
    journal = Journal(tmp_path)
    entries[1].stage, entries[1].blocked = Stage.HELD, "not allowed yet"
    journal.commit([entries[1]])
    deadline = time.monotonic() + 30
    while mirror.rows[entries[1].id].stage != "held":
        mirror.refresh()
        assert time.monotonic() < deadline
    assert mirror.rows[entries[1].id].trouble == "not allowed yet"
    assert mirror.changed_since(version) == [entries[1].id]
    journal.close()
    mirror.close()


def test_output_comes_from_a_byte_on_and_is_bounded(up: Up, page: PageProcess) -> None:
    page.enter()
    job = up.client.submit(["python3", "-c", "print('x' * 1_000_000); print('end')"])
    job.result(30)

    def read(**query: Any) -> dict[str, Any]:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        return dict(page.get(f"/api/jobs/{job.id}/output?{words}"))

    tail = read(stream="stdout")
    assert len(tail["text"]) == 64 << 10 and tail["text"].endswith("x\nend\n") and tail["end"] == 1_000_005
    assert read(stream="stdout", start=1_000_001) == {
        "start": 1_000_001,
        "end": 1_000_005,
        "skipped": 0,
        "text": "end\n",
    }
    assert read(stream="stdout", start=1_000_005)["text"] == ""
    assert read(stream="stderr")["text"] == ""
    half = up.client.submit(["python3", "-c", "import sys; sys.stdout.buffer.write('é\u20ac'.encode()[:4])"])
    half.result(30)
    found = page.get(f"/api/jobs/{half.id}/output?stream=stdout")
    assert (found["text"], found["end"]) == ("é", 2)  # the rest of the other character may yet come
    fifo = up.home.parent / "fifo"
    os.mkfifo(fifo)
    held = up.client.submit(["true"], stdout=str(fifo), priority=-1, begin_s=time.time() + 600)
    code, found, _ = page.ask(f"/api/jobs/{held.id}/output?stream=stdout")
    assert code == 422 and "not a file that can be read again" in found["detail"]


def test_bad_addresses_are_one_line(up: Up, tmp_path: Path) -> None:
    none = up.run("page", "--no-open", "--home", str(tmp_path / "none"), "--listen", "0")
    assert none.returncode == 2 and none.stderr.count("\n") == 1 and "tenbin up" in none.stderr
    assert up.run("page", "--no-open", "--listen", "x").returncode == 2


def test_the_journal_stays_open_until_nobody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite crashes the process that closes a connection while a thread reads by it."""
    Journal(tmp_path).close()
    reads, is_closed, order = threading.Event(), threading.Event(), []
    close = Mirror.close

    def slow(_mirror: Mirror) -> bool:
        reads.set()
        is_closed.wait(1)
        order.append("read")
        return False

    def end(_url: str, _first: bool) -> None:
        monkeypatch.setattr(Mirror, "refresh", slow)
        threading.Thread(target=lambda: reads.wait(30) and os.kill(os.getpid(), signal.SIGTERM)).start()

    def noted(mirror: Mirror) -> None:
        order.append("closed")
        is_closed.set()
        close(mirror)

    monkeypatch.setattr(Mirror, "close", noted)
    serve(tmp_path, tcp.listen("0"), "here", end)
    assert order[-2:] == ["read", "closed"]
