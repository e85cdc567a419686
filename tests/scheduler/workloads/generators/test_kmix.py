"""The job mixes have the figures that the paper printed."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, EstimateKind, Pool
from scheduler.policies.regions.regions import PastWork, layout
from scheduler.simulator.trace import Arrival
from scheduler.workloads import load
from scheduler.workloads.generators.kmix import CLASSES, HOUR_S, MIXES

K = Cluster((Pool("node", 9216),))
WEEK_S = 7 * 86_400.0


def jobs(text: str, seed: int = 0, cluster: Cluster = K) -> list[Arrival]:
    return list(load(f"generator:k-mix{text}", cluster, seed).arrivals)  # type: ignore[arg-type]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mix_has_the_figures_of_table_5(mix: int, seed: int) -> None:
    printed = MIXES[mix]
    week = jobs(f",mix={mix}", seed)
    nodes = np.array([a.job.units for a in week])
    product_h = nodes * np.array([a.run_s for a in week]) / HOUR_S
    assert len(week) == printed.jobs
    assert round(nodes.mean(), 2) == printed.mean_nodes
    assert product_h.max() == pytest.approx(printed.largest_node_h)
    assert product_h.sum() == pytest.approx(0.95 * 9216 * 168)
    assert nodes.max() <= 1000 and max(a.run_s for a in week) <= 24 * HOUR_S
    submits = [a.job.submit_s for a in week]
    assert submits == sorted(submits) and submits[0] >= 0 and submits[-1] <= WEEK_S
    assert all(a.run_s <= (a.job.estimate_s or 0) <= 24 * HOUR_S for a in week)


def test_any_mix_is_like_the_printed_ones() -> None:
    weeks = jobs(",periods=20")
    nodes = np.array([a.job.units for a in weeks])
    work = nodes * np.array([a.run_s for a in weeks])
    assert len(weeks) / 20 == pytest.approx(2500, rel=0.03)
    assert nodes.mean() == pytest.approx(170, rel=0.04)
    assert work.sum() / nodes.sum() == pytest.approx(3.46 * HOUR_S, rel=0.03)
    assert work.sum() / (20 * WEEK_S * 9216) == pytest.approx(0.95, abs=0.01)
    for bound, share in CLASSES:
        assert work[nodes <= bound].sum() / work.sum() == pytest.approx(share, rel=0.12)


def test_the_rule_gives_table_3_from_the_mixes_work() -> None:
    """The classes were read off table 3; the rule leads back to it, row by row, on twenty weeks' work."""
    work = [PastWork(a.job.units, a.job.units * a.run_s) for a in jobs(",periods=20")]
    printed = {2: [193, 9023], 3: [19, 1081, 8116], 4: [11, 190, 1487, 7528], 5: [7, 66, 636, 1252, 7255]}
    for k, sizes in printed.items():
        got = layout(work, 1000, k, 9216)
        assert got.sizes == pytest.approx(sizes, rel=0.12, abs=2)


def test_bursts_concentrate_submissions() -> None:
    def busiest(text: str) -> float:
        return float(
            np.mean(
                [np.histogram([a.job.submit_s for a in jobs(text, seed)], 15)[0].max() for seed in range(5)]
            )
        )

    assert busiest(",burst=0.3,estimate=exact") > 2 * busiest("")
    again = jobs(",burst=0.3,bursts=3", 4)
    assert again == jobs(",burst=0.3,bursts=3", 4)


def test_other_distributions_and_machines() -> None:
    uniform = np.array([a.job.units for a in jobs(",sizes=uniform,days=2")])
    assert uniform.mean() == pytest.approx(500, rel=0.15)
    log_uniform = np.array([a.job.units for a in jobs(",sizes=log-uniform,days=2")])
    assert np.median(log_uniform) == pytest.approx(22, rel=0.4)
    small = jobs(",largest=100,estimate=none", cluster=Cluster((Pool("node", 922),)))
    assert max(a.job.units for a in small) <= 100 and small[0].job.estimate_s is None
    assert all(a.job.estimate_kind is EstimateKind.EXACT for a in jobs(",estimate=exact,days=1"))


@pytest.mark.parametrize(
    "text", ["mix=4", "mix=1,days=3", "mix=1,sizes=uniform", "burst=2", "density=0", "days=0.1", "sizes=zipf"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        load(f"generator:k-mix,{text}", K)


def test_a_machine_that_does_not_suit_is_refused() -> None:
    with pytest.raises(BadInput, match="a machine of 64 nodes, jobs of up to 1000"):
        load("generator:k-mix", Cluster((Pool("node", 64),)))
    with pytest.raises(BadInput, match="mix=1 is for 9216 nodes, not 9000"):
        load("generator:k-mix,mix=1", Cluster((Pool("node", 9000),)))
