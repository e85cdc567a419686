"""Fixtures of the probes' tests."""

from __future__ import annotations

import pytest

from probes import opencl
from profiles.errors import Unavailable
from tests.support.labs.components import require


@pytest.fixture(scope="session")
def key() -> str:
    """Return the key of an OpenCL device."""
    try:
        return opencl.devices()[0].key
    except Unavailable as error:
        require(False, str(error))
        raise
