"""The cluster that the other tests use is a real one, and comes back from what is done to it."""

from __future__ import annotations

from tests.support.labs.slurm_lab import SlurmLab


def test_jobs_run_on_the_node_that_is_named(lab: SlurmLab) -> None:
    found = lab.call("srun", "-l", "-N3", "hostname")
    assert sorted(found.split("\n")) == ["", "0: node1", "1: node2", "2: node3"]


def test_a_node_that_lost_its_power_comes_back(lab: SlurmLab) -> None:
    lab.call("srun", "-w", "node2", "-N1", "true")
    lab.power_off("node2")
    lab.call("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    assert lab.call("sinfo", "-h", "-n", "node2", "-o", "%T").startswith("down")
    lab.kill_slurmd("node3")
    lab.kill_slurmctld()
    lab.mend()
    assert lab.call("srun", "-w", "node2,node3", "-N2", "hostname").count("node") == 2
