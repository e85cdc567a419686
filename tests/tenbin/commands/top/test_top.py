"""``tenbin top`` as it is used: keys by Textual's pilot, against a real coordinator."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tenbin.commands.top import app
from tests.support.coordinator import Up
from tests.support.top_session import Session, play

SLEEP = {"command": ["sleep", "600"], "folder": "/"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask more often, so that a test need not wait."""
    monkeypatch.setattr(app, "EVERY_S", 0.1)
    monkeypatch.setattr(app, "SILENT_S", 0.5)


@pytest.fixture
def busy(up: Up) -> Up:
    """Start a coordinator with a job that runs (1), 30 that wait (2 to 31), and an array of 5 (32)."""
    up.start("--cores", "1")
    script = "echo first; echo '[red]said\x1b[31m' >&2; sleep 600"
    up.client.submit(["sh", "-c", script], name="[red]x\x1b[2J\u202e")
    up.client.submit_all([{**SLEEP, "name": f"n{n}"} for n in range(30)])
    up.client.submit_all([{**SLEEP, "name": "fit"}], arrays={0: range(5)})
    up.until(lambda: up.client.job(1).info()["stage"] == "running")
    return up


def test_looking(busy: Up, quick: None) -> None:
    """Moves; an array opens; a job's account, output and errors; nodes; keys."""

    async def script(top: Session) -> None:
        await top.shows(
            r"policy weigh; 35 waiting, 1 running",
            r"in use: 1 of 1 cores?, \S+ of \S+ GB memory",
            "32 listed, by queue",
        )
        await top.shows(r"^> +1 \[red\]x\\x1b\[2J\\u202e +running       1")
        for keys, cursor in (
            ("j", 2),
            ("down", 3),
            ("k", 2),
            ("end", 32),
            ("pageup", 14),
            ("pagedown", 32),
            ("g", 1),
        ):
            await top.press(keys)
            await top.shows(rf"^> +{cursor} ")
        await top.press("G", "enter")
        await top.shows("5 listed, by queue; jobs of array 32", r"^> +32\[0\] fit", r"32\[4\] fit")
        await top.press("down", "e")
        await top.shows(r"all about job 32\[1\]", r"waits for 1 core \(0 of \d free\)", "submitted")
        await top.press("escape", "escape", "e")
        await top.shows("all about job 32", "array 32: 5 jobs: waiting 5")
        await top.press("escape", "home", "e")
        await top.shows("all about job 1", "job 1: running", "uses now: .* of 1 core;", "started: attempt 1")
        await top.press("t")
        await top.shows("^end of stdout of job 1", "^first$")
        await top.press("T")
        await top.shows("^end of stderr of job 1", r"^\[red\]said\\x1b\[31m$")
        await top.press("?")
        await top.shows("tenbin top: keys")
        await top.press("escape", "escape", "n")
        await top.shows("^nodes$", "^core: 0 of 1 free")
        await top.press("escape", "?")
        await top.shows("tenbin top: keys", "filter: fit name=")
        await top.press("G")
        await top.shows("cancel the marked jobs", "end tenbin top")
        await top.press("escape", "X")
        await top.shows("the key X has no meaning here")
        await top.press("q")
        await top.until(lambda: not top.app.is_running)

    play(busy, script)


def test_following_an_output(up: Up, quick: None) -> None:
    """The end is shown as it grows, until one scrolls up; a screen is not moved below one's eyes then."""
    up.start("--cores", "1")
    job = up.client.submit(["sh", "-c", "i=0; while sleep 0.05; do i=$((i+1)); echo line $i; done"])

    async def script(top: Session) -> None:
        await top.shows("^> +1 sh")
        await top.press("t")
        await top.shows(r"^line ([3-9]\d|\d{3,})$", r"\(lines \d+ to")
        await top.until(lambda: "line 1" not in top.screen)
        await top.press("up")
        first = top.screen[1]
        asked = len(top.asked)
        await top.until(lambda: len(top.asked) > asked + 1)
        assert top.screen[1] == first
        await top.press("end")
        await top.until(lambda: first not in top.screen)
        job.cancel()

    play(up, script)


def test_choosing(busy: Up, quick: None) -> None:
    """Filters, orders, and jobs that have ended."""
    busy.client.job(2).cancel()
    busy.client.job(2).wait(30)

    async def script(top: Session) -> None:
        await top.shows("31 listed")
        await top.press("slash", *"n1", "enter")
        await top.shows("11 listed, by queue; filter: n1")
        assert top.rows[0] == "3 n1" and len(top.rows) == 11
        await top.press("slash", *" odd", "equals_sign", "1", "enter")
        await top.shows("filter 'odd' is not known; one of name, stage, place, user, since")
        await top.press("escape")
        await top.shows("11 listed, by queue; filter: n1", "keys")
        await top.press("slash", *["backspace"] * 2, *"state", "equals_sign", *"cancelled", "enter")
        await top.shows("1 listed, by queue; filter: state=cancelled")
        assert top.rows == ["2 n0"]
        await top.press("slash", *["backspace"] * 15, "enter")
        await top.shows("31 listed, by queue$")
        await top.press("s", "s")
        await top.shows("31 listed, by name$")
        await top.until(lambda: top.rows[:3] == ["1 [red]x\\x1b[2J\\u202e", "32 fit", "3 n1"])
        await top.press("S")
        await top.shows("31 listed, by name, reversed")
        await top.until(lambda: top.rows[0] == "11 n9")
        await top.press("a")
        await top.shows("32 listed, by name, reversed; also ended ones")
        await top.press("s", "s", "s", "s", "s", "s")
        await top.shows("32 listed, by queue; also ended ones")
        await top.press("end")
        await top.shows("^> +2 n0 +cancelled")

    play(busy, script)


def test_changing(busy: Up, quick: None) -> None:
    """Marks, and each change, with a question before; what does not apply is said."""

    def stage(job_id: int) -> str:
        return str(busy.client.job(job_id).info()["stage"])

    async def script(top: Session) -> None:
        await top.shows("32 listed")
        await top.press("space", "space", "r", "y")
        await top.shows("left out 1: is running, not suspended by you; left out 2: is waiting, not suspended")
        await top.press("g", "down", "space", "space", "c")
        await top.shows(r"2 marked", r"^ \* +2 n0", r"cancel 2 jobs: 2-3\? y: yes; any other key: no")
        await top.press("n")
        await top.shows("nothing was changed")
        assert stage(2) == "waiting"
        await top.press("c", "y")
        await top.shows("30 listed, by queue$", "cancel 2-3: accepted")
        assert stage(2) == stage(3) == "cancelled" and "POST /cancel" in top.asked
        await top.press("home", "p")
        await top.shows(r"suspend job 1\?")
        await top.press("y")
        await top.shows("suspend 1: accepted", r"1 \[red\].* suspended", "4 n2 +running")
        await top.press("r", "y")
        await top.shows("resume 1: accepted")
        await top.press("m", *"core", "enter")
        await top.shows(r"migrate job 1 to core\?")
        await top.press("y")
        await top.shows("job 1 .*(not running|cannot|no other)")
        await top.press("end", "P", *"high", "enter")
        await top.shows("priority 'high' is not a whole number")
        await top.press(*["backspace"] * 4, "minus", "4", "enter")
        await top.shows(r"priority 5 jobs: 32 to -4\?")
        await top.press("y")
        await top.shows("priority 32 to -4: accepted")
        assert busy.client.job(33).info()["priority"] == -4
        await top.press("*")
        await top.shows("30 marked")
        await top.press("c")
        await top.shows(r"cancel 34 jobs: 1, 4-32\?")
        await top.press("y")
        await top.shows("0 listed", "no jobs; .* tenbin submit", "a: also jobs that have ended")
        await top.press("a", "G", "R")
        await top.shows(r"retry job 2\?")  # what ended first is last
        await top.press("y")
        await top.shows("retry 2: accepted")
        await top.press("space", "u")
        await top.shows("also ended ones$")

    play(busy, script)


def test_a_lost_coordinator(busy: Up, quick: None) -> None:
    """The loss is said, also of one that only does not answer; the list stays, and all goes on by itself."""

    async def script(top: Session) -> None:
        await top.shows("32 listed")
        assert busy.process is not None
        busy.process.send_signal(signal.SIGSTOP)
        await top.shows(r"LOST since \d\d:\d\d:\d\d: the coordinator at .*")
        await top.press("down")
        await top.shows(r"^> +2 n0")
        busy.process.send_signal(signal.SIGCONT)
        await top.shows("the coordinator answers again")
        busy.kill()
        await top.shows("LOST since .*no coordinator answers at", "^> +2 n0", "start")
        await top.press("c", "y")
        await top.until(lambda: "POST /cancel" in top.asked)
        await asyncio.to_thread(busy.start, "--cores", "1")
        busy.client.submit(["true"], name="later")
        await top.shows(
            "the coordinator answers again; what was asked last may not have been done", "33 listed"
        )

    play(busy, script)


def test_only_the_window_is_asked_for(busy: Up) -> None:
    """One question a second, of three screens at most, for the view in front alone."""
    busy.client.submit_all([SLEEP] * 500)

    async def script(top: Session) -> None:
        await top.shows("532 listed")
        top.asked.clear()
        await top.pilot.pause(2.0)
        assert len(top.asked) <= 3
        await top.until(lambda: len(top.asked) > 1)
        await top.press("end", "pageup", "pageup", "pageup")
        await top.shows(r"^> +4\d\d ")
        await top.press("n")
        await top.shows("^nodes$")
        windows = [path for path in top.asked if path.startswith("GET /queue")]
        assert all("rows=57&" in path for path in windows)
        top.asked.clear()
        await top.pilot.pause(1.2)
        assert set(top.asked) <= {"GET /nodes"}

    play(busy, script)


def test_without_a_terminal(up: Up) -> None:
    """A plain error, with the remedy; without a coordinator too."""
    up.home.mkdir()
    said = up.run("top")
    assert said.returncode == 2 and said.stdout == ""
    assert said.stderr == "tenbin: tenbin top needs a terminal; for files, pipes and programs: tenbin jobs\n"
