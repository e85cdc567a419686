"""Which nodes a counted job gets, beside all ways to place it."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.slurm.node_inventory import ClusterNode, NodeInventory
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool, counted


def held(shares: tuple[int, ...], free: list[int]) -> float:
    """Count what Slurm holds for a job: as much of each node as of the one that gives most; inf: it waits."""
    most = max(shares)
    able = all(there >= most for share, there in zip(shares, free, strict=True) if share)
    return most * sum(share > 0 for share in shares) if able else float("inf")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_no_other_way_takes_less_of_slurm(free: list[int], data: st.DataObject) -> None:
    if not sum(free):
        return
    units = data.draw(st.integers(1, sum(free)))
    inventory = NodeInventory([ClusterNode(f"n{n}", 4, 1.0) for n in range(len(free))], Unit(cores=1), False)
    for node, there in enumerate(free):
        inventory.take(node, 4 - there)
    spec = JobSpec(command=("true",), folder="/", tasks=units)
    cores = inventory.place(Entry(1, spec, "", 0.0), counted("unit", units), Pool("unit", 4 * len(free)))
    assert len(set(cores)) == units
    given_by = Counter(inventory.node_of[core] for core in cores)
    shares = tuple(given_by[node] for node in range(len(free)))
    assert all(share <= there for share, there in zip(shares, free, strict=True))
    ways = product(*(range(there + 1) for there in free))
    assert held(shares, free) == min(held(way, free) for way in ways if sum(way) == units)
