"""Checks a finished schedule against machine and jobs alone; knows nothing of the simulator's books."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest

from scheduler.model.jobs import EstimateKind, Job, Placement, Pool
from scheduler.simulator.trace import Outcome, Segment
from tests.support.scheduling.worlds import World, jobs_of

SLACK = 1e-6


def audit(world: World, outcomes: list[Outcome], refused: int = 0) -> None:
    """Every job ended once, ran as long as it had to, and no unit, node or watt was given twice."""
    ids = [outcome.job.id for outcome in outcomes]
    assert len(set(ids)) == len(ids), "a job ended twice"
    assert len(ids) + refused == len(world.arrivals), "a job was lost"
    for outcome in outcomes:
        _audit_job(world, outcome)
    for pool in world.cluster.pools:
        segments = [
            (s, o)
            for o in outcomes
            for s in o.segments
            if s.placement.pool == pool.name and s.end_s > s.start_s
        ]
        _audit_pool(pool, segments)
    if world.cluster.budget_w is not None:
        for time, segments in _moments([(s, o) for o in outcomes for s in o.segments]):
            drawn = sum(power_w(world.cluster[s.placement.pool], o.job, s.placement) for s, o in segments)
            assert drawn <= world.cluster.budget_w + SLACK, f"over budget at {time}"


def power_w(pool: Pool, job: Job, place: Placement) -> float:
    """Return what a job draws: what it states itself goes before its cap."""
    job = job.way(place)
    under = pool.peak_w if place.cap_w is None else place.cap_w
    own = place.units * under if job.power is None else job.power(place.units, place.cap_w)
    return place.units * pool.base_w + own


def _audit_job(world: World, outcome: Outcome) -> None:
    job, segments = outcome.job, [segment for segment in outcome.segments if segment.kind != "reserved"]
    arrival = next(a for a in world.arrivals if a.job.id == job.id)
    assert outcome.start_s >= job.submit_s - SLACK
    assert segments[0].start_s == outcome.start_s and segments[-1].end_s == outcome.end_s
    for before, after in pairwise(segments):
        assert after.start_s >= before.end_s - SLACK, f"job {job.id} ran twice at once"
    for moves in outcome.segments:
        stops = (s for s in segments if s.kind == "checkpoint" and s.start_s == moves.start_s)
        assert moves.kind != "reserved" or any(moves.end_s <= s.end_s for s in stops), (
            f"{job.id} held {moves}"
        )
    if outcome.failures or world.settings.interference is not None:
        return
    share = 0.0
    for segment in segments:
        if segment.kind == "run":
            whole = arrival.runs_s.get(segment.placement.pool, arrival.run_s)
            way, speed = job.way(segment.placement), arrival.speed or job.speed
            if way is not job:
                whole, speed = arrival.others_s[job.alternatives.index(way)], way.speed
            if speed is not None:
                whole /= speed(segment.placement.units, segment.placement.cap_w)
            if job.estimate_kind is EstimateKind.LIMIT:
                at = segment.placement
                whole = min(whole, way.estimate_on(at.pool, at.units, at.cap_w))
            share += (segment.end_s - segment.start_s) / whole if whole > 0 else 1.0
    assert share == pytest.approx(1.0, abs=1e-4), f"job {job.id} got {share} of its work done"


def _moments(segments: list[tuple[Segment, Outcome]]) -> list[tuple[float, list[tuple[Segment, Outcome]]]]:
    """Return what was held from each start of a segment on."""
    return [
        (time, [(s, o) for s, o in segments if s.start_s <= time < s.end_s])
        for time in sorted({s.start_s for s, _ in segments})
    ]


def _audit_pool(pool: Pool, segments: list[tuple[Segment, Outcome]]) -> None:
    for time, held in _moments(segments):
        if pool.counted:
            assert sum(s.placement.units for s, _ in held) <= pool.units, f"too many units at {time}"
            continue
        used: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(pool.resources))
        for segment, outcome in held:
            for node, units in segment.placement.nodes:
                for i, demand in enumerate(outcome.job.way(segment.placement).demand):
                    used[node][i] += units * demand
        for node, sums in used.items():
            assert 0 <= node < pool.units
            over = [u > c + SLACK for u, c in zip(sums, pool.capacity_of(node), strict=True)]
            assert not any(over), f"node {node} over-committed at {time}"


def starts(outcomes: list[Outcome]) -> dict[int, float]:
    """First start of each job."""
    return {outcome.job.id: outcome.start_s for outcome in outcomes}


def check_in_order(outcomes: list[Outcome]) -> None:
    """No job started before one submitted earlier."""
    by_submission = sorted(outcomes, key=lambda o: (o.job.submit_s, o.job.id))
    for earlier, later in pairwise(by_submission):
        assert earlier.start_s <= later.start_s


def check_conserving(world: World, outcomes: list[Outcome]) -> None:
    """No job waited for its first start while its units were free on a class it can run on."""
    segments = [(segment, outcome.job) for outcome in outcomes for segment in outcome.segments]
    begun = starts(outcomes)
    for time in sorted({t for segment, _ in segments for t in (segment.start_s, segment.end_s)}):
        held = [(s.placement, job) for s, job in segments if s.start_s <= time < s.end_s]
        for job in jobs_of(world):
            if job.submit_s <= time < begun[job.id]:
                for pool in world.cluster.pools:
                    room = _room(pool, job, [(p, other) for p, other in held if p.pool == pool.name])
                    fits = job.runs_on(pool.name) and room >= job.units
                    assert not fits, f"job {job.id} waited at {time} although it fits on {pool.name}"


def _room(pool: Pool, job: Job, held: list[tuple[Placement, Job]]) -> int:
    """Count the units or tasks of the job that fit beside what is held."""
    if pool.counted:
        return pool.units - sum(placement.units for placement, _ in held)
    room = 0
    for node in range(pool.units):
        free = list(pool.capacity_of(node))
        for placement, other in held:
            tasks = dict(placement.nodes).get(node, 0)
            free = [f - tasks * demand for f, demand in zip(free, other.demand, strict=True)]
        room += min(int((f + SLACK) / demand) for f, demand in zip(free, job.demand, strict=True) if demand)
    return room
