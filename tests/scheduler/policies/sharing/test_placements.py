"""Cores of the jobs of a pair on a node of two sockets, made of text files: against cores by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.inventory import Roots, read_network
from probes.topology import read_topology
from scheduler.model.interference import FAR, NEAR, PACKED, SPREAD, Pressure, Sockets, sockets_of
from scheduler.policies.sharing.pairing import rule_bindings
from scheduler.policies.sharing.pairs import suggestions
from tenbin.commands.measure import pairs as command
from tests.support.job_profiles import make_job
from tests.support.labs.machines import Tree, intel_two_sockets, virtual_machine


def sockets(tree: Tree, cpus: int) -> Sockets:
    topology = read_topology(tree.sysfs, set(range(cpus)))
    return sockets_of(topology, read_network(Roots.of(tree.settings())))


def test_two_sockets_of_four_cores(tmp_path: Path) -> None:
    """The card is on the second: near are its cores 4 to 7, far 0 to 3; of each core one thread."""
    found = sockets(intel_two_sockets(tmp_path), 16)
    assert found.cores == ((4, 5, 6, 7), (0, 1, 2, 3)) and found.card and not found.why_not
    assert found.lay((SPREAD, SPREAD), (4, 4)) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert found.lay((NEAR, FAR), (4, 4)) == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert found.lay((FAR, NEAR), (2, 3)) == [(0, 1), (4, 5, 6)]
    assert found.lay((PACKED,), (8,)) == [(0, 1, 2, 3, 4, 5, 6, 7)]
    assert found.lay((NEAR, FAR), (5, 1)) is None and found.lay((SPREAD, SPREAD), (4, 5)) is None


def test_one_socket_is_told(tmp_path: Path) -> None:
    assert "one socket" in sockets(virtual_machine(tmp_path), 4).why_not


def test_the_rule_places_as_in_the_paper() -> None:
    """EP-MG and CG-LU spread, FT beside FT apart (its comprobe degradation is 11.2 %, it talks)."""
    calm, loud = Pressure(memory_percent=3.1), Pressure(26.2, 11.2, 16.8, 20.0)
    assert rule_bindings([calm]) == (PACKED,)
    assert rule_bindings([calm, Pressure(38.2, 4.3, 6.5, 3.0)]) == (SPREAD, SPREAD)
    assert rule_bindings([loud, loud]) == (NEAR, FAR)
    assert rule_bindings([calm, calm, loud]) == (SPREAD,) * 3


def test_pairs_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [make_job(name, cpus=(0, 1)) for name in ("a", "b")]
    found = sockets(intel_two_sockets(tmp_path), 16)
    advice = suggestions(jobs)
    command._print_placements(advice, jobs, found, "")
    shown = capsys.readouterr().out
    assert "a 2x4: CPUs 0, 4" in shown and "b 2x4: CPUs 1, 5" in shown
    rows = command._placed(advice[0], jobs, found)
    assert [(row["job"], row["placement"]) for row in rows] == [("a", "2x4"), ("b", "2x4")]
    command._print_placements(advice, jobs, None, "one socket")
    assert capsys.readouterr().out == "\nNo placements (4x2, 2x4, 2x4F, 2x4B): one socket.\n"
