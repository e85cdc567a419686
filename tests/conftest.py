"""What every test may need."""

from __future__ import annotations

import os

import pytest


def require(condition: object, reason: str) -> None:
    """Skip the test where a component is missing; on CI (env ``CI``) a missing component is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"missing on CI: {reason}")
    pytest.skip(reason)
