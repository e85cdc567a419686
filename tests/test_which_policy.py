"""The policies that are offered: docs/which-policy.md, help and completion of tenbin up name the same.

Each answer of the page runs on its machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import DEFAULT, FORMER_DEFAULT, OFFERED, POLICIES, create, policy_class
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load
from tenbin.cli import app
from tenbin.commands.options import complete_offered_policy
from tenbin.server.serve import DEFAULT_FILE, default_policy, make_ready
from tests.support.paths import ROOT

PAGE, RUN_JOBS = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("which-policy", "run-jobs"))
POWER = """
budget_w = 600
[[pool]]
name = "node"
units = 16
base_w = 10
caps_w = [30, 50, 70, 90]
"""
# The first whose word is in the command: machine, jobs, and what a policy must suit to be taken by tenbin up
WORLDS = {
    "--devices": ("512xgpu+512xcpu", "generator:migration,jobs=50", "classes"),
    "--power-budget": ("power.toml", "generator:power-set1,jobs=20", "power"),
    "las-": ("8xnode[cpu=1,memory=1]", "generator:multiresource,jobs=100,closed_load=1", "nodes"),
    "match": ("16xnode[cores=4]", "generator:kernels,jobs=20", "sharing"),
    "": ("64", "generator:lublin,jobs=100", "counted"),
}
ANSWERS = re.findall(r"^\|.*`(tenbin up .+?)`", PAGE, re.MULTILINE)
UP = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]


def policy_of(command: str) -> str:
    """Return the policy of a command, as tenbin up reads its words."""
    return str(UP.make_context("up", command.split()[2:]).params["policy"] or DEFAULT)


def test_the_page_offers_what_the_registry_does() -> None:
    assert f"Take `{DEFAULT}`, the default" in PAGE and f"the default is `{DEFAULT}`" in RUN_JOBS
    assert {DEFAULT, *map(policy_of, ANSWERS)} == set(OFFERED)


def test_the_page_says_what_to_take_instead_of_each_other_policy() -> None:
    (others,) = re.findall(r"^All others .+?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    pairs = re.findall(r"`([\w-]+)` for ((?:`[\w-]+`,? *)+)", " ".join(others.split()))
    assert {instead for instead, _ in pairs} <= set(OFFERED)
    names = [name for _, several in pairs for name in re.findall(r"`(.+?)`", several)]
    assert sorted(names) == sorted(set(POLICIES) - set(OFFERED))


def test_a_queue_keeps_the_default_with_which_it_began(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert default_policy(home) == DEFAULT
    assert list(make_ready(home, False)) == []
    (home / "journal.sqlite").touch()
    assert default_policy(home) == DEFAULT
    (home / DEFAULT_FILE).write_text("fcfs\n")  # the default of another tenbin
    assert default_policy(home) == "fcfs"
    (home / DEFAULT_FILE).unlink()  # a tenbin that did not note it
    assert default_policy(home) == FORMER_DEFAULT
    assert list(make_ready(home, False)) == [] and default_policy(home) == FORMER_DEFAULT


def test_help_and_completion_offer_the_same() -> None:
    (option,) = (one for one in UP.params if one.name == "policy")
    assert re.findall(r"[\w-]+", option.help.split("(")[0].replace(" or ", " ")) == OFFERED
    assert complete_offered_policy("") == OFFERED


@pytest.mark.parametrize("command", ANSWERS)
def test_each_answer_runs_on_its_machine(command: str, tmp_path: Path) -> None:
    cluster, workload, suits = next(world for word, world in WORLDS.items() if word in command)
    name = policy_of(command)
    assert suits in policy_class(name).suits
    if cluster.endswith(".toml"):
        (tmp_path / cluster).write_text(POWER)
        cluster = str(tmp_path / cluster)
    machine = parse_cluster(cluster)
    work, metrics = load(workload, machine, 1), Accumulator(machine)
    summary = Simulator(machine, work.arrivals, create(name), work.settings, sinks=[metrics]).run()
    assert metrics.metrics().jobs + sum(summary.refused.values()) >= 20
    assert metrics.metrics().jobs > 0
