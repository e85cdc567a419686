"""``tenbin slurm doctor``: of a real cluster, of settings, of rights, and of no Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.doctor import Finding
from scheduler.engines.slurm.admin import doctor
from scheduler.engines.slurm.admin.doctor import check_rights, examine, usable
from scheduler.engines.slurm.slurm_commands import Rights, Slurm, slurm_user
from tests.support.labs.slurm_lab import SlurmLab

HOME = Path("/tmp")
FIT = {
    "ClusterName": "c",
    "SchedulerParameters": "bf_interval=5,batch_sched_delay=0",
    "AuthInfo": "cred_expire=10",
    "ReturnToService": "2",
    "JobRequeue": "1",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "JobCompType": "jobcomp/none",
    "MinJobAge": "300 sec",
    "SlurmdTimeout": "30 sec",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "ConstrainCores": "yes",
    "ConstrainRAMSpace": "yes",
    "PrivateData": "none",
}


def one(findings: list[Finding], words: str) -> Finding:
    found = [f for f in findings if words in f.what]
    assert len(found) == 1, [f.what for f in findings]
    return found[0]


def judged(**changes: str) -> list[Finding]:
    return [f for f in doctor.config_findings(FIT | changes) if f.state != "ok"]


def test_a_cluster_that_is_as_it_should_be_has_nothing_to_change() -> None:
    assert judged() == []


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("SchedulerParameters", "(null)", "SchedulerParameters=batch_sched_delay=0 "),
        (
            "SchedulerParameters",
            "defer,bf_interval=5",
            "SchedulerParameters=defer,bf_interval=5,batch_sched_delay=0 ",
        ),
        ("AuthInfo", "(null)", "AuthInfo=cred_expire=10 "),
        ("AuthInfo", "socket=/s,cred_expire=120", "AuthInfo=socket=/s,cred_expire=10 "),
        ("ReturnToService", "0", "ReturnToService=2 "),
        ("ReturnToService", "1", "ReturnToService=2 "),
        ("JobRequeue", "0", "JobRequeue=1 "),
        ("AccountingStorageType", "accounting_storage/none", "JobCompType=jobcomp/filetxt "),
        ("MinJobAge", "2 sec", "MinJobAge=300 "),
        ("SlurmdTimeout", "300 sec", "SlurmdTimeout=30 "),
        ("SelectType", "select/linear", "SelectType=select/cons_tres "),
        ("SelectTypeParameters", "CR_CORE", "SelectTypeParameters=CR_Core_Memory "),
        ("ProctrackType", "proctrack/pgid", "ProctrackType=proctrack/cgroup "),
        ("TaskPlugin", "task/none", "TaskPlugin=task/cgroup,task/affinity "),
        ("ConstrainRAMSpace", "no", "ConstrainRAMSpace=yes in cgroup.conf"),
        ("PrivateData", "jobs,usage", "operator"),
    ],
)
def test_a_setting_that_hinders_is_told_with_the_line_to_add(setting: str, value: str, line: str) -> None:
    (found,) = judged(**{setting: value})
    assert line in found.remedy + " "
    assert found.reason


def test_settings_that_a_version_does_not_show_are_no_error() -> None:
    assert all(f.state in ("ok", "limited") for f in doctor.config_findings({"ClusterName": "c"}))


@pytest.mark.parametrize(
    ("level", "lacks"),
    [("None", ["suspend", "partitions"]), ("Operator", ["partitions"]), ("Administrator", [])],
)
def test_rights(level: str, lacks: list[str]) -> None:
    found = list(check_rights(Rights("ann", 1000, "slurm", level)))
    lacking = " ".join(f.what for f in found if f.state == "limited")
    assert [word for word in ("suspend", "partitions") if word in lacking] == lacks
    assert all("sacctmgr modify user ann set adminlevel" in f.remedy for f in found if f.state == "limited")


def test_slurm_user_may_do_everything() -> None:
    for user, uid in (("slurm", 64030), ("root", 0)):
        name = slurm_user({"SlurmUser": "slurm(64030)"})
        (found,) = check_rights(Rights(user, uid, name, "", "no slurmdbd"))
        assert found.state == "ok"


def test_a_real_cluster(lab: SlurmLab) -> None:
    lab.call("scontrol", "update", "nodename=node2", "state=drain", "reason=a fan is loud")
    findings = examine(Slurm(), HOME)
    assert usable(findings)
    assert one(findings, "cluster tenbinlab answers").state == "ok"
    assert one(findings, "everything").topic == "rights"
    drained = one(findings, "node2 is drain+idle")
    assert drained.reason == "a fan is loud" and "NodeName=node2 State=RESUME" in drained.remedy
    assert one(findings, "2 of 3 can take jobs")
    assert one(findings, "2 of 2 that were asked have this tenbin")
    assert one(findings, "they all see /tmp").state == "ok"
    assert [f.what for f in findings if f.topic == "settings" and f.state != "ok"] == [
        "ProctrackType is proctrack/linuxproc",
        "TaskPlugin is task/none",
    ]


def test_a_folder_that_is_not_shared_and_a_node_that_cannot_run_tenbin(
    lab: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node of the lab has a /dev/shm of its own."""
    found = list(doctor.node_findings(Slurm().nodes(), Path("/dev/shm/tenbin/coordinator")))
    assert [f.what for f in found if f.state == "limited"] == [
        f"{node} does not see /dev/shm" for node in lab.nodes
    ]
    monkeypatch.setattr(sys, "executable", "/opt/nobody/python")
    found = list(doctor.node_findings(Slurm().nodes(), HOME))
    assert len(found) == 3 and all("has no /opt/nobody/python" in f.what for f in found)


def test_what_is_said_of_a_plain_user_is_so(lab: SlurmLab) -> None:
    """Slurm itself refuses what the doctor says that it will, and grants the rest."""
    as_nobody = [shutil.which("setpriv") or "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def may(*command: str) -> bool:
        return (
            subprocess.run([*as_nobody, *command], capture_output=True, check=False, timeout=60).returncode
            == 0
        )

    number = subprocess.run(
        [*as_nobody, "sbatch", "--parsable", "--hold", "--chdir=/", "--output=/dev/null", "--wrap=sleep 60"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    assert may("scontrol", "update", f"job={number}", "ReqNodeList=node2")
    assert may("scontrol", "release", number)
    assert not may("scontrol", "update", "nodename=node2", "state=drain", "reason=x")
    assert not may("scontrol", "create", "partition=hot", "nodes=node1")
    lab._until(lambda: lab.call("squeue", "-h", "-j", number, "-o", "%T").strip() == "RUNNING")
    assert not may("scontrol", "suspend", number)
    assert may("scancel", number)


def test_no_slurm_a_wrong_configuration_and_no_munge(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "slurm.conf"
    strange.write_text(lab.conf.read_text().replace("munge/sock", "munge/gone"))
    monkeypatch.setenv("SLURM_CONF", str(strange))
    found = [f for f in examine(Slurm(), HOME) if f.state == "missing"]
    assert len(found) == 1 and "munged" in found[0].remedy
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    (found_none,) = examine(Slurm(), HOME)
    assert "none.conf, which is not there" in found_none.what
    monkeypatch.setenv("PATH", "/nonexistent")
    (found_nothing,) = examine(Slurm(), HOME)
    assert found_nothing.what == "no Slurm here" and "apt install slurm-client" in found_nothing.remedy
    monkeypatch.undo()


def test_tools_that_hang_and_versions_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun", "salloc"):
        (tmp_path / tool).write_text("#!/bin/sh\necho slurm 31.11.2\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    version, controller = examine(Slurm(), HOME)
    assert version.state == "limited" and "31.11" in version.what
    assert controller.state == "missing" and "does not know" in controller.what
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho SLURM, the next generation\n")
    (found,) = examine(Slurm(), HOME)
    assert found.state == "missing" and "the next generation" in found.what
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    (found,) = examine(Slurm(timeout_s=0.5), HOME)
    assert "did not answer within 0.5 s" in found.what and found.remedy


def test_the_command_without_slurm_says_so_and_exits_4(tmp_path: Path) -> None:
    code = "from tenbin.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "doctor", "--engine", "slurm", "--json"],
        env={"PATH": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 4
    assert json.loads(done.stdout)[0]["state"] == "missing"
