"""Devices in checks: each by itself against its own past, also on published runs of real GPUs.

PAL (SC 2024) ran one fixed SGEMM again and again on each of some 200 V100 of a cluster in use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from profiles.checks.check import Check, CheckedDevice, CheckStore, DeviceFitness, Figure, Fitness, Verdict
from profiles.checks.figures import DEVICE_FALSE_ALARM_RATIO, DEVICE_LOSS, LEAST_REFERENCES, WINDOW
from profiles.checks.verdict import Reference, give_verdict, together
from tenbin.commands.measure.check import print_check
from tests.support.amounts import DRILL, examples
from tests.support.checks import QUIET, figures_of, make_check
from tests.support.paths import SHARED_DATA

RUNS = SHARED_DATA / "pal2024-sgemm-v100.csv.gz"
UUID, OTHER = "GPU-11111111-2222", "GPU-33333333-4444"
LABELS: list[tuple[str, dict[str, str]]] = [
    ("device_product_gflops", {}),
    ("device_bandwidth_gbs", {"kernel": "copy"}),
    ("device_copy_gbs", {"direction": "to_device"}),
    ("device_copy_gbs", {"direction": "from_device"}),
]


def figures_of_device(values: Sequence[float], device: str = UUID, name: str = "GPU 3") -> list[Figure]:
    """Make the figures of a device, each of one slice."""
    return [
        Figure(
            quantity=quantity,
            labels={"device": device, **labels},
            unit="GB/s",
            value=value,
            rounds=(value,),
            slices=1,
            spread_ratio=0.0,
            note=name,
        )
        for (quantity, labels), value in zip(LABELS, values, strict=True)
    ]


def check_of(number: int, *speeds: float, failure: str = "", **changes: Any) -> Check:
    """Make a check of a node with one device, or two."""
    known = [CheckedDevice(device=d, name=n, failure=failure) for d, n in ((UUID, "GPU 3"), (OTHER, "GPU 1"))]
    figures = [
        figure
        for device, speed in zip(known, speeds, strict=False)
        for figure in figures_of_device([speed] * len(LABELS), device.device, device.name)
    ]
    return make_check(
        number,
        [*figures_of({"compute_gflops": 60.0}), *figures],
        devices=tuple(known[: len(speeds)]),
        **changes,
    )


def judged(past: Sequence[Check], check: Check) -> Check:
    return give_verdict(check, Reference("earlier checks", checks=past))


def past(count: int, noise: float = 0.002, devices: int = 1) -> list[Check]:
    rng = np.random.default_rng(5)
    return [check_of(n, *np.exp(rng.normal(0, noise, devices))) for n in range(count)]


# -- PAL's cards -------------------------------------------------------------------------------------------


def is_worse(check: Check) -> bool:
    return any(change.state == "worse" for change in check.changes)


def tells(check: Check) -> tuple[float, float]:
    (by_one,), (by_five,) = (
        {getattr(change, name) for change in check.changes}
        for name in ("tells_ratio", "tells_in_window_ratio")
    )
    return by_one, by_five


def test_a_loss_of_3_percent_is_found_on_real_cards_and_an_unchanged_one_raises_no_alarm() -> None:
    """Each run is a check of its card, first as it was, then 3 % slower, and at last slower for five runs.

    A card that varies too much for one check, or for five, must say so. All four figures of a device have the
    value of the run, so that they are as many as in a real check.
    """
    if not RUNS.exists():
        pytest.skip(f"{RUNS.name} is not in {RUNS.parent}")
    runs = pd.read_csv(RUNS).query("time_s >= 0").drop_duplicates(["gpu", "time_s"])
    checks = alarms = can = caught = can_in_window = caught_in_window = cannot = 0
    cards = list(runs.sort_values("time_s").groupby("gpu"))[:: 1 if DRILL else 3]
    for _, card in cards:
        earlier: list[Check] = []
        for n, speed in enumerate(1e6 / card["sgemm_ms"]):
            check = make_check(n, figures_of_device([speed] * len(LABELS)))
            now = judged(earlier, check)
            if n >= LEAST_REFERENCES:
                slow = judged(
                    earlier, make_check(n, figures_of_device([speed * (1 - DEVICE_LOSS)] * len(LABELS)))
                )
                by_one, by_five = tells(now)
                checks, alarms = checks + 1, alarms + is_worse(now)
                if by_one <= DEVICE_LOSS:
                    can, caught = can + 1, caught + is_worse(slow)
                elif by_five > DEVICE_LOSS:
                    cannot += 1
                elif n >= LEAST_REFERENCES + WINDOW:
                    can_in_window += 1
                    caught_in_window += is_worse(judged(_slowed(earlier), slow))
            earlier.append(now)
    print(f"{checks} checks of unchanged cards: {alarms} alarms; {cannot} could not tell a loss of 3 %")
    print(f"found by one check: {caught} of {can}; by five in a row: {caught_in_window} of {can_in_window}")
    assert checks > 14 * len(cards) and alarms <= stats.binom.ppf(0.99, checks, DEVICE_FALSE_ALARM_RATIO)
    assert can > 0.9 * checks and caught >= 0.99 * can
    assert caught_in_window >= 0.95 * can_in_window and cannot < 0.05 * checks


def _slowed(checks: Sequence[Check]) -> list[Check]:
    """Make the last of them, all but one of a window, slower."""
    last = len(checks) - WINDOW + 1
    return [
        *checks[:last],
        *(
            check.model_copy(
                update={
                    "figures": tuple(figures_of_device([f.value * (1 - DEVICE_LOSS) for f in check.figures]))
                }
            )
            for check in checks[last:]
        ),
    ]


# -- verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [LEAST_REFERENCES, 30])
def test_the_rates_of_a_device_hold(references: int) -> None:
    """Of unchanged devices 0.5 % are called changed at most; 99 of 100 losses of the size told are found."""
    rng, runs, alarms, caught = np.random.default_rng(references), examples(1200), 0, 0
    for _ in range(runs):
        noise = rng.normal(0, 0.003, (references + 1, len(LABELS)))
        old = [make_check(n, figures_of_device(np.exp(row))) for n, row in enumerate(noise[:-1])]
        alarms += is_worse(judged(old, make_check(references, figures_of_device(np.exp(noise[-1])))))
        slow = np.exp(noise[-1] + [np.log(1 - DEVICE_LOSS), 0, 0, 0])
        check = judged(old, make_check(references, figures_of_device(slow)))
        (product,) = [c for c in check.changes if c.quantity == "device_product_gflops"]
        assert product.tells_ratio is not None
        caught += product.state == "worse" or product.tells_ratio > DEVICE_LOSS
    assert alarms <= stats.binom.ppf(0.999, runs, DEVICE_FALSE_ALARM_RATIO)
    assert caught >= stats.binom.ppf(0.001, runs, 0.99)


def test_a_slow_device_is_named_and_the_others_and_the_node_are_as_they_were() -> None:
    check = judged(past(20, devices=2), check_of(20, 0.96, 1.0))
    assert (check.verdict, check.only_devices) == (Verdict.CHANGED, True)
    assert {c.labels.get("device") for c in check.changes if c.state == "worse"} == {UUID}
    (cause,) = check.causes
    assert cause.name == "device" and re.match(r"GPU 3 is (3.9|4.\d) % slower", cause.sentence)
    assert check.false_alarm_ratio == pytest.approx(0.01 + 2 * DEVICE_FALSE_ALARM_RATIO)
    # Checks in which only that one is slower are references for the other and for the node.
    later = judged([*past(20, devices=2), *[check] * 10], check_of(40, 0.96, 1.0))
    assert {c.references for c in later.changes if c.labels.get("device") != UUID} == {26}
    assert {c.references for c in later.changes if c.labels.get("device") == UUID} == {16}


def test_its_cap_or_link_is_the_cause_where_that_differs() -> None:
    facts = {"cap of GPU 3": "700 W", "cap of GPU 1": "700 W"}
    now = check_of(20, 0.9, facts={**facts, "cap of GPU 3": "500 W"})
    check = give_verdict(now, Reference("earlier checks", checks=past(20), facts=facts))
    (cause,) = check.causes
    assert cause.sentence.endswith("slower than it was: cap of GPU 3 700 W -> 500 W")
    assert cause.remedy == "set it back"


@pytest.mark.parametrize("disturbed", [False, True])
def test_wrong_results_are_a_change_however_few_checks_there_are(disturbed: bool) -> None:
    conditions = QUIET.model_copy(update={"others_processors": 2.0 * disturbed})
    check = judged([], check_of(0, 1.0, failure="7 of 9 numbers are wrong", conditions=conditions))
    assert (check.verdict, check.only_devices) == (Verdict.CHANGED, True)
    assert check.reason == "results were wrong: GPU 3"
    assert "GPU 3 computes wrongly: 7 of 9 numbers are wrong" in [cause.sentence for cause in check.causes]


def test_a_wrong_result_of_a_second_look_counts() -> None:
    again = together(check_of(0, 0.9, 1.0), check_of(1, 1.0, failure="wrong"))
    assert [device.failure for device in again.devices] == ["wrong", ""]
    assert [len(figure.rounds) for figure in again.figures if figure.labels.get("device") == UUID] == [2] * 4


def test_a_device_that_varies_too_much_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for noise, words in ((0.007, "shows in 5 checks in a row"), (0.05, "does not show; its checks differ")):
        check = judged(past(LEAST_REFERENCES, noise), check_of(8, 1.0))
        assert check.verdict is Verdict.PASS
        print_check(check)
        assert f"not told: GPU 3, product: a loss of 3 % {words}" in " ".join(capsys.readouterr().out.split())


def test_the_last_check_that_could_tell_decides_on_each_device(tmp_path: Path) -> None:
    store, fitness = CheckStore(tmp_path), Fitness(tmp_path)
    assert fitness.devices("node") == {}
    sound, slow = DeviceFitness(), pytest.approx(0.04, abs=0.01)
    busy = QUIET.model_copy(update={"others_processors": 2.0})
    for number, (check, loss, failure) in enumerate(
        [
            (judged(past(20), check_of(20, 1.0)), sound.loss_ratio, ""),
            (judged(past(20), check_of(21, 0.96)), slow, ""),
            (judged(past(20), check_of(22, 0.5, conditions=busy)), slow, ""),
            (judged(past(20), check_of(23, 1.0, failure="wrong")), 0.0, "wrong"),
            (judged(past(20), check_of(24, 1.0)), 0.0, ""),
        ]
    ):
        store.append(check)
        os.utime(store.path("node"), (number, number))  # within one step of the file system's clock
        assert fitness.devices("node") == {UUID: DeviceFitness(loss, failure)}
        unfit = fitness.why_unfit("node")
        assert bool(unfit) == (number in (1, 2, 3)) and not fitness.why_unfit("node", but_devices=True)
