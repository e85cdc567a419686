"""Machines with known differences: who is better, by how much, how surely."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.compare import Advantage, compare, judge, judge_difference, main_rows, sentences
from profiles.fits.storage import SEQUENTIAL, SMALL
from profiles.quantities import QUANTITIES, Better, better
from profiles.records import Condition, Model, Profile
from tests.support.paths import ROOT
from tests.support.records import make_coefficient, make_model, make_profile


def model(quantity: str, value: float, share: float = 0.01, unit: str = "1", **labels: str) -> Model:
    """Make a model with an interval of ``share`` of its value on each side."""
    coefficient = make_coefficient(value, (1 - share) * value, (1 + share) * value, unit=unit)
    return make_model(coefficient, quantity=quantity, labels=labels)


def machine(node: str, *, gbs: float, ns: float, ghz: float = 3.0, cores: str = "16") -> Profile:
    triad = {"kernel": "triad", "numa": "local"}
    models = (
        model("stream_bandwidth_gbs", gbs, cores=cores, **triad),
        model("access_latency_ns", ns, level="memory"),
        model("compute_clock_ghz", ghz, load="vector", cores=cores),
    )
    return make_profile(node=node, models=models)


def judged(direction: Better, a: float, b: float, share: float = 0.01) -> Advantage:
    both = (make_coefficient(v, (1 - share) * v, (1 + share) * v) for v in (a, b))
    return judge(direction, *both)


@pytest.mark.parametrize(
    ("direction", "both", "words", "certainty"),
    [
        (Better.HIGHER, (80, 100), "B better by 25 % (23 to 27 %)", "surely"),
        (Better.LOWER, (100, 80), "B better by 20 % (19 to 21 %)", "surely"),
        (Better.LOWER, (80, 100), "A better by 20 % (19 to 21 %)", "surely"),
        (Better.NEITHER, (80, 100), "B higher by 25 % (23 to 27 %)", "surely"),
        (Better.HIGHER, (400, 100), "A better by a factor of 4 (3.94 to 4.06)", "surely"),
        (Better.HIGHER, (100, 101), "B better by 1.0 % (A by 0.4 % to B by 2.4 %)", "perhaps"),
        (Better.HIGHER, (100, 100.1), "from A by 1.3 % to B by 1.5 %", "not to tell"),
        (Better.HIGHER, (100, 100), "equal", "not to tell"),
    ],
)
def test_known_differences(direction: Better, both: tuple[float, float], words: str, certainty: str) -> None:
    found = judged(direction, *both)
    assert (found.words, found.certainty) == (words, certainty)


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(0.001, 0.5), st.sampled_from(Better))
def test_exchanging_the_two_exchanges_the_sides(a: float, b: float, share: float, direction: Better) -> None:
    one, other = judged(direction, a, b, share), judged(direction, b, a, share)
    swapped = {"A": "B", "B": "A", "": ""}
    assert (swapped[one.of], swapped[one.higher]) == (other.of, other.higher)
    assert one.certainty == other.certainty and one.ratio == other.ratio


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        a, b = 100 * np.exp(random.normal(0, 0.05)), 150 * np.exp(random.normal(0, 0.08))
        width = {1: 1.96 * 0.05, 2: 1.96 * 0.08}
        found = judge(
            Better.HIGHER,
            make_coefficient(a, a * np.exp(-width[1]), a * np.exp(width[1])),
            make_coefficient(b, b * np.exp(-width[2]), b * np.exp(width[2])),
        )
        assert found.low is not None and found.high is not None
        low, high = (found.low, found.high) if found.higher == "B" else (1 / found.high, 1 / found.low)
        held += low <= 1.5 <= high
    assert 0.935 < held / 2000 < 0.965


def test_poor_and_open_intervals_are_not_to_tell() -> None:
    poor = make_coefficient(5.0, 1.0, 30.0, quality="poor")
    found = judge(Better.HIGHER, poor, make_coefficient(10.0, 9.0, 11.0))
    assert found.certainty == "not to tell"
    beyond = judge(Better.HIGHER, make_coefficient(2.0, 2.0, None), make_coefficient(3.0, 3.0, None))
    assert beyond.certainty == "not to tell" and beyond.words == ""


def test_values_that_are_not_positive_have_no_ratio() -> None:
    found = judge(Better.LOWER, make_coefficient(-0.2, -0.3, -0.1), make_coefficient(0.5, 0.4, 0.6))
    assert found.words == "A better" and found.certainty == "surely"


def test_the_three_sentences() -> None:
    slow, fast = machine("node1", gbs=80, ns=100), machine("node2", gbs=100, ns=150)
    assert sentences(slow, fast) == [
        "B (node2) is surely better at memory bandwidth by 25 % (23 to 27 %).",
        "A (node1) is surely better at memory latency by 33 % (32 to 34 %).",
        "Not to tell: clock.",
    ]
    assert sentences(slow, slow)[0] == "B is surely better at none of the main figures."
    assert "no main figure" in sentences(slow, make_profile(models=()))[0]


def test_a_disturbed_profile_and_numbers_beside_the_main_ones_are_told_of() -> None:
    """Where rows below say "lower", no sentence above them says that nothing differs."""
    busy = Condition(probe="memory", round=0, duration_s=10, reference_s=1, steal_ratio=0, others_ratio=0.4)
    models = [
        make_model(
            make_coefficient(value, value - 0.1, value + 0.1),
            quantity="access_latency_ns",
            labels={"level": "L2"},
        )
        for value in (1.0, 2.0)
    ]
    quiet, disturbed = (
        profile.model_copy(update={"models": (*profile.models, model)})
        for profile, model in zip((machine("a", gbs=80, ns=100),) * 2, models, strict=True)
    )
    said = sentences(quiet, disturbed.model_copy(update={"conditions": (busy,)}))
    assert said[0].startswith("B: DISTURBED while it was measured: other processes took 40 %")
    assert said[2] == "A is surely better at none of the main figures, and at 1 of the other numbers."


def test_machines_of_different_size_are_compared_on_all_their_cores() -> None:
    rows = main_rows(
        machine("small", gbs=80, ns=100, cores="16"), machine("large", gbs=400, ns=100, cores="128")
    )
    bandwidth = next(row for row in rows if row.a.name == "memory bandwidth")
    assert bandwidth.advantage.words.startswith("B better by a factor of 5")
    assert (bandwidth.a.subject, bandwidth.b.subject) == ("cores=16", "cores=128")


def test_power_is_neither_better_nor_worse() -> None:
    knees = [
        make_model(
            make_coefficient(value, value - 1, value + 1, name="knee_w", unit="W"),
            quantity="power_speed_ratio",
            labels={"load": "x"},
        )
        for value in (100.0, 150.0)
    ]
    first, second = (make_profile(models=(knee,)) for knee in knees)
    assert "a matter of what one wants: cap of full speed (B higher by 50 %" in sentences(first, second)[2]
    (difference,) = compare(first, second)
    found = judge_difference(difference)
    assert found is not None and found.of == "" and found.certainty == "surely"


def test_every_quantity_has_a_direction() -> None:
    stored = json.loads((ROOT / "docs/measurements/vm-epyc-2core.json").read_text())
    known = {one["quantity"] for one in stored["models"]}
    for fit in (ROOT / "profiles/fits").glob("*.py"):
        known |= set(re.findall(r'quantity="(\w+)"', fit.read_text()))
    known |= {f"storage_{kind}_mbs" for kind in SEQUENTIAL} | {f"storage_{kind}_p99_s" for kind in SMALL}
    assert {name for name in known if name not in QUANTITIES} == set() and len(known) > 25
    assert better("run_s", "A") is Better.HIGHER and better("run_s", "T1") is Better.LOWER
    assert better("memory_bandwidth_gbs") is Better.HIGHER and better("unheard_of") is Better.NEITHER
