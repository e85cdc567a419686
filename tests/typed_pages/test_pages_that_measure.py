"""Pages that measure, typed in: in one file, as the node is measured once at a time. No figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.labs.components import require
from tests.support.programs import opencl_devices
from tests.support.typed_pages import type_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # on a machine that others use, too


def test_checkpoints(tmp_path: Path) -> None:
    require(opencl_devices(POCL_DEVICES="pthread basic")[1:], "two OpenCL devices (PoCL)")
    type_in("checkpoints", tmp_path)


def test_share_a_node(tmp_path: Path) -> None:
    type_in("share-a-node", tmp_path)
