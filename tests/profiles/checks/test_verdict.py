"""Verdicts: history, siblings, facts, disturbance, and what they mean for predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles.checks.causes import consequences
from profiles.checks.check import EXIT_CODES, Check, CheckStore, Consumer, Verdict
from profiles.checks.figures import LEAST_REFERENCES, MOST_REFERENCES, cpu_share, figures
from profiles.checks.verdict import Reference, give_verdict
from profiles.errors import BadInput
from profiles.export import prometheus_of_check
from profiles.quantities import compare_facts
from tests.support.checks import QUIET, figures_of, make_check
from tests.support.records import make_coefficient, make_model, make_profile

USUAL = {"stream_bandwidth_gbs": 50.0, "access_latency_ns": 100.0, "compute_gflops": 60.0}
RNG = np.random.default_rng(11)


def noisy(number: int, noise: float = 0.005, **factors: float) -> Check:
    values = {q: v * factors.get(q, 1.0) * float(np.exp(RNG.normal(0, noise))) for q, v in USUAL.items()}
    return make_check(number, figures_of(values))


def history(count: int) -> Reference:
    return Reference("earlier checks", checks=[noisy(n) for n in range(count)])


def states(check: Check) -> dict[str, str]:
    return {change.quantity: change.state for change in check.changes}


def test_the_first_checks_learn() -> None:
    found = give_verdict(noisy(7), history(LEAST_REFERENCES - 1))
    assert (found.verdict, EXIT_CODES[found.verdict]) == (Verdict.UNKNOWN, 3)
    assert found.reason == "7 earlier checks; 8 are needed to tell a change"
    assert give_verdict(noisy(8), history(LEAST_REFERENCES)).verdict is Verdict.PASS


def test_a_loss_is_a_change_and_a_gain_is_none() -> None:
    lost = give_verdict(noisy(31, stream_bandwidth_gbs=0.9), history(30))
    assert (lost.verdict, EXIT_CODES[lost.verdict]) == (Verdict.CHANGED, 1)
    assert states(lost) == {
        "stream_bandwidth_gbs": "worse",
        "access_latency_ns": "same",
        "compute_gflops": "same",
    }
    (change,) = [c for c in lost.changes if c.state == "worse"]
    assert change.loss_ratio == pytest.approx(0.1, abs=0.02)
    assert change.low is not None and change.high is not None and change.low < 0.1 < change.high
    assert lost.false_alarm_ratio == 0.01
    gained = give_verdict(noisy(31, stream_bandwidth_gbs=1.1, access_latency_ns=0.9), history(30))
    assert gained.verdict is Verdict.PASS
    assert states(gained)["access_latency_ns"] == "better"
    slower = give_verdict(noisy(31, access_latency_ns=1.2), history(30))
    assert states(slower)["access_latency_ns"] == "worse"


def test_a_change_is_dated_to_the_first_check_that_shows_it() -> None:
    """A loss of 3 % beside a noise of 0.5 % and 30 references."""
    past, this = list(history(30).checks), None
    for number in range(30, 36):
        this = give_verdict(noisy(number, stream_bandwidth_gbs=0.97), Reference("", checks=past))
        past.append(this)
    assert this is not None
    (change,) = [c for c in this.changes if c.state == "worse"]
    assert change.since in {past[n].created for n in (30, 31, 32)}


def test_checks_that_alarmed_or_were_disturbed_are_no_reference() -> None:
    good = list(history(12).checks)
    bad = [noisy(n, stream_bandwidth_gbs=0.5) for n in range(12, 30)]
    for verdict in (Verdict.CHANGED, Verdict.DISTURBED):
        marked = [check.model_copy(update={"verdict": verdict}) for check in bad]
        found = give_verdict(noisy(30, stream_bandwidth_gbs=0.5), Reference("", checks=[*good, *marked]))
        assert found.verdict is Verdict.CHANGED
        assert {change.references for change in found.changes} == {8}  # the last four may show it already


def test_the_reference_does_not_follow_a_machine_that_decays() -> None:
    """By 0.1 % a check: each is like the ones before, and the machine is not what it was."""
    past: list[Check] = list(history(MOST_REFERENCES).checks)
    verdicts = []
    for number in range(MOST_REFERENCES, MOST_REFERENCES + 60):
        lost = 1 - 0.001 * (number - MOST_REFERENCES)
        past.append(give_verdict(noisy(number, compute_gflops=lost), Reference("", checks=past)))
        verdicts.append(past[-1].verdict)
    assert verdicts[-1] is Verdict.CHANGED


def test_what_others_disturb_is_no_alarm() -> None:
    eve = Consumer(name="cc1", pid=5, user="eve", processors=0.9)
    met = QUIET.model_copy(update={"others_processors": 0.9, "consumers": (eve,)})
    check = noisy(31, stream_bandwidth_gbs=0.5).model_copy(update={"conditions": met})
    found = give_verdict(check, history(30))
    assert (found.verdict, EXIT_CODES[found.verdict]) == (Verdict.DISTURBED, 3)
    assert "cc1 (pid 5 of eve" in found.causes[0].sentence


def test_what_could_not_be_measured_this_time_is_not_passed() -> None:
    check = noisy(31)
    less = check.model_copy(update={"figures": check.figures[:2]})
    found = give_verdict(less, history(30))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "not measured this time: compute_gflops")


def test_a_limit_of_processor_time_is_a_change() -> None:
    check = noisy(31).model_copy(update={"conditions": QUIET.model_copy(update={"cpu_share_ratio": 0.6})})
    found = give_verdict(check, history(30))
    assert found.verdict is Verdict.CHANGED
    assert [cause.name for cause in found.causes] == ["cpu-quota"]


LINK = "PCIe link 0000:17:00.0"
FACTS = {"memory": "24 GiB", "kernel": "6.1", LINK: "x16 (GPU, nvidia)", "logical CPUs": "64"}
FACTS["interface ib0"] = "mlx5_core, 100000 Mbit/s"
AMOUNTS = {"memory": 24.0, LINK: 16.0, "logical CPUs": 64.0, "interface ib0": 1e5}


@pytest.mark.parametrize(
    ("now", "amount", "differ", "lost"),
    [
        ({}, None, 0, False),
        ({"kernel": "6.8"}, None, 1, False),
        ({"memory": "16 GiB"}, 16, 1, True),
        ({"memory": "32 GiB"}, 32, 1, False),
        ({"logical CPUs": "63"}, 63, 1, True),
        ({LINK: "x8 (GPU, nvidia)"}, 8, 1, True),
        ({LINK: None}, None, 1, True),
        ({"queue of eth0": "tbf"}, None, 1, False),
        ({"interface ib0": "mlx5_core, 10000 Mbit/s"}, 1e4, 1, True),
        ({"interface ib0": "mlx5_core, unknown speed"}, 0, 1, True),
        ({"interface ib0": "mlx4_core, 100000 Mbit/s"}, 1e5, 1, False),
    ],
)
def test_facts(now: dict[str, str | None], amount: float | None, differ: int, lost: bool) -> None:
    after = {name: value for name, value in {**FACTS, **now}.items() if value is not None}
    amounts = {name: value for name, value in AMOUNTS.items() if name not in now}
    amounts |= {} if amount is None else dict.fromkeys(now, amount)
    differences = compare_facts(FACTS, after, AMOUNTS, amounts)
    assert len(differences) == differ and any(d.is_loss for d in differences) is lost
    check = noisy(31).model_copy(update={"facts": after, "amounts": amounts})
    reference = Reference("", checks=history(30).checks, facts=FACTS, amounts=AMOUNTS)
    assert give_verdict(check, reference).verdict is (Verdict.CHANGED if lost else Verdict.PASS)


def test_siblings_are_held_against_by_their_own_spread() -> None:
    nodes = [[noisy(n, noise=0.01) for n in range(3)] for _ in range(9)]
    reference = Reference("9 siblings", siblings=nodes)
    assert give_verdict(noisy(9), reference).verdict is Verdict.PASS
    assert give_verdict(noisy(9, stream_bandwidth_gbs=0.85), reference).verdict is Verdict.CHANGED
    assert give_verdict(noisy(9), Reference("", siblings=nodes[:7])).verdict is Verdict.UNKNOWN


def rows(values: dict[str, list[float]], share: float | None = 1.0, part: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "quantity": quantity,
            "labels": json.dumps({"core": name} if name else {}),
            "unit": "",
            "part": part,
            "value": x if share is None else x * share,
            "cpu_value": x,
            "cpu_ratio": share,
        }
        for what, several in values.items()
        for quantity, name in [what.split(":") if ":" in what else (what, "")]
        for x in several
    ]


def test_a_figure_is_the_best_tenth_of_its_slices() -> None:
    speeds = [float(x) for x in range(1, 102)]
    (speed, latency) = figures(rows({"stream_bandwidth_gbs": speeds, "access_latency_ns": speeds}))
    assert (speed.value, latency.value) == (pytest.approx(91), pytest.approx(11))
    assert speed.slices == 101


def test_slices_without_their_processor_count_only_if_there_are_no_others() -> None:
    good, bad = rows({"compute_x": [50.0] * 10}), rows({"compute_x": [80.0] * 10}, share=0.5)
    assert figures([*good, *bad])[0].value == 50.0
    assert figures(bad)[0].value == 80.0  # by processor time
    assert cpu_share([*good, *bad]) == 0.75
    assert cpu_share(rows({"storage_read_mbs": [1.0]}, share=None)) is None


def test_the_slowest_core_is_named() -> None:
    speeds = {f"compute_gflops:{core}": [speed] * 9 for core, speed in enumerate((50.0, 25.0, 50.0))}
    mean, slowest = figures(rows(speeds))
    assert mean.value == pytest.approx(125 / 3)
    assert (slowest.quantity, slowest.value, slowest.note) == ("compute_core_ratio", 0.5, "CPU 1")


def test_a_full_check_has_a_value_for_each_round() -> None:
    several = [row for part in range(4) for row in rows({"storage_read_mbs": [10.0 + part] * 5}, None, part)]
    (figure,) = figures(several)
    assert (figure.rounds, figure.value) == ((10.0, 11.0, 12.0, 13.0), 11.5)


def test_the_store_passes_over_a_torn_line_and_begins_a_new_one(tmp_path: Path) -> None:
    store = CheckStore(tmp_path)
    first, second = noisy(0), noisy(1)
    store.append(first)
    with store.path("node").open("a") as file:
        file.write(second.model_dump_json()[:100])
    assert store.of_node("node") == [first]
    store.append(second)
    assert store.of_node("node") == [first, second]
    assert store.nodes() == ["node"]
    assert store.of_node("elsewhere") == []


def test_a_store_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("a file where the folder should be")
    with pytest.raises(BadInput, match=r"checks\.jsonl"):
        CheckStore(tmp_path).append(noisy(0))


def test_prometheus_tells_verdict_losses_and_causes() -> None:
    text = prometheus_of_check(give_verdict(noisy(31, stream_bandwidth_gbs=0.8), history(30)))
    assert 'tenbin_check_verdict{node="node",verdict="changed"} 1.0' in text
    assert 'tenbin_check_exit_code{node="node"} 1.0' in text
    assert 'tenbin_check_cause{cause="memory",node="node"} 1.0' in text
    assert 'tenbin_check_loss_ratio{node="node",quantity="stream_bandwidth_gbs"' in text


def test_what_a_slower_disk_means_for_moves() -> None:
    past = [make_check(n, figures_of({"storage_write_mbs": 1000.0 + n % 3})) for n in range(20)]
    check = give_verdict(make_check(31, figures_of({"storage_write_mbs": 500.0})), Reference("", checks=past))
    changes = [c.model_copy(update={"labels": {"storage": "/scratch"}}) for c in check.changes]
    model = make_model(
        make_coefficient(0.002, name="alpha_C"),
        make_coefficient(0.5, name="beta_C"),
        quantity="checkpoint_s",
        form="linear",
        labels={"device": "d", "storage": "/scratch"},
        covariance=((1e-9, 0.0), (0.0, 1e-9)),
        residual_sd=0.01,
    )
    sentences = consequences(changes, make_profile(models=(model,)), [])
    assert sentences == ["Moves: a checkpoint of 1 GB, predicted in 2.5 s, takes up to 5 s."]
    below_0 = model.model_copy(update={"coefficients": (make_coefficient(-0.002), make_coefficient(0.5))})
    for profile in (None, make_profile(models=(below_0,))):
        (sentence,) = consequences(changes, profile, [])
        assert sentence.startswith("Moves: a checkpoint takes up to 100 % longer")
