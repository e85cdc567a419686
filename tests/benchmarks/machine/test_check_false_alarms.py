"""Real checks of this machine, unchanged meanwhile: how many of them say that it has changed.

``TENBIN_BENCHMARK_FULL=1``: 200 quick checks after a reference of 20, in half an hour; else 12 after 8. Run
it on a quiet machine. Checks that others disturbed are counted apart.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import binom

from agent.node_check import make_check
from profiles.checks.check import Check, CheckStore, Verdict
from profiles.checks.figures import FALSE_ALARM_RATIO
from profiles.checks.verdict import Reference, give_verdict, together
from profiles.records import Settings
from tests.benchmarks import SMALL, amount

pytestmark = [pytest.mark.benchmark, *([pytest.mark.usefixtures("own_lock")] if SMALL else [])]

LEARN, CHECKS = amount((20, 200), (8, 12), (0, 1))


@pytest.mark.timeout(7200)
def test_false_alarms_of_real_checks(tmp_path: Path) -> None:
    settings, store = Settings(quick=True, storage=(Path.home(),)), CheckStore(tmp_path)
    past: list[Check] = []
    for number in range(LEARN + CHECKS):
        made = make_check(settings.model_copy(update={"seed": number + 1}), None)
        done = give_verdict(made, Reference("earlier checks", checks=past))
        if done.verdict is Verdict.CHANGED:
            again = make_check(settings.model_copy(update={"seed": number + 1001}), None)
            done = give_verdict(together(made, again), Reference("earlier checks", checks=past))
        past.append(done)
        store.append(done)
        if done.verdict is Verdict.CHANGED:
            worse = {c.quantity: f"{c.loss_ratio:.1%}" for c in done.changes if c.state == "worse"}
            print(f"\ncheck {number}: {worse} {[cause.name for cause in done.causes]}")
    counts = Counter(check.verdict.value for check in past[LEARN:])
    judged = counts["pass"] + counts["changed"]
    tells = {
        " ".join((c.quantity, *c.labels.values())): f"{c.tells_ratio or 0:.0%}" for c in past[-1].changes
    }
    print(f"\n{dict(counts)}; false alarms {counts['changed']} of {judged}; the last one tells {tells}")
    assert counts["changed"] <= binom.ppf(0.999, max(judged, 1), FALSE_ALARM_RATIO)
