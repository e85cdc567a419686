"""``tenbin profile --nodes`` on a real cluster of three nodes, and what it does with nodes that refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.mpi.runner import MpiInstall
from profiles.clusters import ClusterStore
from profiles.errors import BadInput
from profiles.files.store import Store
from scheduler.engines.slurm.admin.slurm_conf import read_nodes
from scheduler.engines.slurm.admin.survey import group_by_partition, rounds, select_nodes, split_free
from scheduler.engines.slurm.slurm_commands import parse_nodes, step_failure
from tests.support.labs.slurm_lab import SlurmLab

COMMAND = [sys.executable, "-P", "-c", "from tenbin.cli import main; main()"]


def tenbin(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "TENBIN_STORE": str(store),
        "PYTHONPATH": ":".join(sys.path),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [*COMMAND, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=170
    )


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 31])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(count: int) -> None:
    tournament = rounds(count)
    assert len(tournament) == count - 1 + count % 2
    for pairs in tournament:
        players = [player for pair in pairs for player in pair]
        assert len(players) == len(set(players))
    met = [pair for pairs in tournament for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]


def test_of_very_many_nodes_each_has_a_limited_number_of_partners() -> None:
    met = [pair for pairs in rounds(200) for pair in pairs]
    assert len(met) == 31 * 100 and len(set(met)) == len(met)


NODES = parse_nodes(
    "\n".join(
        f"NodeName={name} CPUAlloc={used} CPUTot=8 NodeAddr={name} RealMemory=1000 State={state} "
        f"Partitions={partitions} Reason={reason}"
        for name, used, state, partitions, reason in (
            ("a1", 0, "IDLE", "cpu,all", ""),
            ("a2", 3, "MIXED", "cpu,all", ""),
            ("a3", 0, "IDLE+DRAIN", "cpu", "loud fan [root@x]"),
            ("g1", 0, "IDLE", "gpu", ""),
            ("x1", 0, "IDLE", "", ""),
        )
    )
)
PARTITIONS = {name: {"State": "UP"} for name in ("cpu", "all", "gpu")} | {"off": {"State": "DOWN"}}


def test_which_nodes_are_meant() -> None:
    assert [node.name for node in select_nodes("all", NODES, PARTITIONS)] == ["a1", "a2", "a3", "g1", "x1"]
    assert [node.name for node in select_nodes("a[1-2],g1", NODES, PARTITIONS)] == ["a1", "a2", "g1"]
    assert [node.name for node in select_nodes("cpu", NODES, PARTITIONS)] == ["a1", "a2", "a3"]
    with pytest.raises(BadInput, match="no node or partition 'a9'"):
        select_nodes("a9", NODES, PARTITIONS)
    free, refused = split_free(NODES)
    assert [node.name for node in free] == ["a1", "g1"]
    assert [(one.node, one.reason) for one in refused] == [
        ("a2", "it runs jobs (3 of 8 CPUs)"),
        ("a3", "it is drain+idle (loud fan)"),
        ("x1", "it is in no partition"),
    ]
    assert [(name, [node.name for node in some]) for name, some in group_by_partition(free, PARTITIONS)] == [
        ("cpu", ["a1"]),
        ("gpu", ["g1"]),
    ]


def test_what_a_node_that_refuses_says() -> None:
    failure = step_failure(["srun: error: node2: task 0: x", "/opt/python: No module named agent"], 1)
    assert "no tenbin" in failure.what and "same path" in failure.remedy
    assert "it refused the probe (exit code 3)" in step_failure([], 3).what


@pytest.mark.slow
def test_a_cluster_with_a_drained_node_is_measured_shown_drawn_and_told_to_slurm(
    lab: SlurmLab, mpi: MpiInstall, tmp_path: Path
) -> None:
    """The whole way; at its end slurmctld and the nodes start with what slurm-config wrote."""
    lab.call("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
    store, page = tmp_path / "store", tmp_path / "cluster.html"
    only = ("--quick", "--only", "network")
    done = tenbin("profile", "--nodes", "all", *only, "--report", str(page), "--json", store=store)
    assert done.returncode == 1, done.stderr  # one node is missing
    told = json.loads(done.stdout)
    assert sorted(told["nodes"]) == ["node1", "node3"]
    assert [(one["node"], one["reason"]) for one in told["refused"]] == [
        ("node2", "it is drain+idle (a fan is loud)")
    ]
    survey = ClusterStore(store).load("tenbinlab")
    between = survey.between("network_latency_s", "node3", "node1")
    assert between and between.coefficients[0].value > 0 and between.labels["ranks"] == "2"
    for name in ("node1", "node3"):
        profile = Store(store).load(name)
        assert profile.inventory.hostname == name and profile.samples["network"] > 0
        assert all(model.labels["scope"] == "node" for model in profile.models)
    assert not lab.call("squeue", "-h", "-o", "%i %T").strip()

    shown = tenbin("profile", "show", "--cluster", store=store).stdout
    assert "node1" in shown and "a fan is loud" in shown and "latency between pairs" in shown
    drawn = page.read_text()
    assert "a fan is loud" in drawn and drawn.count('<figure class="picture') >= 2

    told_to = tenbin("slurm", "config", "tenbinlab", "-o", str(tmp_path / "etc"), store=store)
    assert told_to.returncode == 0, told_to.stderr
    _starts_with(lab, (tmp_path / "etc/nodes.conf").read_text())


def _starts_with(lab: SlurmLab, nodes_conf: str) -> None:
    """Slurm runs with these lines in place of its own, and shows what they say."""
    assert [line.split()[0] for line in nodes_conf.splitlines() if line.startswith("NodeName")] == [
        "NodeName=node1",
        "NodeName=node3",
    ]
    before = lab.conf.read_text()
    kept = [line for line in before.splitlines() if not re.match(r"NodeName=node[13] ", line)]
    try:
        _restart(lab, "\n".join([*kept, nodes_conf]))
        seen = read_nodes(lab.call("scontrol", "-o", "show", "node"))
        for line in nodes_conf.splitlines():
            if not line.startswith("NodeName"):
                continue
            wanted = dict(word.split("=", 1) for word in line.split())
            node = seen[wanted["NodeName"]]
            assert node["AvailableFeatures"] == wanted["Feature"] and "tb_kind_" in wanted["Feature"]
            assert wanted["Feature"].startswith("f")  # the site's own are kept
            for key in ("Weight", "RealMemory", "Sockets", "CoresPerSocket", "ThreadsPerCore", "NodeAddr"):
                assert node[key] == wanted[key]
        lab.call("srun", "--nodelist=node1", "--constraint=f1", "true")
    finally:
        _restart(lab, before)


def _restart(lab: SlurmLab, conf: str) -> None:
    lab.kill_slurmctld()
    for node in lab.nodes:
        lab.power_off(node)
    lab.conf.write_text(conf)
    lab.mend()


def test_ctrl_c_keeps_what_was_measured_and_gives_the_nodes_back(lab: SlurmLab, tmp_path: Path) -> None:
    environment = os.environ | {"TENBIN_STORE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(
        [*COMMAND, "profile", "--nodes", "node[1-2]", "--only", "memory", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr
    started: set[str] = set()
    while len(started) < 2:
        line = process.stderr.readline()
        assert line
        started |= {name for name in ("node1", "node2") if f"{name}: memory" in line}
    time.sleep(1)  # some samples
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    told = json.loads(output)
    assert told["interrupted"]
    assert {*told["nodes"], *(one["node"] for one in told["refused"])} == {"node1", "node2"}
    lab._until(lambda: not lab.call("squeue", "-h", "-o", "%i").strip())


@pytest.mark.slow
def test_when_tenbin_is_killed_the_nodes_are_given_back(lab: SlurmLab, tmp_path: Path) -> None:
    environment = os.environ | {"TENBIN_STORE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(
        [*COMMAND, "profile", "--nodes", "node3", "--only", "memory"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr
    while "node3: memory" not in (line := process.stderr.readline()):
        assert line
    process.kill()
    process.communicate()
    lab._until(lambda: not lab.call("squeue", "-h", "-o", "%i").strip())


def test_names_that_are_not_there_and_a_cluster_that_was_never_measured(
    lab: SlurmLab, tmp_path: Path
) -> None:
    done = tenbin("profile", "--nodes", "node7", store=tmp_path)
    assert done.returncode == 2 and "no node or partition 'node7'; see: sinfo -N" in done.stderr
    done = tenbin("profile", "show", "--cluster", store=tmp_path)
    assert done.returncode == 2 and "tenbin slurm profile" in done.stderr
    done = tenbin("profile", "--nodes", "all", "--hosts", "a,b", store=tmp_path)
    assert done.returncode == 2 and "exclude each other" in done.stderr
