"""docs/checkpoints.md, typed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.labs.components import require
from tests.support.programs import opencl_devices
from tests.support.typed_pages import type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkpoints(tmp_path: Path) -> None:
    require(opencl_devices(POCL_DEVICES="pthread basic")[1:], "two OpenCL devices (PoCL)")
    type_in("checkpoints", tmp_path)
