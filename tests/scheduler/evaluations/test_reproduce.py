"""``tenbin reproduce``: what is computed from seeds, and how a result is printed, drawn and exported."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from profiles.errors import BadInput
from scheduler import evaluations
from scheduler.evaluations import (
    EVALUATIONS,
    Estimate,
    Evaluation,
    Finding,
    Picture,
    Series,
    Table,
    changes,
    exactly,
    over_seeds,
    run_all,
)
from scheduler.model.clusters import parse_cluster
from tenbin.cli import app
from tenbin.report import evaluation as report
from tests.support.paths import ROOT


def small() -> Evaluation:
    return Evaluation(
        "A. Author: A paper (2000)",
        "small",
        ("A generator stands in for the log.",),
        (
            Finding("change of x", -20.0, Estimate(-18.0, -19.5, -16.5, 5), "%", (-30.0, -10.0)),
            Finding("wait at y", 3.0, exactly(4.0), "s", (1.0, 3.5), note="the log is missing"),
            Finding("not printed", None, over_seeds([1.0])),
        ),
        (Table("Rows | columns", ("k", "seconds"), (("a", 1.5), ("b", None), ("c", 12345))),),
        (Picture("Figure 1", "k", "time, s", (Series("mct", ("a", "b"), (1.0, 2.0), (0.1, 0.1)),)),),
        ("Nothing else.",),
    )


def test_interval_over_seeds_is_students() -> None:
    """Five values 1..5: mean 3, standard error sqrt(2.5 / 5), t(0.975, 4) = 2.776445."""
    found = over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert found.mean == 3.0 and found.n == 5
    assert found.low == pytest.approx(3 - half, rel=1e-6) and found.high == pytest.approx(3 + half, rel=1e-6)
    assert over_seeds([7.0]) == (7.0, -math.inf, math.inf, 1)


def test_changes_are_paired() -> None:
    found = changes([80.0, 160.0], [100.0, 200.0])
    assert found.mean == pytest.approx(-20.0) and found.high - found.low == pytest.approx(0.0, abs=1e-9)


def test_a_change_from_nothing_to_nothing_is_none() -> None:
    assert changes([0.0, 3.0], [0.0, 2.0]).mean == 25.0
    assert changes([1.0], [0.0]).mean == math.inf


@pytest.mark.parametrize("change", [-0.0412, 0.1, 0.0])
def test_equal_changes_have_no_interval(change: float) -> None:
    bases = [1e6 / 7 * 1.1**i for i in range(40)]
    found = changes([base * (1 + change) for base in bases], bases)
    assert found.mean == pytest.approx(100 * change)
    assert found.low == found.mean == found.high and report.interval(found) == ""


def test_agreement_is_a_matter_of_the_paper_s_range() -> None:
    assert [finding.agrees for finding in small().findings] == [True, False, None]


def test_cases_come_back_in_order_from_all_processes() -> None:
    told: list[tuple[int, int, str]] = []
    assert run_all(abs, list(range(-5, 1)), lambda *a: told.append(a), processes=2) == [5, 4, 3, 2, 1, 0]
    assert told[-1] == (6, 6, "done")


def test_an_error_of_a_case_reaches_the_caller() -> None:
    with pytest.raises(BadInput, match="'16x' is not understood"):
        run_all(parse_cluster, ["16x"], lambda *_: None)


@pytest.mark.filterwarnings("error")  # an exception in one of the pool's threads is a warning to pytest
def test_an_interrupt_ends_the_processes_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt(done: int, of: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        run_all(time.sleep, [0.3] * 40, interrupt, processes=2)
    assert set(multiprocessing.active_children()) <= before
    assert capfd.readouterr().err == ""


def test_the_processes_end_with_a_parent_that_is_killed() -> None:
    program = """
import time, psutil
from scheduler.evaluations import run_all

def tell(done, of, what):
    if done == 2:
        print(*(p.pid for p in psutil.Process().children() if "spawn_main" in p.cmdline()[-2]), flush=True)

if __name__ == "__main__":
    run_all(time.sleep, [0.1, 0.1, 600.0, 600.0], tell, processes=2)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    _, left = psutil.wait_procs(workers, timeout=60)
    for worker in left:
        worker.kill()
    assert not left


def test_markdown_has_every_number_and_escapes_bars() -> None:
    text = report.markdown(small(), "tenbin reproduce x --scale full", "2026-01-31")
    assert "`tenbin reproduce x --scale full`, 2026-01-31." in text
    assert "| change of x | -20 % | -18 % (-19.5 .. -16.5) | yes |" in text
    assert "| wait at y | 3 s | 4 s | no (1) |" in text and "| not printed | - | 1 |  |" in text
    assert "**Rows | columns**" in text and "| b | - |" in text and "| c | 12,345 |" in text
    assert "\n1. the log is missing\n" in text and "- Nothing else." in text


def test_what_is_told_of_several_stands_side_by_side() -> None:
    findings = (
        Finding("wait", 2.0, exactly(3.0), "s", (1.0, 4.0), of="easy"),
        Finding("gain", None, Estimate(5.0, 4.0, 6.0, 9), "%", of="easy"),
        Finding("wait", None, exactly(1.0), "s", note="one seed", of="fcfs"),
        Finding("both", 4.0, exactly(3.0), "h", (1.0, 4.0), of="easy"),
        Finding("both", 4.0, exactly(5.0), "h", (1.0, 4.0), of="fcfs"),
        Finding("alone", None, exactly(7.0)),
    )
    rows = (("a", 1, (1.5, None)), ("a", 1, (2.5, 3)), ("b", 1, (0.5, 4)))
    table = Table("T", ("k", "n", "low, high"), rows)
    text = report.markdown(Evaluation("P", "small", (), findings, (table,)), "c", "d")
    assert "| number | easy | fcfs |\n|---|---|---|\n" in text
    assert "| wait | 3 s, paper 2 s: yes | 1 s: (1) |\n| gain | 5 % (4 .. 6) |  |\n" in text
    assert "| both (paper 4 h) | 3 h: yes | 5 h: no |\n" in text
    assert "| alone | - | 7 |  |" in text and "1. one seed" in text
    assert "| a | 1 | 1.5, - |\n|  |  | 2.5, 3 |\n| b | 1 | 0.5, 4 |" in text
    assert findings[0].name == "wait, easy" and findings[-1].name == "alone"


def test_json_is_strict_and_has_verdicts() -> None:
    text = json.dumps(report.to_dict(small()), allow_nan=False)
    findings = json.loads(text)["findings"]
    assert [f["agrees"] for f in findings] == [True, False, None]
    assert findings[2]["tenbin"] == {"mean": 1.0, "low": None, "high": None, "n": 1}


def test_page_holds_the_pictures_itself() -> None:
    text = report.page(small())
    assert "Figure 1" in text and "<script src" not in text


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_is_there(name: str) -> None:
    __import__(EVALUATIONS[name])
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    shown = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"}).output
    assert re.search(rf"\b{name}\b", shown) and f"`{name}`" in page


def test_unknown_names_get_the_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVALUATIONS, "migration", "scheduler.evaluations.migration")
    with pytest.raises(BadInput, match="unknown evaluation 'migratoin'; did you mean migration"):
        evaluations.evaluate("migratoin", "small")


def test_command_prints_draws_and_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluations, "evaluate", lambda *_: small())
    runner = CliRunner()
    done = runner.invoke(app, ["reproduce", "migration"])
    assert done.exit_code == 0, done.output
    assert re.search(r"change of x +-20 % +-18 %", done.output)
    assert "--figure FILE.html draws them" in done.output and not list(tmp_path.iterdir())  # nothing unasked
    done = runner.invoke(app, ["reproduce", "migration", "--figure", "drawn.html"])
    assert "pictures: drawn.html" in done.output and "Figure 1" in (tmp_path / "drawn.html").read_text()
    done = runner.invoke(app, ["reproduce", "migration", "--json"])
    assert json.loads(done.stdout)["evaluation"] == "migration"
    done = runner.invoke(app, ["reproduce", "migration", "--json", "--markdown"])
    assert isinstance(done.exception, BadInput)
    done = runner.invoke(app, ["reproduce", "migration", "--figure", str(tmp_path / "no" / "x.html")])
    assert isinstance(done.exception, BadInput) and "--figure" in str(done.exception)


@pytest.mark.parametrize("target", ["no/x.html", "."])
def test_where_nothing_can_be_drawn_nothing_is_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    monkeypatch.setattr(evaluations, "evaluate", lambda *_: pytest.fail("computed in vain"))
    done = CliRunner().invoke(app, ["reproduce", "migration", "--figure", str(tmp_path / target)])
    refused = done.exception or done.output  # typer itself refuses a folder
    assert done.exit_code != 0 and "--figure" in f"{refused}{done.output}"


def test_a_disk_that_has_become_full_costs_the_pictures_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluations, "evaluate", lambda *_: small())
    monkeypatch.setattr("profiles.files.safe_files.write_chosen", full)
    done = CliRunner().invoke(app, ["reproduce", "migration", "--json", "--figure", "drawn.html"])
    assert isinstance(done.exception, BadInput) and "No space left" in str(done.exception)
    assert json.loads(done.stdout)["evaluation"] == "migration"
