"""docs/which-policy.md: a policy is an answer or for evaluation only, and each answer runs on its machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import POLICIES, create, policy_class
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load
from tenbin.cli import app
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "which-policy.md").read_text()
POWER = """
budget_w = 600
[[pool]]
name = "node"
units = 16
base_w = 10
caps_w = [30, 50, 70, 90]
"""
# Machine and jobs for each section of the page, and what its policies must suit to be taken by tenbin up
WORLDS = {
    "Cores, or whole nodes of one kind": ("64", "generator:lublin,jobs=100", "counted power"),
    "Nodes with cores and memory, jobs of unknown run time": (
        "8xnode[cpu=1,memory=1]",
        "generator:multiresource,jobs=100,closed_load=1",
        "nodes",
    ),
    "Devices of several kinds": ("512xgpu+512xcpu", "generator:migration,jobs=50", "classes"),
    "A power budget": ("power.toml", "generator:power-set1,jobs=20", "power"),
    "Jobs that share a node": ("16xnode[cores=4]", "generator:kernels,jobs=20", "sharing"),
}


def answers() -> list[tuple[str, str]]:
    """Find the answers, as (section, command)."""
    sections = re.findall(r"^## (.+)\n((?:.*\n)*?)(?=^## |\Z)", PAGE, re.MULTILINE)
    return [(title, line) for title, text in sections for line in re.findall(r"`(tenbin up .+?)`", text)]


def policy_of(command: str) -> str:
    """Return the policy of a command, as tenbin up reads its words."""
    words = command.split()[2:]
    up = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]
    return str(up.make_context("up", words).params["policy"])


def test_each_policy_is_an_answer_or_for_evaluation_only() -> None:
    reached = {policy_of(line) for _, line in answers()}
    last = PAGE.split("## For evaluation only")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", last, re.MULTILINE)
    names = [{name for row in rows for name in re.findall(r"`(.+?)`", row[column])} for column in (0, 1)]
    assert reached | names[0] == set(POLICIES) and not reached & names[0]
    assert names[1] <= reached


def test_each_section_has_a_machine() -> None:
    assert {section for section, _ in answers()} == set(WORLDS)


@pytest.mark.parametrize(("section", "command"), answers(), ids=[f"{s[:6]}-{c}" for s, c in answers()])
def test_each_answer_runs_on_its_machine(section: str, command: str, tmp_path: Path) -> None:
    cluster, workload, suits = WORLDS[section]
    name = policy_of(command)
    assert set(suits.split()) & policy_class(name).suits
    if cluster.endswith(".toml"):
        (tmp_path / cluster).write_text(POWER)
        cluster = str(tmp_path / cluster)
    machine = parse_cluster(cluster)
    work, metrics = load(workload, machine, 1), Accumulator(machine)
    summary = Simulator(machine, work.arrivals, create(name), work.settings, sinks=[metrics]).run()
    assert metrics.metrics().jobs + sum(summary.refused.values()) >= 20
    assert metrics.metrics().jobs > 0


def test_the_right_options_go_with_it() -> None:
    for section, command in answers():
        assert ("--devices" in command) == (section == "Devices of several kinds")
        assert ("--power-budget" in command) == (section == "A power budget")
