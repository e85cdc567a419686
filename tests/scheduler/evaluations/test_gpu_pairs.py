"""Pairs on one GPU: the quality of predictions by hand, tables, and a simulation of each knowledge."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import BadInput
from profiles.models import Prediction
from scheduler.evaluations import EVALUATIONS, gpu_pairs
from scheduler.evaluations.gpu_pairs import (
    ALL,
    BASE,
    FILE,
    KINDS,
    KNOWLEDGE,
    PairCase,
    PredictedPair,
    evaluate,
    few_pairs,
    predicted,
    quality,
    read_pal,
    simulate,
)
from scheduler.workloads.generators.labbench import GpuPairs, pair_speeds
from tests.support.paths import SHARED_DATA

pytestmark = pytest.mark.computes


def exactly(value: float, half: float = 0.1) -> Prediction:
    return Prediction(value, value - half, value + half)


def test_the_quality_of_predictions_by_hand() -> None:
    """Sums 1.0, 1.05 and 2.0 are said to be 1.2, 1.1 and 1.9: the first two in the wrong order."""
    results = [
        PredictedPair((0.5, 0.5), (exactly(0.6), exactly(0.6))),
        PredictedPair((0.5, 0.55), (exactly(0.55), exactly(0.55))),
        PredictedPair((1.0, 1.0), (exactly(0.95), exactly(0.95, 0.01))),
    ]
    of = quality(results)
    assert of.error == pytest.approx((0.2 + 0.2 + 0.1 + 0.0 + 0.05 + 0.05) / 6)
    assert (of.order, of.clear_order, of.inside, of.pairs) == (2 / 3, 1.0, 5 / 6, 3)


def test_who_shares_a_gpu_is_as_slow_as_measured() -> None:
    pairs = GpuPairs({("a", "a"): 0.5})
    assert pairs.factor("a", "spread", ["a"]) == 2.0
    assert pairs.factor("a", "spread", []) == pairs.factor("a", "packed", ["a"]) == 1.0
    assert pairs.pressure("a") is not None and pairs.pressure("b") is None


@pytest.mark.parametrize("kind", KINDS)
def test_few_pairs_are_of_each_program(kind: str) -> None:
    speeds = pair_speeds(kind)
    names = {program for program, _ in speeds}
    for count in (1, 3):
        known = few_pairs(speeds, count, 1)
        assert all(sum(name in pair for pair in known) >= count for name in names)
        assert len(known) <= count * len(names) and set(known) <= set(speeds)


def test_predictions_from_few_pairs() -> None:
    believed, of = predicted("p100", 4, 1)
    assert believed.keys() == pair_speeds("p100").keys()
    assert of.error < 0.06 and of.clear_order > 0.93 and of.inside > 0.9


def test_measured_pairs_gain_where_pairs_gain() -> None:
    case = PairCase("v100", BASE, None, 40, 1)
    alone, _ = simulate(case)
    measured, _ = simulate(case._replace(knowledge=ALL))
    few, of_others = simulate(case._replace(knowledge=KNOWLEDGE[3]))
    assert measured.turnaround_s < 0.95 * alone.turnaround_s
    assert few.turnaround_s < alone.turnaround_s and of_others is not None


@pytest.mark.slow
def test_small_evaluation_is_complete(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert EVALUATIONS["gpu-pairs"] == "scheduler.evaluations.gpu_pairs"
    monkeypatch.setenv("TENBIN_DATA", str(tmp_path))
    monkeypatch.setattr(gpu_pairs, "JOBS", {"small": 4})
    monkeypatch.setattr(gpu_pairs, "KINDS", ("k80",))
    monkeypatch.setattr(gpu_pairs, "run_all", lambda work, cases, progress: [work(case) for case in cases])
    result = evaluate("small", lambda done, of, what: None)
    assert [len(table.rows) for table in result.tables] == [3, 2]
    assert all(len(row) == len(table.columns) for table in result.tables for row in table.rows)
    assert len(result.findings) == len(KNOWLEDGE) - 1


def test_a_bad_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=FILE):
        read_pal(tmp_path / FILE)
    (tmp_path / FILE).write_text(
        "model1,gpu_num1,pipeline_strategy,speed1,model2,gpu_num2,speed2\na,1,NA,x,b,1,1\n"
    )
    with pytest.raises(BadInput, match="no number"):
        read_pal(tmp_path / FILE)


def test_the_pairs_of_pal_are_read() -> None:
    if not (SHARED_DATA / FILE).exists():
        pytest.skip(f"{FILE} is not in {SHARED_DATA}")
    speeds, programs = read_pal(SHARED_DATA / FILE)
    assert len(gpu_pairs.pairs_of(speeds)) == 101
    assert speeds["vgg19 x1", "resnet50 x1"] == 0.8 and speeds["resnet50 x1", "vgg19 x1"] == 0.41
    assert programs.families["Bert-Base x2 4,8"] == "Bert-Base"
