"""``tenbin simulate --experiment``: each simulation is a row of the table, each metric a picture."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.evaluations.policy_runs import Experiment, Setup
from scheduler.model.clusters import parse_cluster
from scheduler.workloads.arrivals import Unstated
from tenbin.commands.simulate import carry_out
from tests.support import programs

ALONE = ("--seed 0", "--resamples 20", "--block 7d", "--jobs-out a.csv", "--gantt a.html", "--json")
CASE = """
cluster = "32"
workload = "generator:lublin,jobs=60"
policies = ["fcfs", "easy"]
loads = [0.5, 0.9]
seeds = [1, 2]
"""


def test_every_simulation_is_a_row_as_it_is_alone(tmp_path: Path) -> None:
    file = tmp_path / "loads.toml"
    file.write_text(CASE)
    done = programs.tenbin("simulate", "--experiment", str(file))
    assert done.returncode == 0, done.stderr
    assert f"8 simulations: {tmp_path / 'loads.csv'}" in done.stdout
    with (tmp_path / "loads.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [(row["policy"], row["load"], row["seed"]) for row in rows] == [
        (policy, load, seed) for load in ("0.5", "0.9") for seed in "12" for policy in ("fcfs", "easy")
    ]
    alone = programs.tenbin(
        *("simulate", "-p", "easy", "-c", "32", "-w", "generator:lublin,jobs=60,load=0.9"),
        *("--seed", "2", "--json"),
    )
    (figures,) = json.loads(alone.stdout)["results"]
    for metric in ("mean_wait_s", "p95_wait_s", "utilisation_ratio", "makespan_s"):
        assert float(rows[-1][metric]) == pytest.approx(figures[metric])
    text = (tmp_path / "loads.html").read_text()
    assert text.count('<figure class="picture') == 4 and "Mean wait" in text and "<script" not in text


def test_without_loads_policies_stand_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    jobs = 'cluster = "32"\nworkload = "generator:lublin,jobs=30"\n'
    file.write_text(f'{jobs}policies = ["fcfs", "easy", "fcfs"]\nseeds = [3, 3]\n')  # once each
    done = programs.tenbin("simulate", "--experiment", str(file))
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 3
    assert '<g class="bars">' in (tmp_path / "one.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('cluster = "32"', ""), "cluster: is missing"),
        (("seeds", "sedes"), "sedes: is no field"),
        (("[1, 2]", "[1, -2]"), "seeds.1: must be"),
        (('["fcfs", "easy"]', "[]"), "policies: must have at least 1 item"),
        (("[0.5, 0.9]", "[0.5,"), "loads.toml: "),
        (("generator:lublin,jobs=60", "jobs.swf"), "loads: jobs.swf is a log, whose load is as it is"),
        (("generator:lublin,jobs=60", "generator:k-mix"), "load"),
        (('"easy"', '"esay"'), "unknown policy 'esay'"),
    ],
)
def test_bad_input_is_one_line(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "loads.toml"
    file.write_text(CASE.replace(*change))
    done = programs.tenbin("simulate", "--experiment", str(file))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "loads.csv").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("loads.toml", ("generator:lublin,jobs=60", "swf:loads.csv")),
        ("loads.toml", ('"32"', '"loads.csv"')),
        ("loads.csv", ()),
    ],
)
def test_what_is_read_is_not_written_over(
    name: str, change: tuple[str, str] | tuple[()], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = Experiment.model_validate(tomllib.loads(CASE.replace(*change) if change else CASE))
    setup = Setup(experiment.workload, parse_cluster("32"), 0, None, None, Unstated())
    with pytest.raises(BadInput, match=r"would be written over loads.csv"):
        carry_out(experiment, Path(name), setup)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--experiment none.toml", "--experiment none.toml: No such file"),
        ("--experiment none.toml -p easy", "--experiment and --policy are both given"),
        *(
            (f"--experiment none.toml {option}", f"and {option.split()[0]} are both given")
            for option in ALONE
        ),
        ("-p easy -c 4", "--workload is missing"),
    ],
)
def test_what_does_not_go_together(words: str, message: str) -> None:
    done = programs.tenbin("simulate", *words.split())
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
