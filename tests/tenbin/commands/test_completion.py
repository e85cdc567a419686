"""Completions of the shell that look into registries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenbin.commands.job import complete_kernel
from tenbin.commands.jobs.calibration import complete_kind
from tenbin.commands.options import complete_machine, complete_offered_policy, complete_policy
from tenbin.commands.reproduce import complete_evaluation


@pytest.mark.parametrize(
    ("complete", "begin", "name"),
    [
        (complete_evaluation, "mig", "migration"),
        (complete_kernel, "e", "ep"),
        (complete_kind, "migr", "migration"),
        (complete_machine, "intel", "intel-2s"),
        (complete_policy, "mctbm-", "mctbm-priced"),
        (complete_offered_policy, "eas", "easy"),
    ],
)
def test_names_of_a_registry(complete: Callable[[str], list[str]], begin: str, name: str) -> None:
    assert name in complete(begin) and not complete("no such name")
