"""A power budget over a cluster whose nodes have emulated caps of their own, which the jobs there obey."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.emulation.emulated_tree import CREDIT_S, SWING_S
from agent.emulation.machines import MACHINES
from tests.support.coordinator import Up
from tests.support.labs.repeated import Repeated
from tests.support.labs.slurm_lab import SlurmLab, short_slurmlab

pytestmark = pytest.mark.timeout(900)
MACHINE = MACHINES["intel-1s"]
ORIGINAL_W, DRAM_W = 90.0, MACHINE.dram_w
REST_W = MACHINE.idle_w + DRAM_W  # of a node
WINDOW_S = 1.0  # over which RAPL holds its caps as well
# By which the emulation of a node may be ahead of its cap: what it saves up, and its steps.
AHEAD_J = (CREDIT_S + 2 * SWING_S) * (MACHINE.busy_w["compute"] - MACHINE.idle_w)
# Burns so much processor time on both CPUs of each of its nodes, and says the cap at its begin and end.
SPIN = """
import os, sys, time
from pathlib import Path
def cap():
    zone = Path(sys.argv[2], os.uname().nodename, "class/powercap/intel-rapl:0")
    while True:
        text = (zone / "constraint_0_power_limit_uw").read_text()
        if text:
            return int(text) / 1e6
first = cap()
other = os.fork()
while time.process_time() < float(sys.argv[1]):
    sum(range(1000))
if other:
    os.wait()
    os.write(1, f"{os.uname().nodename} {first} {cap()}\\n".encode())
"""


@pytest.fixture(scope="module")
def _cluster() -> Iterator[SlurmLab]:
    with short_slurmlab(power="intel-1s") as lab:
        yield lab


@pytest.fixture
def lab(lab: SlurmLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SlurmLab:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lab


def start(up: Up, lab: SlurmLab, budget_w: float, policy: str = "parm") -> None:
    options = ("--policy", policy, "--power-budget", str(budget_w), "--emulate", str(lab.power))
    up.start("--engine", "slurm", *options)


def zone(lab: SlurmLab, node: str) -> Path:
    return lab.power / node / "class/powercap/intel-rapl:0"


def read(path: Path) -> int:
    """Read a file that is empty for an instant while another process writes it."""
    while not (text := path.read_text()):
        pass
    return int(text)


def caps_w(lab: SlurmLab) -> list[float]:
    return [read(zone(lab, node) / "constraint_0_power_limit_uw") / 1e6 for node in lab.nodes]


def untouched(lab: SlurmLab) -> bool:
    return caps_w(lab) == [ORIGINAL_W] * len(lab.nodes)


def holds(seconds: float) -> dict[str, Any]:
    """Return a job that keeps its node and its cap, and computes nothing."""
    return {"command": ["sleep", str(seconds)], "cores": 2, "folder": "/", "time_s": 600, "requeue": False}


def spin(lab: SlurmLab, seconds: float, **needs: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", SPIN, str(seconds), str(lab.power)]
    if "nodes" in needs:
        command = ["srun", "--ntasks-per-node=1", "--overlap", "--mem=0", *command]
    needs = {"cores": 2, **needs} if "nodes" not in needs else needs
    return {"command": command, "folder": "/", "time_s": 600, **needs}


class Sampler(Repeated):
    """Looks at the caps and the counters of all nodes, all the time.

    Attributes:
        most_w: sum of the caps of the nodes that are under one, with their memory, and of the others at rest.
        measured: the energy of packages and memory of all nodes, between two times.
    """

    def __init__(self, lab: SlurmLab) -> None:
        super().__init__(0.002)
        self.most_w, self._lab = 0.0, lab
        self.measured: list[tuple[float, float, float]] = []

    def look(self) -> None:
        caps = caps_w(self._lab)
        self.most_w = max(self.most_w, sum(REST_W if cap == ORIGINAL_W else cap + DRAM_W for cap in caps))
        energy_j, began = 0.0, time.monotonic()
        for node in self._lab.nodes:
            package = zone(self._lab, node)
            energy_j += (read(package / "energy_uj") + read(package / "intel-rapl:0:2/energy_uj")) / 1e6
        self.measured.append((began, time.monotonic(), energy_j))

    def most_measured_w(self) -> float:
        """Find the largest mean of any window, without what the emulation may be ahead."""
        most_w, first, ahead_j = 0.0, 0, AHEAD_J * len(self._lab.nodes)
        for began, ended, energy_j in self.measured:
            while began - self.measured[first][0] > WINDOW_S:
                used_j = energy_j - self.measured[first][2] - ahead_j
                most_w = max(most_w, used_j / (ended - self.measured[first][0]))
                first += 1
        return most_w


@pytest.mark.measures
def test_never_over_the_budget(up: Up, lab: SlurmLab) -> None:
    """Jobs on one node and on two, whose caps change while they run, and of which one fails.

    The coordinator is killed twice and a supervisor once. At no instant do the caps, and what nodes without
    a job draw, exceed the budget, nor does what is measured; in the end everything is as it was.
    """
    budget_w = 115.0
    start(up, lab, budget_w, "parm,alpha=0")
    specs = [spin(lab, 0.5 + 0.5 * (i % 3)) for i in range(5)]
    specs += [spin(lab, 0.5, nodes=2), spin(lab, 0.5, nodes=1, max_nodes=2)]
    specs += [{"command": ["sh", "-c", "exit 3"], "cores": 2}]
    with Sampler(lab) as sampler:
        jobs = up.client.submit_all(specs)
        for done in (2, 4):
            up.until(lambda done=done: sum(job.done() for job in jobs) >= done, 240)  # type: ignore[misc]
            up.kill()
            start(up, lab, budget_w, "parm,alpha=0")
            if done == 2:
                kill_a_supervisor(up, lab)
        found = [job.wait(300) for job in jobs]
        up.until(lambda: untouched(lab))
    stages = [each["stage"] for each in found]
    assert stages == ["done"] * 7 + ["failed"], [each["trouble"] for each in found]
    assert sampler.looks > 100 and 3 * REST_W < sampler.most_w <= budget_w
    assert 3 * REST_W < sampler.most_measured_w() <= budget_w
    for each in found[:7]:
        seen = [line.split() for line in Path(each["stdout"]).read_text().splitlines()]
        assert {name for name, *_ in seen} <= set(lab.nodes)
        assert all(0 < float(cap) < ORIGINAL_W for _, *caps in seen for cap in caps), each
        assert each["usage"]["emulated"] and each["usage"]["energy_j"] > 0
    assert len({line.split()[0] for line in Path(found[5]["stdout"]).read_text().splitlines()}) == 2
    assert any(what["what"] == "power cap" for each in found for what in each["history"])
    assert not list((up.home.parent / "state").rglob("*.json"))


def kill_a_supervisor(up: Up, lab: SlurmLab) -> None:
    """SIGKILL, on whatever node."""

    def found() -> list[int]:
        """Each is a child of its batch process."""
        folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
        pids = {int(folder.name) for folder in folders if supervises(folder, up.home)}
        return [pid for pid in pids if parent(pid) in pids]

    up.until(found, 60)
    for pid in found()[:1]:
        os.kill(pid, signal.SIGKILL)


def supervises(process: Path, home: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"agent/supervisor/batch_process.py") for word in words) and words[
        -2
    ].startswith(bytes(home))


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@pytest.mark.slow
def test_caps_are_put_back_after_whatever_was_killed(up: Up, lab: SlurmLab) -> None:
    """The coordinator: the job keeps its cap. Its supervisor too: at the next start."""
    start(up, lab, 100.0)
    (job,) = up.client.submit_all([holds(120.0)])
    up.until(lambda: not untouched(lab), 60)
    before = caps_w(lab)
    up.kill()
    assert caps_w(lab) == before
    kill_a_supervisor(up, lab)
    up.until(lambda: not lab.call("squeue", "-h", "-t", "R,CG", "-o", "%i").strip(), 60)
    start(up, lab, 100.0)
    assert untouched(lab)
    assert job.wait(90)["stage"] == "failed"


def test_refusals(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    emulated = ("--emulate", str(lab.power))
    for options, said in (
        (("--policy", "parm", "--power-budget", "46", *emulated), "3 nodes draw 4[45]"),
        (("--policy", "parm", "--power-budget", "80", "--emulate", str(tmp_path / "no")), "no such folder"),
        (("--policy", "parm", "--power-budget", "80"), "node1"),
        (("--policy", "parm", "--power-budget", "80", "--unit", "1", *emulated), "jobs get whole nodes"),
    ):
        done = up.run("up", "--engine", "slurm", *options)
        assert done.returncode in (2, 4) and re.search(said, done.stderr), (options, done.stderr)
        assert "Traceback" not in done.stderr
