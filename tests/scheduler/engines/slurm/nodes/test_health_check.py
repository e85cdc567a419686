"""The script of docs/slurm-setup.md as Slurm's HealthCheckProgram: it drains a node, and resumes it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from profiles.check import Check, Verdict
from profiles.check_store import CheckStore, stamp
from tests.support.paths import ROOT
from tests.support.slurm_lab import SlurmLab, require_slurm, slurmlab

pytestmark = pytest.mark.measures

NODE = "node1"
REFERENCES = 10
LONGEST_S = 120.0
LOOK_S = 3.0  # not more often, because each look uses processor time beside the check


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    require_slurm()
    folder = tmp_path_factory.mktemp("health")
    page = (ROOT / "docs" / "slurm-setup.md").read_text()
    (script,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", page, re.S)
    script = script.replace("/var/lib/tenbin", str(folder / "store"))
    program = folder / "tenbin-check"
    program.write_text(script.replace("/opt/tenbin/bin", str(Path(sys.executable).parent)))
    program.chmod(0o755)
    lines = dict(re.findall(r"^    (HealthCheck\w+)=(.*)$", page, re.M))
    lines |= {"HealthCheckProgram": str(program), "HealthCheckInterval": "12"}
    with slurmlab(folder, nodes=1, extra="\n".join(f"{key}={value}" for key, value in lines.items())) as made:
        for name, value in made.env.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.slow
def test_slurm_drains_a_node_that_fails_and_resumes_it(lab: SlurmLab) -> None:
    store = CheckStore(lab.folder / "store")

    def until(condition: str, absent: bool = False) -> str:
        end = time.monotonic() + LONGEST_S
        while True:
            said = lab.call("scontrol", "--oneliner", "show", "node", NODE)
            if (condition in said) is not absent:
                return said
            checks = [(check.verdict.value, check.reason) for check in store.of_node(NODE)]
            assert time.monotonic() < end, (said, checks)
            time.sleep(LOOK_S)

    first = _first(store)
    assert first.verdict in (Verdict.UNKNOWN, Verdict.DISTURBED), first.reason  # exit code 3: nothing is done
    assert "DRAIN" not in lab.call("scontrol", "--oneliner", "show", "node", NODE)
    _pretend(store, first, faster=20.0)
    said = until("Reason=tenbin check: ")
    assert "DRAIN" in said
    assert "arithmetic" in said
    _pretend(store, first, faster=1.0)
    until("DRAIN", absent=True)


def _first(store: CheckStore) -> Check:
    """Wait until Slurm has run the program once."""
    end = time.monotonic() + LONGEST_S
    while not (checks := store.of_node(NODE)):
        assert time.monotonic() < end
        time.sleep(LOOK_S)
    return checks[0]


def _pretend(store: CheckStore, first: Check, faster: float) -> None:
    """Let earlier checks have spread by a factor of 2, around arithmetic that was ``faster`` than it is."""
    store.path(NODE).unlink()
    for number in range(REFERENCES):
        factor = 2.0 ** (number / (REFERENCES - 1) - 0.5)
        figures = []
        for figure in first.figures:
            times = factor * (faster if figure.quantity == "compute_gflops" else 1.0)
            rounds = tuple(value * times for value in figure.rounds)
            figures.append(figure.model_copy(update={"value": figure.value * times, "rounds": rounds}))
        created = first.created - timedelta(hours=REFERENCES - number)
        of = {"id": stamp(created), "created": created, "figures": tuple(figures), "verdict": Verdict.PASS}
        store.append(first.model_copy(update=of))
