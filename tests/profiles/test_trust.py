"""The first lines of a profile say how far to trust it."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from agent.measured_node import Watch
from profiles.card import MEANINGS, trust
from profiles.files.store import Store
from profiles.models.constant import judge
from profiles.records import Condition
from tenbin.report.page import write_report
from tests.support.programs import tenbin
from tests.support.records import make_coefficient, make_model, make_profile


def visit(probe: str = "memory", **changes: float) -> Condition:
    calm = {"duration_s": 10.0, "reference_s": 0.005, "steal_ratio": 0.0, "others_ratio": 0.01, "round": 0}
    return Condition.model_validate({"probe": probe, **calm, **changes})


def shown(tmp_path: Path, *conditions: Condition, **changes: object) -> str:
    """Return what ``tenbin profile show`` prints of a profile."""
    store = Store(tmp_path / "store")
    store.save(make_profile(conditions=conditions, **changes), {})
    done = tenbin("profile", "show", store=store.root, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_quiet_machine_is_said_to_be() -> None:
    said = trust(make_profile(conditions=(visit(), visit("power", duration_s=0.2, others_ratio=0.4))))
    assert (said.state, said.remedy) == ("quiet", "")
    assert "others took 2 % of its processors" in said.sentence


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ((visit(others_ratio=0.59),), ["other processes took 59 % of the processors"]),
        ((visit(), visit(), visit("scaling", others_ratio=0.12)), ["(12 % while scaling was measured)"]),
        ((visit(steal_ratio=0.04),), ["the hypervisor gave 4 % of the processors"]),
        ((visit(), visit(reference_s=0.01)), ["a fixed CPU loop took up to 2.0 times"]),
    ],
)
def test_what_disturbed_it_is_named(conditions: tuple[Condition, ...], words: list[str]) -> None:
    said = trust(make_profile(conditions=conditions))
    assert said.state == "disturbed" and "tenbin doctor" in said.remedy
    assert all(word in said.sentence for word in words), said.sentence


def test_rounds_that_differ_are_counted_and_no_disturbance_by_themselves() -> None:
    same, other = make_coefficient(), make_coefficient(rounds_differ=True)
    many = make_model(*[same] * 10, *[other] * 10)
    said = trust(make_profile(models=(many,), conditions=(visit(),)))
    assert said.state == "quiet" and "The rounds of 10 of 20 numbers differ." in said.sentence
    assert "rounds" not in trust(make_profile(models=(make_model(same),), conditions=(visit(),))).sentence


def test_a_profile_without_conditions_does_not_pretend() -> None:
    assert trust(make_profile()).state == "unknown"


def test_a_neighbour_that_runs_all_the_time_is_seen() -> None:
    watch = Watch.begin("memory", 0)
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as neighbour:
        time.sleep(1.5)
        condition = watch.ended()
        neighbour.kill()
    said = trust(make_profile(conditions=(condition,)))
    assert said.state == "disturbed" and "other processes took" in said.sentence


def test_show_says_it_in_its_second_line(tmp_path: Path) -> None:
    lines = shown(tmp_path, visit(others_ratio=0.59)).splitlines()
    assert lines[1].startswith("DISTURBED while it was measured: other processes took 59 %")
    assert "Measure again when it is quiet" in lines[1]


def test_show_explains_the_words_that_it_uses(tmp_path: Path) -> None:
    noisy = make_coefficient(10, 8, 12, quality="noisy", rounds_differ=True)
    text = shown(tmp_path, visit(), models=(make_model(noisy),))
    assert re.search(r"\n  noisy +within 30 %", text) and re.search(r"\n  \* +the rounds", text)
    assert "noisy*" in text and MEANINGS["poor"] not in text  # no number is poor


def test_show_says_what_is_against_a_model(tmp_path: Path) -> None:
    line = make_model(
        *map(make_coefficient, (1.0, 2.0)), note="not a line: the median at 256 is 127 % off it"
    )
    assert "127 % off it" in shown(tmp_path, models=(line,))


def test_the_report_says_it_before_anything_else(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    path = store.save(make_profile(conditions=(visit(others_ratio=0.59),)), {}) / "profile.json"
    write_report(path, tmp_path / "page.html")
    page = re.sub(r"<script.*?</script>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)
    assert 0 < page.index("other processes took 59 %") < page.index("The machine</h2>")
    assert all(meaning.replace("'", "&#39;") in page for meaning in MEANINGS.values())


@pytest.mark.parametrize(("half", "word"), [(0.09, "good"), (0.11, "noisy"), (0.29, "noisy"), (0.31, "poor")])
def test_the_meanings_are_those_of_the_judge(half: float, word: str) -> None:
    assert judge(1.0, 1 - half, 1 + half) == word
    assert "10 %" in MEANINGS["good"] and "30 %" in MEANINGS["noisy"]
