"""Jobs that share a network, against programs whose behaviour there is known in closed form."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.jobs import JobProfile
from profiles.models.contention import beside_on_network, share_alone, slowdown_beside
from profiles.records import Coefficient
from tests.support.amounts import examples
from tests.support.job_profiles import make_job, on_network, samples

SHARES = st.floats(0.0, 1.0)
SLOWED = st.floats(1.05, 7.0)


def sends_the_same(share: float, slowed: float, inside: float = 1.0) -> JobProfile:
    """Model a job that sends a fixed amount: MPI takes ``share`` of its time alone, no more if slowed."""
    return on_network("same", share / slowed, slowed, inside)


def fills_the_link(inside: float) -> JobProfile:
    """Model a job that sends whenever it is inside MPI, and is there twice as long beside comprobe."""
    slowed = 1 + inside
    return on_network("fills", 2 * inside / slowed, slowed, inside)


def alone_of(job: JobProfile) -> Coefficient:
    assert job.network is not None
    found = share_alone(job.network, job.need("mpi_share"))
    assert found is not None
    return found


def slowed_beside(job: JobProfile, *others: JobProfile) -> float:
    found = beside_on_network(job, others)
    assert found is not None and found.low <= found.value <= found.high
    return found.value


@settings(max_examples=examples(30))
@given(SHARES, SLOWED)
def test_two_that_always_send_the_same_slow_each_other_by_their_shares(share: float, slowed: float) -> None:
    """S = 1 / (1 - (share / S) (1 - 1 / slowed)), so that S = 1 + share (1 - 1 / slowed)."""
    job = sends_the_same(share, slowed)
    assert alone_of(job).value == pytest.approx(share, abs=1e-6)
    assert slowed_beside(job, job) == pytest.approx(1 + share * (1 - 1 / slowed), rel=1e-4)


@settings(max_examples=examples(30))
@given(st.floats(0.05, 1.0))
def test_two_that_fill_the_link_have_it_for_longer_the_slower_they_are(inside: float) -> None:
    """Their share is (S - 1 + inside) / S; by bisection."""
    job = fills_the_link(inside)
    assert alone_of(job).value == pytest.approx(inside)
    low, high = 1.0, 1 + inside
    for _ in range(60):
        middle = (low + high) / 2
        share = (middle - 1 + inside) / middle
        after = 1 / (1 - share * (1 - 1 / (1 + inside)))
        low, high = (middle, high) if after > middle else (low, middle)
    assert slowed_beside(job, job) == pytest.approx(middle, rel=1e-4)


@settings(max_examples=examples(30))
@given(SHARES, SHARES, SLOWED, SLOWED)
def test_more_neighbours_never_help_and_comprobe_is_the_worst(
    a: float, b: float, slow_a: float, slow_b: float
) -> None:
    one, other = sends_the_same(a, slow_a), sends_the_same(b, slow_b)
    alone, beside_one = slowed_beside(one), slowed_beside(one, other)
    assert alone == pytest.approx(1.0)
    assert 1 - 1e-6 <= beside_one <= slow_a + 1e-6
    assert slowed_beside(one, other, sends_the_same(0.0, slow_b)) == pytest.approx(beside_one, rel=1e-4)


def test_nobody_has_the_network_for_longer_than_he_is_inside_mpi() -> None:
    job = sends_the_same(0.6, 2.0, inside=0.1)
    assert alone_of(job).value == pytest.approx(0.1)
    silent = sends_the_same(0.0, 1.0, inside=0.0)
    assert slowed_beside(silent, job) == 1.0 and slowed_beside(job, silent) == 1.0


def test_a_share_bounded_by_the_time_inside_mpi_is_as_uncertain_as_that_time() -> None:
    job = on_network("bounded", 0.6, 2.0, 0.3, spread=0.05)
    found = alone_of(job)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.25, 0.35))


def test_where_comprobe_does_not_suffer_nothing_is_predicted() -> None:
    quiet = on_network("quiet", 0.3, 1.5, 0.5, reference=1.01)
    doubtful = on_network("doubtful", 0.3, 1.5, 0.5, reference=1.3, spread=0.4)
    for job in (quiet, doubtful):
        assert beside_on_network(job, [job]) is None and slowdown_beside(job, [job], network=True) is None
    assert beside_on_network(make_job("here"), [make_job("here")]) is None


def test_without_intervals_the_prediction_has_none() -> None:
    job = on_network("once", 0.3, 1.5, 0.5, spread=None)
    found = beside_on_network(job, [job])
    assert found is not None and (found.low, found.high) == (0.0, math.inf)


def unsure(name: str, law: float, cores: int = 1) -> JobProfile:
    """Make a job whose two runs beside memprobe are 3 and 13 % longer."""
    runs, windows = samples(suffers=0.003, law=law, job_cores=cores, repetitions=2)
    beside = (runs["intensity_percent"] > 0) & (runs["repetition"] == 2)
    runs.loc[beside, ["wall_s", "cpu_s"]] *= 1.1
    return make_job(name, runs, windows, cpus=tuple(range(cores)))


def test_a_few_runs_do_not_tell_what_a_core_at_work_costs() -> None:
    """Two runs, 3 and 13 % longer beside memprobe, which itself takes 2 % longer: so much is predicted."""
    job = unsure("noisy", law=0.002)
    found = slowdown_beside(job, [job])
    assert found is not None and found.value == pytest.approx(1.02)
    sure = make_job("sure", *samples(suffers=0.008, law=0.002))
    found = slowdown_beside(sure, [job])
    assert found is not None and found.value == pytest.approx(1.08)


def test_all_profiles_tell_what_a_core_at_work_costs() -> None:
    """Memprobe took 1 % longer beside itself in one profile, 3 % beside two cores of itself in the other.

    By least squares of five levels each: cores 0, 1/4, ... 1 cost 0.01 each, cores 0, 1/2, ... 2 cost 0.015.
    """
    one, other = unsure("one", law=0.001), unsure("other", law=0.0015, cores=2)
    cost = (0.01 * 1 + 0.015 * 4) / (1 + 4)
    # Neither used more of its cores than 10 s in 10 s.
    for job, neighbours, truth in (
        (one, [other], 1 + cost),
        (other, [one], 1 + cost),
        (one, [one], 1.01),
        (one, [one, other], 1 + 2 * cost),
        (one, [one] * 9, 1.02),  # no further than to twice the cores that were measured
    ):
        found = slowdown_beside(job, neighbours)
        assert found is not None and found.value == pytest.approx(truth, abs=1e-6)
        assert found.low <= found.value <= found.high


def test_a_core_at_work_beside_it_counts_once() -> None:
    """Memprobe does not suffer beside itself; 5 % a GB/s at 10 GB/s is what a busy core costs: 1.5 times."""
    runs, windows = samples(suffers=0.05, law=0.0)
    busy = make_job("busy", runs, windows)
    idle = make_job("idle", runs.assign(cpu_s=runs["wall_s"] / 4), windows)
    for neighbour, truth in ((busy, 1.5), (idle, 1.125)):
        found = slowdown_beside(busy, [neighbour])
        assert found is not None and found.value == pytest.approx(truth)
    for slowed, truth in ((1.2, 1.5), (4.0, 1 + 0.8 * 0.75)):
        half = sends_the_same(0.8, slowed).network
        over = busy.model_copy(update={"network": half})
        found = slowdown_beside(over, [over], network=True)
        assert found is not None and found.value == pytest.approx(truth, rel=1e-4)
