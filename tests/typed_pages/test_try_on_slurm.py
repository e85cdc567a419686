"""docs/try-on-slurm.md, typed in on a Slurm cluster in the small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.labs.slurm_lab import short_slurmlab
from tests.support.typed_pages import type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_try_on_slurm(tmp_path: Path) -> None:
    with short_slurmlab() as lab:
        type_in("try-on-slurm", tmp_path, running=False, has="Slurm", SLURM_CONF=str(lab.conf))
