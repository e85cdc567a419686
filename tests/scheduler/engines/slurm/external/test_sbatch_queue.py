"""Slurm's list of plain sbatch jobs, and what tenbin reads from it; no Slurm is needed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.engines.slurm.sbatch_queue import (
    FIELDS,
    SbatchQueue,
    SeenJob,
    Shape,
    Unclear,
    needs_of,
    parse_records,
    parse_sbatch_jobs,
)
from scheduler.engines.slurm.slurm_commands import MIB, parse_limit_s

# As Slurm 22.05 prints it.
RECORD = """JobId=12 ArrayJobId=12 ArrayTaskId=0-5%2 ArrayTaskThrottle=2 JobName=a b NumNodes=7
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=PENDING Reason=BeginTime Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=1-02:04:00 TimeMin=N/A
   StartTime=2026-11-22T05:42:00 EndTime=Unknown Deadline=N/A
   Partition=main AllocNode:Sid=localhost:7949
   ReqNodeList=(null) ExcNodeList=(null)
   NumNodes=2-2 NumCPUs=3 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/me/run NumTasks=9
   WorkDir=/tmp
   AdminComment=tenbin:taken
   StdErr=/tmp/slurm-12_4294967294.out
   StdIn=/dev/null
   StdOut=/tmp/slurm-12_4294967294.out
"""
WHOLE, PARTS, NODES = Shape("whole", 2), Shape("parts", 2), Shape("nodes", 2)


def words(**changes: str) -> dict[str, str]:
    return {**parse_records(RECORD)["12"], **changes}


def size(shape: Shape, **changes: str) -> tuple[int, int, int | None, float | None]:
    spec = needs_of("12_3", "eve", 5.0, words(**changes), partition="main", shape=shape).spec
    return spec.tasks, spec.cores, spec.nodes, spec.memory_mb


def test_a_record_is_read() -> None:
    """Free text says nothing of the job's needs."""
    found = needs_of("12_3", "eve", 5.0, words(), partition="main", shape=WHOLE)
    spec = found.spec
    assert found.at_once == 2 and spec.array_index == 3 and spec.name == "a b NumNodes=7"
    assert (spec.stdout, spec.folder, spec.time_s) == ("/tmp/slurm-12_3.out", "/tmp", 26 * 3600 + 240)
    assert spec.command == ("/home/me/run NumTasks=9",) and spec.owner("root") == "eve"
    assert (spec.nodes, spec.cores) == (2, 1)


@pytest.mark.parametrize(
    ("shape", "changes", "expected"),
    [
        (WHOLE, {"NumNodes": "1", "NumTasks": "2", "NumCPUs": "2"}, (1, 2, None, 200 * MIB)),
        (WHOLE, {"NumNodes": "1", "NumTasks": "5", "NumCPUs": "5"}, (1, 1, 3, 250 * MIB)),
        (WHOLE, {"NumNodes": "2", "NumTasks": "2", "CPUs/Task": "2", "NumCPUs": "4"}, (1, 2, 2, 200 * MIB)),
        (NODES, {"NumNodes": "1", "NumTasks": "1", "NumCPUs": "1"}, (1, 1, None, 100 * MIB)),
        (
            NODES,
            {"NumNodes": "1", "NumTasks": "1", "NumCPUs": "1", "OverSubscribe": "NO"},
            (1, 1, 1, 50 * MIB),
        ),
        (PARTS, {"NumNodes": "1", "NumTasks": "1", "NumCPUs": "1"}, (1, 1, None, 100 * MIB)),
    ],
)
def test_sizes(shape: Shape, changes: dict[str, str], expected: tuple[object, ...]) -> None:
    assert size(shape, **changes) == pytest.approx(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"Features": "gpu"},
        {"ReqNodeList": "node1"},
        {"ExcNodeList": "node1"},
        {"Licenses": "matlab:1"},
        {"TresPerNode": "gres:gpu:1"},
        {"Partition": "main,other"},
        {"ReqB:S:C:T": "0:1:*:*"},
        {"NtasksPerN:B:S:C": "0:0:2:*"},
        {"OverSubscribe": "USER"},
        {"CPUs/Task": "3", "NumCPUs": "9"},
    ],
)
def test_what_is_not_understood(changes: dict[str, str]) -> None:
    with pytest.raises(Unclear):
        size(WHOLE, **changes)
    assert size(WHOLE, **{"NtasksPerN:B:S:C": "2:0:*:*"})


def test_parts_of_nodes_hold_no_more_than_one_has() -> None:
    with pytest.raises(Unclear):
        size(PARTS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0:30", 30), ("10:00", 600), ("1:00:00", 3600), ("2-03:04:05", 183845)),
        *(("UNLIMITED", math.inf), ("365-00:00:00", math.inf), ("Partition_Limit", math.inf)),
    ],
)
def test_limits(text: str, expected: float) -> None:
    assert parse_limit_s(text) == expected


MARK = "|0a|"


def line(**changes: str) -> str:
    found = dict.fromkeys(FIELDS, "0") | {"JobArrayID": "12_3", "State": "PENDING", "Reason": "BeginTime"}
    found |= {"TimeLimit": "10:00", "UserName": "eve", "nodelist": "", "NumCPUs": "1", "PriorityLong": "7"}
    found |= {"Dependency": "(null)", "ReqNodes": "", "admin_comment": "x tenbin:taken begin=99", **changes}
    return "".join(found[field] + MARK for field in FIELDS) + "\n"


def test_only_marked_jobs_are_seen() -> None:
    """Others, and those of several components, are none; lines of somebody's text are no jobs."""
    text = line(Dependency="x\n") + line(admin_comment="(null)", Reason=line()[:-1].replace(MARK, "|"))
    (job,) = parse_sbatch_jobs(text.replace("x\n", "") + line(JobArrayID="7+0"), MARK)
    assert (job.key, job.begin_s, job.limit_s, job.user) == ("12_3", 99.0, 600.0, "eve")
    assert not job.blocked(100.0) and "is to begin" in job.blocked(98.0)
    (held,) = parse_sbatch_jobs(line(PriorityLong="0"), MARK)
    assert "scontrol release 12_3" in held.blocked(100.0)
    (after,) = parse_sbatch_jobs(line(Dependency="afterok:5(unfulfilled)"), MARK)
    assert "afterok:5" in after.blocked(100.0)


OWN = "JobId=9 ArrayJobId=12 ArrayTaskId=3 JobName=x\n   JobState=PENDING\n   Partition=main\n   NumNodes=1"
free = st.text(max_size=30) | st.lists(st.sampled_from([*RECORD.split("\n"), OWN, "JobId=12", "", "x"])).map(
    "\n".join
)


@given(name=free, comment=free, path=free)
@example(name="x", comment=f"x\n{OWN}", path="x")
@example(name="x\n   NumNodes=1 NumCPUs=1", comment="x", path="x")
@example(name="x", comment=RECORD, path="x")
def test_what_users_write_changes_no_record(name: str, comment: str, path: str) -> None:
    """The record is as it would be without it, or is not believed."""
    said = RECORD.replace("JobName=a b NumNodes=7", f"JobName={name}")
    said = said.replace("   WorkDir=/tmp\n", f"   WorkDir={path}\n   Comment={comment}\n")
    true, found = words(), parse_records(said)
    assert set(found) <= {"12", "9"} or "JobId=" in name + comment + path
    for number, told in found.items():
        if number == "12" and told:
            same = true.keys() - {"JobName", "WorkDir", "StdErr", "StdIn", "StdOut", "AdminComment"}
            kept = [one for one in same if one in told]
            assert all(told[one] == true[one] for one in kept)
            assert len(found) > 1 or len(kept) == len(same)  # cut off only where there seem to be several


class Told:
    """Slurm's tools with such answers; ``asked``: for which jobs scontrol was asked."""

    def __init__(self, queue: list[dict[str, str]], answers: dict[str, str]) -> None:
        self.queue, self.answers, self.asked = queue, answers, list[str]()

    def call(self, *command: str) -> str:
        if command[0] == "squeue":
            form = command[-1].removeprefix("--Format=").split(",")
            mark = form[0].partition(":")[2]
            return "".join(line(**one).replace(MARK, mark) for one in self.queue)
        if "update" not in command:
            self.asked.append(command[-1])
            return self.answers[command[-1]]
        return ""


def look(tmp_path: Path, *queue: dict[str, str], **answers: str) -> tuple[dict[str, SeenJob], list[str]]:
    sbatch = SbatchQueue(tmp_path / "lease", 3600.0, "main", WHOLE)
    sbatch.slurm = told = cast(Any, Told(list(queue), {key[1:]: text for key, text in answers.items()}))
    return {seen.job.key: seen for seen in sbatch.look()}, told.asked


TASK = {"EligibleTime": "9999999999", "SubmitTime": "5", "JobID": "12"}


def test_the_record_of_another_is_not_forged(tmp_path: Path) -> None:
    """Each user's jobs are asked for by themselves; what is twice in an answer is left to Slurm."""
    plain = RECORD.replace("ArrayJobId=12 ArrayTaskId=0-5%2 ArrayTaskThrottle=2 ", "").replace(
        "JobId=12", "JobId=8"
    )
    forger = plain.replace("JobId=8", "JobId=9").replace(
        "AdminComment", f"Comment=x\n{RECORD}\n   AdminComment"
    )
    one, two = TASK | {"JobArrayID": "8", "JobID": "8"}, TASK | {"JobArrayID": "9", "JobID": "9"}
    seen, asked = look(
        tmp_path, one, two, TASK, TASK | {"JobArrayID": "12_4"}, _8=plain, _9=forger, _12=RECORD
    )
    assert asked == ["8", "9", "12"]
    assert seen["9"].needs is None and "looks like words of Slurm's" in seen["9"].unclear
    for key in ("8", "12_3", "12_4"):
        needs = seen[key].needs
        assert needs is not None and needs.spec.nodes == 2, key
    assert seen["12_4"].needs is not None and seen["12_4"].needs.spec.stdout == "/tmp/slurm-12_4.out"


def test_a_task_is_asked_for_alone_where_its_array_cannot_be_told(tmp_path: Path) -> None:
    own = RECORD.replace("ArrayTaskId=0-5%2", "ArrayTaskId=3").replace("4294967294", "3")
    for odd in (f"{RECORD}\n{OWN}", f"{RECORD}\n{RECORD}"):
        seen, asked = look(tmp_path, TASK, _12=odd, _12_3=own)
        needs = seen["12_3"].needs
        assert asked == ["12", "12_3"] and needs is not None and needs.spec.stdout == "/tmp/slurm-12_3.out"


def test_words_that_nobody_can_take_over_stop_nobody(tmp_path: Path) -> None:
    """A record without a number, or with a name that tenbin takes from nobody, is left to Slurm."""
    for odd in (
        RECORD.replace("NumCPUs=3", "NumCPUs=x"),
        "\n",
        RECORD.replace("TimeLimit=1-02", "TimeLimit=x"),
    ):
        seen, _ = look(tmp_path, TASK, _12=odd, _12_3=odd)
        assert seen["12_3"].needs is None and seen["12_3"].unclear
