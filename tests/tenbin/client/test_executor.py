"""Functions as jobs: what ``ProcessPoolExecutor`` promises, cancellation, and the ends of both sides."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenbin
from tests.support.coordinator import Up
from tests.support.paths import ROOT


@pytest.fixture
def executor(home: Path) -> Iterator[tenbin.Executor]:
    with tenbin.Executor(home=home) as found:
        yield found
    assert not any((home / "functions").iterdir())


class Point:
    def __init__(self, x: float) -> None:
        self.x = x

    def __call__(self, y: float) -> Point:
        return Point(self.x + y)


class TwoArguments(Exception):
    """An exception that cannot be unpickled: pickle calls the class with one argument."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def waits_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.02)
    return file.name


def signs(file: Path) -> None:
    """Leave a sign, and work on for a long time."""
    file.touch()
    time.sleep(600)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_functions_of_any_kind(executor: tenbin.Executor) -> None:
    def outer(n: int) -> Callable[[int], int]:
        return lambda m: n * m

    assert executor.submit(pow, 2, 8).result() == 256
    assert executor.submit(outer(6), 7).result() == 42
    assert executor.submit(Point(1.5), 2.0).result().x == 3.5
    assert executor.submit(outer, 3).result()(5) == 15  # a result that only cloudpickle can pickle
    assert executor.submit(dict, a=1, self=2, fn=3).result() == {"a": 1, "self": 2, "fn": 3}
    assert executor.submit(os.getpid).result() != os.getpid()
    assert executor.submit(os.getcwd).result() == str(Path.cwd())


def test_a_class_that_is_defined_here_comes_back_as_the_same(executor: tenbin.Executor) -> None:
    class Local:
        pass

    assert type(executor.submit(Local).result()) is Local


def test_a_large_array_goes_both_ways(executor: tenbin.Executor) -> None:
    array = np.arange(12_500_000.0)  # 100 MB

    def twice(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        import resource

        given *= 2  # it can be written
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        assert peak_mb < 190, peak_mb  # one copy, and Python with numpy
        return given

    found = executor.submit(twice, array).result()
    assert np.array_equal(found, 2 * array) and found.flags.writeable


def test_an_exception_comes_with_its_traceback(executor: tenbin.Executor) -> None:
    def divides() -> float:
        return 1 / 0  # a comment to be found

    future = executor.submit(divides)
    with pytest.raises(ZeroDivisionError) as found:
        future.result()
    assert "1 / 0  # a comment to be found" in str(found.value.__cause__)
    assert future.job is not None and future.job.result() == 1
    assert "ZeroDivisionError: division by zero" in future.job.stderr()


def test_exits_and_interrupts_of_the_function_are_exceptions(executor: tenbin.Executor) -> None:
    for kind in (SystemExit, KeyboardInterrupt):

        def leaves(kind: type[BaseException] = kind) -> None:
            raise kind(4)

        error = executor.submit(leaves).exception()
        assert type(error) is kind and error.args == (4,)


def test_what_cannot_be_pickled(executor: tenbin.Executor) -> None:
    def raises_odd() -> None:
        raise TwoArguments(1, 2)

    class Held(Exception):
        pass

    def raises_lock() -> None:
        raise Held(threading.Lock())

    argument = executor.submit(id, threading.Lock())
    assert isinstance(argument.exception(), TypeError) and argument.job is None
    assert isinstance(next(iter_errors(executor.map(id, [threading.Lock()]))), TypeError)
    result = executor.submit(threading.Lock).exception()
    assert isinstance(result, TypeError) and "cannot pickle" in str(result)
    odd = executor.submit(raises_odd).exception()
    assert isinstance(odd, tenbin.NoResult) and "missing 1 required positional argument" in str(odd)
    assert odd.__cause__ is not None and "TwoArguments: 1 and 2" in str(odd.__cause__.__cause__)
    held = executor.submit(raises_lock).exception()
    assert isinstance(held, TypeError) and "in raises_lock" in str(held.__cause__)
    assert executor.submit(pow, 2, 3).result() == 8


def iter_errors(results: Iterator[Any]) -> Iterator[BaseException]:
    try:
        next(results)
    except Exception as error:
        yield error


def test_a_death_breaks_only_its_own_future(executor: tenbin.Executor) -> None:
    exits = executor.submit(os._exit, 3)
    silent = executor.submit(os._exit, 0)
    killed = executor.submit(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    after = executor.submit(pow, 2, 3)
    assert after.result() == 8
    for future, words in ((exits, "exit code 3"), (silent, "exit code 0"), (killed, "killed by SIGSEGV")):
        with pytest.raises(BrokenProcessPool, match=f"has left no result: {words}"):
            future.result()
        assert isinstance(future.exception(), tenbin.NoResult)


def test_a_limit_ends_the_function(home: Path) -> None:
    with (
        tenbin.Executor(home=home, time_s=0.5) as executor,
        pytest.raises(tenbin.NoResult, match="time limit"),
    ):
        executor.submit(time.sleep, 600).result()


def test_needs_and_output_are_those_of_the_job(home: Path, tmp_path: Path) -> None:
    with tenbin.Executor(home=home, cores=2, env={"GREETING": "hello"}, folder=str(tmp_path)) as executor:
        future = executor.submit(lambda: print(os.environ["GREETING"], Path.cwd()))
        future.result()
        assert future.job is not None
        assert future.job.stdout() == f"hello {tmp_path}\n" and future.job.wait(30)["spec"]["cores"] == 2
        with pytest.raises(tenbin.TenbinError, match="cores"):
            tenbin.Executor(home=home, cores=999).submit(pow, 1, 1)


def test_map(executor: tenbin.Executor, tmp_path: Path) -> None:
    numbers = range(8)
    assert list(executor.map(pow, numbers, numbers)) == list(map(pow, numbers, numbers))
    assert list(executor.map(pow, numbers, numbers, chunksize=3)) == list(map(pow, numbers, numbers))
    assert list(executor.map(pow, [], [])) == []
    results = executor.map(divmod, [1, 1, 1], [2, 0, 1])
    assert next(results) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(pow, [1], [1], chunksize=0)
    slow = executor.map(waits_for, [tmp_path / "go"] * 3, timeout=0.2)
    with pytest.raises(TimeoutError):
        next(slow)
    (tmp_path / "go").touch()


def test_the_jobs_of_a_map_are_submitted_together(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = tenbin.Client.submit_all

    def noted(client: tenbin.Client, specs: list[Any], arrays: dict[int, list[int]]) -> list[tenbin.Job]:
        calls.append(len(specs))
        return whole(client, specs, arrays=arrays)

    monkeypatch.setattr(tenbin.Client, "submit_all", noted)
    with tenbin.Executor(home=home) as executor:
        assert sum(executor.map(pow, [1] * 8, [1] * 8)) == 8
    assert calls == [1]  # an array
    with tenbin.Executor(3, home=home) as executor:
        assert list(executor.map(divmod, range(5), [3] * 5)) == [divmod(n, 3) for n in range(5)]


def test_a_waiting_call_can_be_cancelled(home: Path, tmp_path: Path) -> None:
    with tenbin.Executor(home=home, cores=2) as executor:
        running = executor.submit(waits_for, tmp_path / "go")
        waiting = executor.submit((tmp_path / "never").touch)
        until(running.running)
        assert not running.cancel() and not waiting.running()
        assert waiting.cancel() and waiting.cancel() and waiting.cancelled()
        with pytest.raises(futures.CancelledError):
            waiting.result()
        assert waiting.job is not None and waiting.job.wait(60)["stage"] == "cancelled"
        assert futures.wait([waiting], 60).done == {waiting}  # the thread has taken note
        (tmp_path / "go").touch()
        assert running.result() == "go" and not running.running() and not running.cancel()
    assert not (tmp_path / "never").exists()


def test_a_job_that_another_cancels_is_a_cancelled_future(executor: tenbin.Executor, tmp_path: Path) -> None:
    future = executor.submit(signs, tmp_path / "begun")
    until((tmp_path / "begun").exists)
    assert future.job is not None and future.job.cancel()
    with pytest.raises(futures.CancelledError):
        future.result(60)


def test_max_workers_are_submitted_at_once(home: Path, tmp_path: Path) -> None:
    with tenbin.Executor(2, home=home) as executor:
        first = [executor.submit(waits_for, tmp_path / "go") for _ in range(2)]
        held = [executor.submit(waits_for, tmp_path / "go") for _ in range(3)]
        assert all(future.job is not None for future in first) and all(future.job is None for future in held)
        assert held[1].cancel()
        (tmp_path / "go").touch()
        assert [future.result() for future in (*first, held[0], held[2])] == ["go"] * 4
    for number in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            tenbin.Executor(number, home=home)


def test_shutdown(home: Path, tmp_path: Path) -> None:
    executor = tenbin.Executor(1, home=home)
    running = executor.submit(waits_for, tmp_path / "go")
    until(running.running)
    held = [executor.submit(pow, 1, 1) for _ in range(3)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in held) and futures.wait(held, 60).done == set(held)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 1, 1)
    (tmp_path / "go").touch()
    assert running.result() == "go"
    executor.shutdown()
    executor.shutdown()
    for call in (executor.submit, executor.map):
        with pytest.raises(RuntimeError, match="after shutdown"):
            call(pow, [1], [1])
    assert not any((home / "functions").iterdir())


def test_an_executor_that_is_dropped_finishes_its_calls(home: Path) -> None:
    results = tenbin.Executor(home=home).map(pow, range(5), range(5))
    assert list(results) == [1, 1, 4, 27, 256]
    until(lambda: not any((home / "functions").iterdir()))


def test_asyncio_and_callbacks(executor: tenbin.Executor) -> None:
    async def calls() -> list[int]:
        loop = asyncio.get_running_loop()
        several = (loop.run_in_executor(executor, pow, 2, n) for n in range(3))
        return await asyncio.gather(*several, asyncio.wrap_future(executor.submit(pow, 2, 3)))

    assert asyncio.run(calls()) == [1, 2, 4, 8]
    arrived = threading.Event()
    future = executor.submit(pow, 2, 2)
    future.add_done_callback(lambda _: executor.submit(pow, 3, 3).add_done_callback(lambda _: arrived.set()))
    assert arrived.wait(60)
    assert {one.result() for one in futures.as_completed([future], 60)} == {4}


def test_calls_go_on_over_a_restart_of_the_coordinator(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    with tenbin.Executor(1, home=up.home) as executor:
        first, second = (executor.submit(waits_for, tmp_path / "go") for _ in range(2))
        until(first.running)
        up.kill()
        (tmp_path / "go").touch()
        up.start("--cores", "2")
        assert [first.result(), second.result()] == ["go", "go"]


def test_without_a_coordinator(tmp_path: Path) -> None:
    with pytest.raises(tenbin.TenbinError, match="no coordinator answers") as found:
        tenbin.Executor(home=tmp_path / "home")
    assert found.value.exit_code == 4 and not any(tmp_path.iterdir())


def test_over_tcp_a_folder_is_named(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1", "--listen", "0")
    url = up.client.call("GET", "/status")["url"]
    client = tenbin.Client(url=url, token=(up.home / "token").read_text())
    with pytest.raises(tenbin.TenbinError, match="shared_folder"):
        tenbin.Executor(client=client)
    with tenbin.Executor(client=client, shared_folder=tmp_path) as executor:
        assert executor.submit(pow, 2, 3).result() == 8


CALLER = """
import sys, time, tenbin
from pathlib import Path
def signs(path, then_s):
    Path(path).touch()
    time.sleep(then_s)
here = Path(sys.argv[1])
"""


def caller(home: Path, folder: Path, program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TENBIN_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CALLER + program, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


def test_an_interrupt_ends_the_jobs(home: Path, tmp_path: Path) -> None:
    program = """
with tenbin.Executor(cores=2) as executor:
    running, waiting = (executor.submit(signs, here / name, 600) for name in ("one", "two"))
    print(running.job.id, waiting.job.id, flush=True)
    Path(here / "submitted").touch()
    try:
        running.result()
    finally:
        Path(here / "left").touch()
"""
    process = caller(home, tmp_path, program)
    until((tmp_path / "submitted").exists)
    until((tmp_path / "one").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    client = tenbin.Client(home)
    assert [client.job(int(number)).wait(30)["stage"] for number in out.split()] == ["cancelled"] * 2
    assert (tmp_path / "left").exists() and not (tmp_path / "two").exists()


def test_a_program_ends_when_its_calls_have_ended(home: Path, tmp_path: Path) -> None:
    program = """
import atexit
executor = tenbin.Executor()
def late():
    try:
        executor.submit(pow, 1, 1)
    except RuntimeError as error:
        print(error)
atexit.register(late)
executor.submit(signs, here / "one", 0.5).add_done_callback(lambda future: print(future.result()))
"""
    out, err = caller(home, tmp_path, program).communicate(timeout=60)
    assert out == "None\ncannot schedule new futures after interpreter shutdown\n" and not err
    assert not any((home / "functions").iterdir())


def test_the_jobs_of_a_killed_caller_end(home: Path, tmp_path: Path) -> None:
    program = """
executor = tenbin.Executor(cores=2)
jobs = [executor.submit(signs, here / name, 1.0).job.id for name in ("one", "two")]
print(*jobs, flush=True)
time.sleep(600)
"""
    process = caller(home, tmp_path, program)
    assert process.stdout is not None
    ids = [int(number) for number in process.stdout.readline().split()]
    until((tmp_path / "one").exists)
    process.kill()
    process.wait()
    client = tenbin.Client(home)
    assert [client.job(number).result(60) for number in ids] == [0, 1]
    assert "its program has" in client.job(ids[1]).stderr()
    assert not (tmp_path / "two").exists()  # whose result nobody would have read
    with tenbin.Executor(home=home):
        assert len(list((home / "functions").iterdir())) == 1  # that of this one
