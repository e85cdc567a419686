"""The meter's sampler: CPU time of this process while it does nothing but sample."""

from __future__ import annotations

import statistics
import time

import pytest

from agent.emulation.machines import emulated_node
from probes.meters import INTERVAL_S, powercap_meter
from tests.benchmarks import SMALL, amount

REPETITIONS, SECONDS = amount((9, 1.0), (9, 1.0), (2, 0.2))


def cpu_share(seconds: float) -> float:
    """CPU time of all threads of this process over ``seconds`` of sleep."""
    wall, cpu = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - wall)


@pytest.mark.benchmark
def test_the_sampler_costs_little() -> None:
    """Interleaved with the same process without a sampler; two packages with DRAM, the default interval."""
    costs = []
    with emulated_node("intel-2s") as sysfs:
        for _ in range(REPETITIONS):
            without = cpu_share(SECONDS)
            with powercap_meter(sysfs) as meter:
                zones = len(meter.parts)
                costs.append(cpu_share(SECONDS) - without)
    median = statistics.median(costs)
    print(
        f"\nBENCH sampler {100 * median:.3f} % of a core (limit 0.5; {zones} counters every {INTERVAL_S} s, "
        f"median of {REPETITIONS}, {100 * min(costs):.3f} to {100 * max(costs):.3f})"
    )
    assert zones == 4
    assert SMALL or -0.05 < median < 0.5
