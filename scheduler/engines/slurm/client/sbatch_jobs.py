"""Jobs of plain ``sbatch`` that tenbin takes over, as squeue and scontrol print them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from agent.attempts.records import Result, Usage
from profiles.instants import stamp
from scheduler.engines.external_jobs import Needs
from scheduler.engines.slurm.client import parse

MARK = "tenbin:taken"  # of job_submit.lua, in the comment of administrators
ASKED = ("NumNodes", "NumTasks", "NumCPUs", "cpus-per-task", "MinMemory", "OverSubscribe")
FIELDS = (
    *(
        "JobArrayID",
        "JobID",
        "State",
        "Reason",
        "EligibleTime",
        "StartTime",
        "EndTime",
        "SubmitTime",
        "exit_code",
    ),
    *ASKED,
    *(
        "ReqNodes",
        "TimeLimit",
        "RestartCnt",
        "Dependency",
        "PriorityLong",
        "UserName",
        "nodelist",
        "admin_comment",
    ),
)
LOST = {
    "NODE_FAIL": "its node was lost",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "it was preempted",
}


class SbatchJob(NamedTuple):
    """A job that was marked, as squeue shows it; times in seconds since 1970.

    Attributes:
        key: its number, of a task of an array ``12_3``: both name it for scontrol.
        number: of its record, which the tasks of an array share that have not been touched.
        eligible_s: it does not start before.
        begin_s: before which whoever submitted it does not want it to start.
        asked: what it needs, as text: it changes with that.
        required: the nodes that it must have.
        status: as wait() gives it.
        limit_s: infinite: none.
        nodes: where it runs or ran.
    """

    key: str
    number: str
    state: str
    reason: str
    eligible_s: float
    start_s: float
    end_s: float
    submitted_s: float
    status: int
    asked: tuple[str, ...]
    required: str
    cpus: int
    limit_s: float
    restarts: int
    dependency: str
    held: bool
    user: str
    nodes: tuple[str, ...]
    begin_s: float

    @property
    def array(self) -> str:
        return self.key.split("_")[0]

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def final(self) -> bool:
        return self.state in parse.FINAL

    def gated(self, now: float) -> bool:
        """Say whether it waits for tenbin."""
        return self.pending and self.eligible_s > now + 1.0

    def moves(self, now: float) -> bool:
        """Say whether it runs, or may start at any time."""
        return not self.final and not self.gated(now)

    def blocked(self, now: float) -> str:
        """Say why it may not start whatever tenbin decides; "" if it may."""
        if not self.pending:
            return ""
        if self.held:
            return f"held in Slurm by somebody else ({self.reason}); go on with: scontrol release {self.key}"
        if self.dependency:
            return f"waits in Slurm for {self.dependency}"
        if self.begin_s > now:
            return f"is to begin {stamp(self.begin_s)}"
        return ""


class SeenJob(NamedTuple):
    """A job with what is known of its needs: None, and why they are not understood."""

    job: SbatchJob
    needs: Needs | None
    unclear: str


def read(text: str, separator: str) -> list[SbatchJob]:
    """Read ``squeue --Format=FIELDS``: the jobs with tenbin's mark."""
    found = []
    for row in parse.rows(text, separator, len(FIELDS)):
        if MARK in row[-1] and re.fullmatch(r"\d+(_\d+)?", row[0]):
            try:
                found.append(_job(dict(zip(FIELDS, row, strict=True))))
            except ValueError:
                raise parse.unknown("squeue --Format", ", ".join(row)) from None
    return found


def _job(words: Mapping[str, str]) -> SbatchJob:
    begin = re.search(r"begin=(\d+)", words["admin_comment"])
    required = _or_nothing(words["ReqNodes"])
    state, priority = words["State"], words["PriorityLong"]
    return SbatchJob(
        key=words["JobArrayID"],
        number=words["JobID"],
        state=state,
        reason=words["Reason"],
        eligible_s=_time(words["EligibleTime"]),
        start_s=_time(words["StartTime"]),
        end_s=_time(words["EndTime"]),
        submitted_s=_time(words["SubmitTime"]),
        status=int(words["exit_code"]),
        asked=(*(words[name] for name in ASKED), required),
        required=required,
        cpus=int(words["NumCPUs"]),
        limit_s=parse.limit_s(words["TimeLimit"]),
        restarts=int(words["RestartCnt"]),
        dependency=_or_nothing(words["Dependency"]),
        held=state == "PENDING" and priority == "0",
        user=words["UserName"],
        nodes=parse.hosts(words["nodelist"]),
        begin_s=float(begin[1]) if begin else 0.0,
    )


def _time(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def _or_nothing(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None") else text


def records(text: str) -> dict[str, dict[str, str]]:
    """Read ``scontrol show job KEY``: words by the record's number, {} if they may be the user's.

    A name, a comment or a path may have lines that look like Slurm's, and like whole records. They cannot
    take away the true ones: a number that comes twice is not believed, nor a record with a word twice.
    """
    found: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n(?=JobId=)", text):
        said = [pair for line in block.split("\n") for pair in _words(line.strip())]
        words = {name: _or_nothing(value) for name, value in said}
        if (number := words.get("JobId")) is not None:
            whole = len(words) == len(said) and words.keys() >= NEEDED and number not in found
            found[number] = words if whole else {}
    return found


NEEDED = {"JobState", "Partition", "NumNodes", "NumCPUs", "NumTasks"}
FREE_TEXT = (
    "Command",
    "WorkDir",
    "Comment",
    "AdminComment",
    "SystemComment",
    "StdErr",
    "StdIn",
    "StdOut",
    "Dependency",
)


def _words(line: str) -> list[tuple[str, str]]:
    name, _, value = line.partition("=")
    if name in FREE_TEXT:
        return [(name, value)]
    before, named, job = line.partition(" JobName=")
    found = re.findall(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", before)
    return [*found, ("JobName", job)] if named else found


def result_of(job: SbatchJob, now: float) -> Result:
    """Say how a job has ended, as Slurm tells it."""
    took = max(0.0, job.end_s - job.start_s) if job.start_s else 0.0
    usage = Usage(took, took, 0.0, 0.0, 0.0)
    if job.state in LOST:
        return Result("not-started", job.end_s, trouble=f"{LOST[job.state]} ({job.state})", usage=usage)
    how = parse.ENDS.get(job.state)
    if how is not None:
        return Result(how, job.end_s or now, usage=usage)
    code, number = job.status >> 8, job.status & 127
    unrun = job.state == "FAILED" and not job.status
    trouble = f"Slurm could not run it ({job.state}: {job.reason})" if unrun else ""
    if number:
        return Result("signalled", job.end_s, signal=number, usage=usage)
    return Result("exited", job.end_s, code=code, trouble=trouble, usage=usage)
