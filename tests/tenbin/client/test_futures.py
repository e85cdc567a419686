"""The client in the shape of ``concurrent.futures``."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from pathlib import Path

import pytest

import tenbin
from tests.support.coordinator import Up


def gate(up: Up, name: str, then: str = "") -> tenbin.Job:
    """Return a job that ends when a file of that name is there."""
    return up.client.submit(
        ["sh", "-c", f"while ! [ -e {name} ]; do sleep 0.02; done; {then}"], folder=str(up.home)
    )


def test_a_job_is_a_future(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENBIN_HOME", str(up.home))
    up.start("--cores", "1")
    job = gate(up, "go", "exit 3")
    up.until(job.running)
    assert not job.done() and not job.cancelled()
    with pytest.raises(TimeoutError):
        job.result(0.05)
    waiting = tenbin.submit(["true"])
    assert not waiting.running() and waiting != job and tenbin.job(waiting.id) == waiting
    (up.home / "go").touch()
    assert job.result(timeout=30) == 3 and job.exception() is None and job.done()
    assert waiting.result(30) == 0
    assert job.cancel() is False
    long = tenbin.submit(["sleep", "60"])
    assert long.cancel() is True
    for ask in (long.result, long.exception):
        with pytest.raises(CancelledError):
            ask(30)
    with pytest.raises(tenbin.TenbinError, match="was cancelled"):
        long.result(30)
    assert long.cancelled() and long.done()
    missing = tenbin.submit(["no-such-program"])
    assert "could not be started" in str(missing.exception(30))
    with pytest.raises(tenbin.TenbinError, match="could not be started"):
        missing.result()
    assert {job, tenbin.job(job.id)} == {job}


def test_wait_and_as_completed(up: Up) -> None:
    up.start("--cores", "2")
    slow, quick = gate(up, "slow"), gate(up, "quick", "exit 5")
    nothing = tenbin.wait([slow, quick], timeout=0.1, return_when=FIRST_COMPLETED)
    assert nothing.done == set() and nothing.not_done == {slow, quick}
    (up.home / "quick").touch()
    assert tenbin.wait([slow, quick], 30, FIRST_COMPLETED) == ({quick}, {slow})
    assert tenbin.wait([slow, quick], 30, FIRST_EXCEPTION) == ({quick}, {slow})
    with pytest.raises(TimeoutError, match="1 jobs have not ended"):
        list(tenbin.as_completed([slow, quick], 0.2))
    (up.home / "slow").touch()
    assert tenbin.wait([slow, quick]) == ({slow, quick}, set())
    many = up.client.submit_all([{"command": ["true"], "folder": "/"}] * 20)
    assert {job.id for job in tenbin.as_completed(many, 170)} == {job.id for job in many}
    assert list(tenbin.as_completed([])) == [] and tenbin.wait([]) == (set(), set())
    with pytest.raises(ValueError, match="SOMETIMES"):
        tenbin.wait([slow], return_when="SOMETIMES")
    with pytest.raises(tenbin.TenbinError, match="no job 99"):
        tenbin.wait([up.client.job(99)])


def test_callbacks_come_once_also_over_a_restart(up: Up) -> None:
    up.start("--cores", "2")
    one, two = gate(up, "one"), gate(up, "two")
    seen: list[tuple[int, str]] = []
    arrived = threading.Semaphore(0)

    def note(job: tenbin.Job) -> None:
        seen.append((job.id, job.info()["stage"]))
        arrived.release()
        raise RuntimeError("a callback that fails harms nobody")

    for job in (one, two, two):
        job.add_done_callback(note)
    (up.home / "one").touch()
    assert arrived.acquire(timeout=30)
    up.kill()
    (up.home / "two").touch()
    up.start("--cores", "2")
    assert arrived.acquire(timeout=30) and arrived.acquire(timeout=30)
    one.add_done_callback(note)  # at once, in this thread
    assert seen == [(one.id, "done"), (two.id, "done"), (two.id, "done"), (one.id, "done")]
    until = time.monotonic() + 10
    while any(thread.name == "tenbin-callbacks" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_client_imports_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import tenbin; tenbin.Client, tenbin.wait, tenbin.submit\n"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before} - {'tenbin'}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
