"""Fitness of nodes by their last checks."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.checks.check import Cause, CheckStore, Fitness, Verdict
from tests.support.checks import figures_of, make_check


def test_the_last_check_that_could_tell_decides(tmp_path: Path) -> None:
    store, fitness = CheckStore(tmp_path), Fitness(tmp_path)
    assert fitness.why_unfit("node") is None
    figures, cause = (
        figures_of({"compute_gflops": 1.0}),
        Cause(name="heat", sentence="the clock is lower: heat"),
    )
    for number, (verdict, why) in enumerate(
        [
            (Verdict.UNKNOWN, None),
            (Verdict.PASS, ""),
            (Verdict.CHANGED, "tenbin check: slow; the clock is lower: heat"),
            (Verdict.DISTURBED, "tenbin check: slow; the clock is lower: heat"),
            (Verdict.PASS, ""),
        ]
    ):
        causes = (cause,) if verdict is Verdict.CHANGED else ()
        store.append(make_check(number, figures, verdict=verdict, reason="slow", causes=causes))
        os.utime(store.path("node"), (number, number))  # within one step of the file system's clock
        assert fitness.why_unfit("node") == why


def test_checks_in_a_folder_that_a_group_shares_are_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    before = os.umask(0o002)
    try:
        path = CheckStore(tmp_path).append(make_check(0, figures_of({"compute_gflops": 1.0})))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o664
