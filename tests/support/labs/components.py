"""Components that a test needs, and processes that a test must not leave behind."""

from __future__ import annotations

import os

import psutil
import pytest


def require(condition: object, reason: str) -> None:
    """Skip the test where a component is missing; on CI (env ``CI``) a missing component is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"missing on CI: {reason}")
    pytest.skip(reason)


def processes_below() -> list[psutil.Process]:
    """Every process that the tests' own has started and that is left, also one that nobody has waited for.

    Without multiprocessing's tracker, which an earlier test may have started: it stays as long as the tests.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.ZombieProcess:  # a NoSuchProcess too, but still there
            words = []
        except psutil.NoSuchProcess:
            continue
        if not any("resource_tracker" in word for word in words):
            found.append(child)
    return found
