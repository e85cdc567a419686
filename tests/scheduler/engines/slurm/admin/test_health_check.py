"""The health check of the pages: slurmd runs it, drains its node when it fails, and takes it back.

That others use the machine meanwhile is no subject here, so no check counts as disturbed or limited.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiles.checks.check import Check, CheckStore, Verdict
from profiles.checks.figures import sign
from tests.support.labs.slurm_lab import SlurmLab, require_slurm, slurmlab

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(400)]

PAGE = Path(__file__).parents[5] / "docs/slurm-setup.md"
INTERVAL_S = 5
NODE = "node1"
TENBIN = """#!/bin/sh
export XDG_STATE_HOME={state}
exec {python} -P -c '
import sys
from dataclasses import replace
import agent.node_check, profiles.checks.verdict
from probes.registry import BATTERY, CHECKS, DEVICES
CHECKS[BATTERY] = replace(CHECKS[BATTERY], quick_s=2.0)
agent.node_check.LATEST_S[BATTERY] = 25.0
del CHECKS[DEVICES]
profiles.checks.verdict.is_disturbed = profiles.checks.verdict.is_limited = lambda conditions: False
from tenbin.cli import main
main()' "$@"
"""


@pytest.fixture
def store(tmp_path: Path) -> CheckStore:
    return CheckStore(tmp_path / "store")


@pytest.fixture
def lab(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """Yield a cluster of one node with the lines and the script of the page, at a shorter interval."""
    require_slurm()
    text = PAGE.read_text()
    script = re.search(r"```sh\n(#!/bin/sh\n.*?)```", text, re.DOTALL)
    lines = re.findall(r"^    (HealthCheck\w+)=(.*)$", text, re.MULTILINE)
    assert script is not None and len(lines) == 3
    tenbin, program = tmp_path / "tenbin", tmp_path / "tenbin-check"
    tenbin.write_text(TENBIN.format(python=sys.executable, state=tmp_path / "state"))
    said = script[1].replace("/shared/tenbin/.venv/bin/tenbin", str(tenbin))
    said = said.replace("/etc/slurm/slurm.conf", str(tmp_path / "slurm.conf"))
    program.write_text(said.replace("/var/lib/tenbin", str(tmp_path / "store")))
    for file in (tenbin, program):
        file.chmod(0o755)
    settings = dict(lines) | {"HealthCheckProgram": str(program), "HealthCheckInterval": str(INTERVAL_S)}
    extra = "\n".join(f"{name}={value}" for name, value in settings.items())
    folder = tmp_path_factory.mktemp("health")
    (tmp_path / "slurm.conf").symlink_to(folder / "slurm.conf")
    with slurmlab(folder, nodes=1, extra=extra) as made:
        yield made


def earlier(check: Check, factor: float) -> str:
    """Make eight earlier checks, by which the machine was about ``factor`` times as good."""
    lines = []
    for number in range(8):
        spread = factor * (0.5 if number % 2 else 2.0) if factor == 1 else factor * (1 + number / 1000)
        figures = []
        for figure in check.figures:
            value = figure.value * spread ** sign(figure.quantity)
            figures.append(figure.model_copy(update={"value": value, "rounds": (value,)}))
        update = {"figures": tuple(figures), "verdict": Verdict.PASS, "id": f"{check.id}{number}"}
        lines.append(check.model_copy(update=update).model_dump_json() + "\n")
    return "".join(lines)


def test_slurm_drains_a_node_that_fails_and_takes_it_back(lab: SlurmLab, store: CheckStore) -> None:
    def said() -> str:
        return lab.call("scontrol", "--oneliner", "show", "node", NODE)

    def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (said(), store.of_node(NODE)[-1:], lab.told())
            time.sleep(0.5)

    until(lambda: any(len(check.figures) > 8 for check in store.of_node(NODE)))
    first = next(check for check in store.of_node(NODE) if len(check.figures) > 8)
    assert first.verdict is Verdict.UNKNOWN and "DRAIN" not in said()
    store.path(NODE).write_text(earlier(first, 20.0))
    until(lambda: "DRAIN" in said())
    assert re.search(rf"Reason=tenbin check: {NODE} changed: \d+ of \d+ figures are worse", said())
    store.path(NODE).write_text(earlier(first, 1.0))
    until(lambda: "DRAIN" not in said())
    assert "Reason=" not in said() and store.of_node(NODE)[-1].verdict is Verdict.PASS
