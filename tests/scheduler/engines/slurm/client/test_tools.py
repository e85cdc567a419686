"""Slurm's tools: what they print is understood or refused, never guessed; what goes wrong is a sentence."""

from __future__ import annotations

import stat
import time
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import Unavailable
from scheduler.engines.slurm.slurm_commands import (
    Batch,
    Slurm,
    SlurmError,
    SlurmForbidden,
    SlurmNodeRefused,
    SlurmNoPartition,
    SlurmNotNow,
    SlurmNotSuspended,
    SlurmPartitionInUse,
    SlurmSilent,
    SlurmTooLate,
    SlurmUnknownJob,
    error_of,
    new_separator,
    parse_config,
    parse_hosts,
    parse_jobs,
    parse_nodes,
    parse_partitions,
    parse_rows,
    parse_submitted,
    parse_words,
)
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.waiting import until

NODE = (
    "NodeName=node1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=1 CPUTot=2 CPULoad=0.80 AvailableFeatures=f1 "
    "NodeAddr=10.0.0.11 NodeHostName=node1 Version=22.05.8 OS=Linux 6.1 CPUTot=99  RealMemory=2000 "
    "AllocMem=96 FreeMem=900 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=main,big BootTime=2026-11-22 "
    "Reason=disk full State=DOWN [root@2026-11-22T00:00:01]"
)


def test_a_node() -> None:
    (node,) = parse_nodes(NODE + "\n")
    assert (node.name, node.cpus, node.cpus_used) == ("node1", 2, 1)
    assert parse_words(NODE)["NodeAddr"] == "10.0.0.11"
    assert node.memory_mb == pytest.approx(2000 * 2**20 / 1e6) and node.partitions == ("main", "big")
    assert node.states == {"IDLE", "DRAIN"} and not node.usable and not node.lost
    assert node.reason == "disk full State=DOWN"


@pytest.mark.parametrize(
    ("state", "usable", "lost", "silent"),
    [
        ("IDLE", True, False, False),
        ("MIXED+CLOUD", True, False, False),
        ("ALLOCATED*", False, False, True),
        ("MIXED+NOT_RESPONDING", False, False, True),
        ("DOWN*", False, True, True),
        ("DOWN+DRAIN", False, True, False),
        ("IDLE~", False, True, False),
        ("UNKNOWN", False, False, False),
        ("ALLOCATED+DRAIN", False, False, False),
    ],
)
def test_states_of_nodes(state: str, usable: bool, lost: bool, silent: bool) -> None:
    """As 22.05 prints them, and as older and newer versions do."""
    (node,) = parse_nodes(NODE.replace("State=IDLE+DRAIN", f"State={state}"))
    assert (node.usable, node.lost, node.silent) == (usable, lost, silent)


def test_jobs_whatever_is_in_their_comments() -> None:
    lines = "7|RUNNING|None|node[1-2]|2026-11-22T09:00:01|tenbin:a:1:1\n8|PENDING|Priority||N/A|x\ny\n"
    lines += "9_[1-3]|PENDING|Priority||N/A|(null)\n"
    lines += "10|COMPLETED|None|node1|N/A|a/b/c\n"
    text = lines.replace("|", "|0a|").replace("\n", "|0a|\n").replace("x|0a|\ny", "x\ny").replace("/", "|")
    found = parse_jobs(text, "|0a|")
    assert [job.id for job in found] == [7, 8, 10]
    assert found[0].nodes == ("node1", "node2") and found[2].comment == "a|b|c" and found[2].final
    assert found[1].comment == "x\ny"
    assert (
        found[0].start_s == datetime(2026, 11, 22, 9, 0, 1).astimezone().timestamp() and found[1].start_s == 0
    )


@given(st.lists(st.lists(st.text(), min_size=6, max_size=6), max_size=4))
def test_nothing_in_a_column_makes_another_row(made: list[list[str]]) -> None:
    mark = new_separator()
    text = "".join("".join(cell + mark for cell in row) + "\n" for row in made)
    for row in made[:1]:  # a new line at the very beginning is that of a row before
        row[0] = row[0].removeprefix("\n")
    assert parse_rows(text, mark, 6) == made
    assert new_separator() != mark


@given(st.text(max_size=80))
def test_no_answer_is_too_odd(text: str) -> None:
    readers = (
        partial(parse_jobs, separator="|"),
        partial(parse_rows, separator="|", columns=3),
    )
    for reader in (
        *readers,
        parse_nodes,
        parse_partitions,
        parse_config,
        parse_hosts,
        parse_submitted,
    ):
        try:
            reader(text)
        except Unavailable as error:
            assert "\n" not in str(error)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120), st.integers(1, 3)), max_size=12))
def test_lists_of_hosts(made: list[tuple[str, int, int]]) -> None:
    """Brackets are only short for the names."""
    names = [f"{name}{number:0{width}d}" for name, number, width in made]
    short = ",".join(f"{name}[{number:0{width}d}]" for name, number, width in made)
    assert list(parse_hosts(short)) == list(parse_hosts(",".join(names))) == names


def test_lists_of_hosts_as_slurm_has_them(lab: SlurmLab) -> None:
    for text in ("node[1-3]", "n[008-011,20],m1", "r[1-2]c[0-3]", "x"):
        assert list(parse_hosts(text)) == lab.call("scontrol", "show", "hostnames", text).split()


@pytest.mark.parametrize("text", ["node[1-", "node[a-b]", "n[]"])
def test_half_a_list_is_refused(text: str) -> None:
    with pytest.raises(Unavailable, match="a list of nodes"):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("said", "kind", "remedy"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            SlurmSilent,
            "slurmctld",
        ),
        ("squeue: error: Unexpected missing socket error", SlurmSilent, "slurmctld"),
        ("scancel: error: Message receive failure", SlurmSilent, "slurmctld"),
        (
            "sbatch: error: invalid partition specified: lounge\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            SlurmNoPartition,
            "doctor",
        ),
        (
            "sbatch: error: Memory specification can not be satisfied\n"
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            SlurmError,
            "Memory specification can not be satisfied; Batch job submission failed: Requested node",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid node name specified",
            SlurmNodeRefused,
            "sinfo",
        ),
        ("slurm_load_jobs error: Invalid job id specified", SlurmUnknownJob, "doctor"),
        ("Job is no longer pending execution for job 3", SlurmTooLate, "doctor"),
        ("scancel: error: Job/step already completing or completed", SlurmTooLate, "doctor"),
        ("Job has already finished for job 3", SlurmTooLate, "doctor"),
        ("Job is not suspended", SlurmNotSuspended, "doctor"),
        ("slurm_suspend error: Job is pending execution", SlurmError, "doctor"),
        ("Kill job error on job id 3: Job can not be altered now, try again later", SlurmNotNow, "later"),
        (
            "Job update not available right now, the DB index is being set, try again in a bit for job 2",
            SlurmNotNow,
            "DB index",
        ),
        ("Access/permission denied for job 3", SlurmForbidden, "doctor"),
        ("slurm_delete_partition error: Partition is in use", SlurmPartitionInUse, "doctor"),
        ("slurm_update error: what no version says yet", SlurmError, "what no version says yet"),
        ("", SlurmError, "exit code 1"),
        (
            "scontrol: error: If munged is up, restart with --num-threads=10\nMunge encode failed",
            SlurmSilent,
            "munge",
        ),
    ],
)
def test_errors_name_the_remedy(said: str, kind: type[SlurmError], remedy: str) -> None:
    error = error_of(("sbatch",), said, 1)
    assert type(error) is kind and remedy in str(error) and "\n" not in str(error)


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def test_a_tool_that_hangs_and_one_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "squeue", "exec sleep 60")
    fake(tmp_path, "sbatch", "echo slurm 99 of tomorrow")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin".replace("/usr/bin:/bin", "/bin"))
    slurm, began = Slurm(timeout_s=0.5), time.monotonic()
    with pytest.raises(SlurmSilent, match="did not answer"):
        slurm.jobs()
    assert time.monotonic() - began < 30
    with pytest.raises(Unavailable, match="does not know"):
        slurm.version()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="no such program"):
        Slurm().nodes()


def test_a_real_cluster(lab: SlurmLab, tmp_path: Path) -> None:
    slurm = Slurm()
    assert slurm.version() >= (20, 11) and slurm.config()["ClusterName"] == "tenbinlab"
    nodes = slurm.nodes()
    assert [node.name for node in nodes] == list(lab.nodes) and all(node.usable for node in nodes)
    assert {node.cpus for node in nodes} == {lab.cpus} and "main" in slurm.partitions()
    output = tmp_path / "out"
    batch = Batch(
        "#!/bin/sh\nhostname\n", "a name", "tenbin:x|y", "main", ("node3",), 1, 2, 100.0, 60.0, output
    )
    number = slurm.submit(batch)
    deadline = time.monotonic() + 60
    while not (jobs := [job for job in slurm.jobs() if job.id == number and job.final]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert jobs[0].state == "COMPLETED" and jobs[0].comment == "tenbin:x|y" and jobs[0].nodes == ("node3",)
    assert output.read_text() == "node3\n"
    for field in ({"partition": "nope"}, {"nodes": ("node9",)}, {"memory_mb": 1e6}):
        with pytest.raises(SlurmError):
            slurm.submit(Batch(**{**vars(batch), **field}))  # type: ignore[arg-type]


def test_what_a_real_cluster_refuses(lab: SlurmLab) -> None:
    """Each class by Slurm's own words, whatever its version says."""
    slurm = Slurm()

    def refused(kind: type[SlurmError], *command: str) -> None:
        with pytest.raises(SlurmError) as caught:
            slurm.call(*command)
        assert type(caught.value) is kind, caught.value

    def submitted(*options: str, runs: str = "sleep 600") -> str:
        return slurm.call("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={runs}").strip()

    def state(job: str) -> str:
        return slurm.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

    for command in (
        ("squeue", "--noheader", "--jobs=99999"),
        ("scontrol", "show", "job", "99999"),
        ("scontrol", "update", "JobId=99999", "StartTime=now"),
        ("scancel", "--batch", "--signal=USR1", "99999"),
    ):
        refused(SlurmUnknownJob, *command)
    assert not slurm.ours(99999, "tenbin:x:1:1")
    waits = submitted("--hold")
    refused(SlurmError, "scontrol", "suspend", waits)
    slurm.call("scontrol", "create", "PartitionName=tb", "Nodes=node1")
    try:
        runs = submitted("--partition=tb")
        until(lambda: state(runs) == "RUNNING")
        refused(SlurmTooLate, "scontrol", "update", f"JobId={runs}", "StartTime=now")
        refused(SlurmNodeRefused, "scontrol", "update", f"JobId={runs}", "ReqNodeList=", "StartTime=now+99")
        refused(SlurmNotSuspended, "scontrol", "resume", runs)
        refused(SlurmPartitionInUse, "scontrol", "delete", "PartitionName=tb")
        refused(SlurmError, "sbatch", "--partition=tb", "--nodelist=node2", "--wrap=true")
        slurm.call("scancel", waits, runs)
        until(lambda: state(runs) == state(waits) == "CANCELLED")
        refused(SlurmTooLate, "scontrol", "update", f"JobId={runs}", "StartTime=now")
        refused(SlurmTooLate, "scontrol", "resume", runs)
    finally:
        lab.mend()
        slurm.call("scontrol", "delete", "PartitionName=tb")
    refused(SlurmNoPartition, "scontrol", "delete", "PartitionName=tb")
    refused(SlurmNoPartition, "sbatch", "--partition=tb", "--wrap=true")
    refused(SlurmNodeRefused, "sbatch", "--nodelist=node9", "--wrap=true")
