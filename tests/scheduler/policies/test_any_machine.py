"""Every policy on machines of any kind: it refuses one before anything begins, or all jobs end there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import objection
from tests.support.amounts import SMALLER, examples
from tests.support.scheduling.schedule_audit import audit
from tests.support.scheduling.worlds import World, anywhere, run


@pytest.mark.parametrize("name", POLICIES)
def test_it_refuses_the_machine_or_all_jobs_end(name: str) -> None:
    @settings(max_examples=examples(120))
    @given(anywhere())
    def check(world: World) -> None:
        text = SMALLER.get(name, name)
        against = objection(create(text), world.cluster, world.settings)
        if against is not None:
            assert against.what and against.remedy and "\n" not in str(against)
            return
        outcomes, summary = run(create(text), world)
        audit(world, outcomes, sum(summary.refused.values()))
        assert all(outcome.wait_s >= 0 for outcome in outcomes)
        assert run(create(text), world)[0] == outcomes
        metrics = Accumulator(world.cluster)
        for outcome in outcomes:
            metrics.add(outcome)
        of_all = metrics.metrics()
        waits = [outcome.wait_s for outcome in outcomes]
        assert of_all.jobs == len(outcomes) and of_all.utilisation_ratio <= 1 + 1e-9
        if outcomes:
            assert of_all.mean_wait_s == pytest.approx(sum(waits) / len(waits), abs=1e-5)
            assert of_all.max_wait_s == pytest.approx(max(waits), abs=1e-5)

    check()
