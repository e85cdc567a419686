"""The standard library's own tests of executors, on ``tenbin.Executor``.

They are taken from the Python that runs, or from Debian's package for it (``libpython3.11-testsuite``).
"""

from __future__ import annotations

import sys
import time
import unittest
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tenbin

PACKAGE = "test.test_concurrent_futures"
CASES = {  # by the module that has them; up to Python 3.11 the package itself
    "executor": "ExecutorTest",
    "test_wait": "WaitTests",
    "test_as_completed": "AsCompletedTests",
    "test_shutdown": "ExecutorShutdownTest",
    "test_deadlock": "ExecutorDeadlockTest",
}
OF_CLASSES_THERE = "a program that names a class of concurrent.futures; test_executor.py has its like"
BY_THE_CLOCK = "fails where a job takes longer than some seconds; test_executor.py has its like"
LEFT_OUT = {
    "test_interpreter_shutdown": OF_CLASSES_THERE,
    "test_submit_after_interpreter_shutdown": OF_CLASSES_THERE,
    "test_hang_gh83386": OF_CLASSES_THERE,
    "test_map_timeout": BY_THE_CLOCK,
    "test_hang_gh94440": BY_THE_CLOCK,
    "test_timeout": BY_THE_CLOCK,
    "test_cancel_futures": "a pool begins with five calls at once; here what waits is cancelled",
    "test_exit_at_task_unpickle": "the exception of the unpickling is the future's; the pool breaks there",
    "test_error_at_task_unpickle": "the exception of the unpickling is the future's; the pool breaks there",
    "test_shutdown_deadlock_pickle": "looks at attributes of ProcessPoolExecutor",
    "test_crash_big_data": "waits for the pool to break, where each job has its own end",
    "test_gh105829_should_not_deadlock_if_wakeup_pipe_full": "changes attributes of ProcessPoolExecutor",
}


OF_DEBIAN = Path(__file__).parents[2] / "support" / "of_debian"
if any(Path("/usr/lib", "python{}.{}".format(*sys.version_info), "test").glob("test_concurrent_futures*")):
    sys.path.insert(0, str(OF_DEBIAN))  # jobs have this path too


def module(name: str) -> ModuleType | None:
    try:
        package = import_module(PACKAGE)
        return import_module(f"{PACKAGE}.{name}") if hasattr(package, "__path__") else package
    except ModuleNotFoundError:
        return None


class FileEvent:
    """An event between processes: a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self) -> None:
        self.path.touch()

    def wait(self) -> bool:
        while not self.path.exists():
            time.sleep(0.01)
        return True


class OnTenbin:
    """Set-up that the cases of the standard library ask for, in place of that for its own executors."""

    worker_count = 5
    home: Path
    names = count()

    def executor_type(self, max_workers: int, mp_context: None = None) -> tenbin.Executor:
        return tenbin.Executor(max_workers, home=self.home)

    def get_context(self) -> None:
        return None

    def create_event(self) -> FileEvent:
        return FileEvent(self.home.parent / f"event-{next(self.names)}")

    def setUp(self) -> None:
        self.executor = self.executor_type(self.worker_count)

    def tearDown(self) -> None:
        self.executor.shutdown()
        assert not any((self.home / "functions").iterdir())


def cases() -> Iterator[Any]:
    for place, name in CASES.items():
        found = module(place)
        case = getattr(found, name, object)
        for test in sorted(vars(case)):
            if test.startswith("test_"):
                marks = [pytest.mark.skip(LEFT_OUT[test])] if test in LEFT_OUT else []
                yield pytest.param(case, test, marks=marks, id=test)


@pytest.mark.slow
@pytest.mark.skipif(module("executor") is None, reason=f"this Python has no {PACKAGE}")
@pytest.mark.parametrize(("case", "test"), list(cases()))
def test_as_in_the_standard_library(case: type, test: str, home: Path) -> None:
    kind = type(case.__name__, (case, OnTenbin, unittest.TestCase), {"home": home})
    suite, result = kind(test), unittest.TestResult()
    suite.run(result)
    assert not result.errors and not result.failures, "".join(
        text for _, text in (*result.errors, *result.failures)
    )
    if result.skipped:
        pytest.skip(result.skipped[0][1])
