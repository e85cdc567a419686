"""docs/share-a-node.md, typed in: it measures for half a minute, whatever else runs: no figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.typed_pages import type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_share_a_node(tmp_path: Path) -> None:
    type_in("share-a-node", tmp_path)
