"""Jobs of plain sbatch: as Slurm shows them, what they need, and how tenbin holds and starts them."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.attempts.records import Result, Usage
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from profiles.quantities import stamp
from scheduler.engines.protocol import Needs
from scheduler.engines.slurm.slurm_commands import (
    ENDS_BY_STATE,
    FINAL,
    Slurm,
    SlurmError,
    SlurmNodeRefused,
    SlurmSilent,
    SlurmTooLate,
    SlurmUnknownJob,
    new_separator,
    parse_hosts,
    parse_limit_s,
    parse_rows,
    parse_time_s,
    unknown_answer,
)
from scheduler.jobs.literals import size_bytes
from scheduler.jobs.specs import JobSpec, Origin

# -- as squeue and scontrol print them ---------------------------------------------------------------------


MARK = "tenbin:taken"  # of job_submit.lua, in the comment of administrators
NEEDS = ("NumNodes", "NumTasks", "NumCPUs", "cpus-per-task", "MinMemory", "OverSubscribe")
FIELDS = (
    *("JobArrayID", "JobID", "State", "Reason", "EligibleTime", "StartTime", "EndTime", "SubmitTime"),
    *("exit_code", *NEEDS, "ReqNodes", "TimeLimit", "RestartCnt", "Dependency", "PriorityLong"),
    *("UserName", "nodelist", "admin_comment"),
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
        request: its needs as text, which changes with them.
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
    request: tuple[str, ...]
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
        return self.state in FINAL

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

    @property
    def over_limit(self) -> str:
        """The limit of a QOS or an account for which it waits although it may begin; "" if for none."""
        return self.reason if self.pending and self.reason.startswith(("QOS", "Assoc")) else ""


class SeenJob(NamedTuple):
    """A job with what is known of its needs: None, and why they are not understood."""

    job: SbatchJob
    needs: Needs | None
    unclear: str


def parse_sbatch_jobs(text: str, separator: str) -> list[SbatchJob]:
    """Read ``squeue --Format=FIELDS``: the jobs with tenbin's mark."""
    jobs = []
    for row in parse_rows(text, separator, len(FIELDS)):
        if MARK in row[-1] and re.fullmatch(r"\d+(_\d+)?", row[0]):
            try:
                jobs.append(_sbatch_job(dict(zip(FIELDS, row, strict=True))))
            except ValueError:
                raise unknown_answer("squeue --Format", ", ".join(row)) from None
    return jobs


def _sbatch_job(words: Mapping[str, str]) -> SbatchJob:
    begin = re.search(r"begin=(\d+)", words["admin_comment"])
    required = _or_nothing(words["ReqNodes"])
    state, priority = words["State"], words["PriorityLong"]
    return SbatchJob(
        key=words["JobArrayID"],
        number=words["JobID"],
        state=state,
        reason=words["Reason"],
        eligible_s=parse_time_s(words["EligibleTime"]),
        start_s=parse_time_s(words["StartTime"]),
        end_s=parse_time_s(words["EndTime"]),
        submitted_s=parse_time_s(words["SubmitTime"]),
        status=int(words["exit_code"]),
        request=(*(words[name] for name in NEEDS), required),
        required=required,
        cpus=int(words["NumCPUs"]),
        limit_s=parse_limit_s(words["TimeLimit"]),
        restarts=int(words["RestartCnt"]),
        dependency=_or_nothing(words["Dependency"]),
        held=state == "PENDING" and priority == "0",
        user=words["UserName"],
        nodes=parse_hosts(words["nodelist"]),
        begin_s=float(begin[1]) if begin else 0.0,
    )


def _or_nothing(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None") else text


def parse_records(text: str) -> dict[str, dict[str, str]]:
    """Read ``scontrol show job KEY``: words by the record's number, {} if they may be the user's.

    A name, a comment or a path may have lines that look like Slurm's, and like whole records. They cannot
    take away the true ones: a number that comes twice is not believed, nor a record with a word twice.
    """
    records: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n(?=JobId=)", text):
        said = [pair for line in block.split("\n") for pair in _record_words(line.strip())]
        words = {name: _or_nothing(value) for name, value in said}
        if (number := words.get("JobId")) is not None:
            whole = len(words) == len(said) and words.keys() >= RECORD_WORDS and number not in records
            records[number] = words if whole else {}
    return records


RECORD_WORDS = {"JobState", "Partition", "NumNodes", "NumCPUs", "NumTasks"}
FREE_TEXT = (
    *("Command", "WorkDir", "Comment", "AdminComment", "SystemComment", "StdErr", "StdIn", "StdOut"),
    "Dependency",
)


def _record_words(line: str) -> list[tuple[str, str]]:
    name, _, value = line.partition("=")
    if name in FREE_TEXT:
        return [(name, value)]
    before, named, job = line.partition(" JobName=")
    words = re.findall(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", before)
    return [*words, ("JobName", job)] if named else words


def result_of(job: SbatchJob, now: float) -> Result:
    """Say how a job has ended, as Slurm tells it."""
    took = max(0.0, job.end_s - job.start_s) if job.start_s else 0.0
    usage = Usage(took, took, 0.0, 0.0, 0.0)
    if job.state in LOST:
        return Result("not-started", job.end_s, trouble=f"{LOST[job.state]} ({job.state})", usage=usage)
    how = ENDS_BY_STATE.get(job.state)
    if how is not None:
        return Result(how, job.end_s or now, usage=usage)
    code, number = job.status >> 8, job.status & 127
    unrun = job.state == "FAILED" and not job.status
    trouble = f"Slurm could not run it ({job.state}: {job.reason})" if unrun else ""
    if number:
        return Result("signalled", job.end_s, signal=number, usage=usage)
    return Result("exited", job.end_s, code=code, trouble=trouble, usage=usage)


# -- what they need ----------------------------------------------------------------------------------------


# What the words that tenbin does not schedule by say of a job that asks for nothing of the kind.
NOTHING = {
    **dict.fromkeys(("Features", "Reservation", "Licenses", "Network", "BurstBuffer", "Switches"), ("",)),
    **dict.fromkeys(("ReqNodeList", "ExcNodeList", "Deadline"), ("",)),
    **dict.fromkeys(("Contiguous", "MinTmpDiskNode"), ("0",)),
    **dict.fromkeys(("CoreSpec", "Socks/Node"), ("*",)),
    "ReqB:S:C:T": ("0:0:*:*",),
    "OverSubscribe": ("OK", "NO", "YES"),
}
TASK = "4294967294"  # stands for the task's number where an array is still one record


class Unclear(Exception):
    """A request by which tenbin does not schedule."""


class Shape(NamedTuple):
    """The units of the policy: whole nodes, nodes with their cores and memory, or parts of nodes.

    ``cores``: of the smallest node, or of a part.
    """

    kind: str
    cores: int


def needs_of(
    key: str, user: str, submitted_s: float, words: Mapping[str, str], *, partition: str, shape: Shape
) -> Needs:
    """Read Slurm's record of a waiting job.

    Tasks on one node count as one, because they stay together. On several nodes the job gets all cores in
    the cluster state, because Slurm decides how many tasks each node gets.

    Raises:
        Unclear: it asks for something that tenbin does not schedule by.
    """
    _check(words, partition)
    nodes, tasks = _number(words, "NumNodes"), _number(words, "NumTasks")
    of_task = _number(words, "CPUs/Task") if words.get("CPUs/Task", "").isdecimal() else 1
    cpus = max(_number(words, "NumCPUs"), tasks * of_task)
    memory_mb, whole = _memory_mb(words, nodes, cpus), words.get("OverSubscribe") == "NO"
    alone = nodes == 1 and cpus <= shape.cores
    size: dict[str, object]
    if alone and not (whole and shape.kind == "nodes"):
        if whole and shape.kind == "parts":
            raise Unclear("nodes of its own (--exclusive), and parts of nodes are scheduled")
        size = {"cores": cpus, "memory_mb": memory_mb}
    elif shape.kind == "parts":
        raise Unclear(f"{cpus} CPUs, and parts of nodes with {shape.cores} are scheduled")
    elif of_task > shape.cores:
        raise Unclear(f"tasks of {of_task} CPUs, and a node has {shape.cores}")
    else:
        nodes = max(nodes, math.ceil(tasks / (shape.cores // of_task)))
        per_task = None if memory_mb is None else memory_mb / (shape.cores // of_task)
        size = {"nodes": nodes, "cores": of_task, "memory_mb": per_task}
    task = key.partition("_")[2]
    command = words.get("Command") or words.get("JobName") or "sbatch"
    spec = JobSpec.model_validate(
        {
            **size,
            "command": (command,),
            "name": words.get("JobName", "")[:200],
            "time_s": _limit_s(words),
            "folder": words.get("WorkDir") or "/",
            "stdout": words.get("StdOut", "").replace(TASK, task),
            "stderr": words.get("StdErr", "").replace(TASK, task),
            "requeue": words.get("Requeue") == "1",
            "array_index": int(task) if task else None,
            "slurm": Origin(id=key, user=user, submitted_s=submitted_s),
        }
    )
    most = words.get("ArrayTaskThrottle") or words.get("ArrayTaskId", "").partition("%")[2]
    return Needs(spec, int(most) if most.isdecimal() and int(most) else None)


def _check(words: Mapping[str, str], partition: str) -> None:
    for name, value in words.items():
        if value not in NOTHING.get(name, (value,)) or (
            re.match("Tres|Gres|MemPerTres|CpusPerTres", name) and value
        ):
            raise Unclear(f"{name}={value}, by which tenbin does not schedule")
    if words.get("Partition") != partition:
        raise Unclear(f"partition {words.get('Partition')}, and tenbin has {partition}")
    spread = words.get("NtasksPerN:B:S:C", "0:0:*:*").split(":")[1:]
    if any(part not in ("0", "*") for part in spread):
        raise Unclear(f"NtasksPerN:B:S:C={words['NtasksPerN:B:S:C']}, by which tenbin does not schedule")


def _number(words: Mapping[str, str], name: str) -> int:
    match = re.match(r"\d+", words.get(name, ""))
    if match is None:
        raise unknown_answer("scontrol show job", f"{name}={words.get(name)}")
    return max(1, int(match[0]))


def _memory_mb(words: Mapping[str, str], nodes: int, cpus: int) -> float | None:
    """Return the memory on each node; None: not said, or all there is."""
    for name, times in (("MinMemoryNode", 1.0), ("MinMemoryCPU", math.ceil(cpus / nodes))):
        with suppress(ValueError):
            return size_bytes(words.get(name, ""), slurm=True) / 1e6 * times or None
    return None


def _limit_s(words: Mapping[str, str]) -> float | None:
    limit = parse_limit_s(words.get("TimeLimit", ""))
    return None if math.isinf(limit) else limit or None


# -- held and let go ---------------------------------------------------------------------------------------
#
# ``job_submit.lua`` marks the jobs and puts the earliest time of their start an hour off, which tenbin
# moves on for as long as they are to wait. So nobody's ``scontrol hold`` is hidden by tenbin's, and should
# tenbin never come back they start by themselves. Everything here is called in the poller's thread.


GATE_S = 3600.0
FORGED = "what its user has written (a name, a comment, a path) looks like words of Slurm's"
LEASE_S = 60.0  # for so long job_submit.lua believes that tenbin is there
FREE = "tenbin:free"  # in place of MARK, of a job that is left to Slurm
AT_ONCE = 100  # jobs in one call of scontrol
LEARNS_S = 2.0  # for so long jobs are looked up that are new; then others are served
log = logging.getLogger("tenbin")


class SbatchQueue:
    """The external jobs of a partition.

    Args:
        lease: file that tells job_submit.lua that tenbin is there, and for how long jobs are held.
        gate_s: for how long they wait for tenbin before they start by themselves.
    """

    def __init__(self, lease: Path, gate_s: float, partition: str, shape: Shape) -> None:
        self.lease, self.gate_s, self.partition, self.shape = lease, gate_s, partition, shape
        self.bell = lease.with_name(lease.name + ".bell")
        self.slurm = Slurm()
        self.slurm.environment["SLURM_TIME_FORMAT"] = "%s"
        self._known: dict[str, tuple[tuple[str, ...], Needs | None, str]] = {}
        self._submitted_s: dict[str, float] = {}  # as seen last
        self._rung = 0
        self._first = True
        self.write_lease()

    # -- seeing ---------------------------------------------------------------------------------------

    def look(self) -> list[SeenJob]:
        """Return all external jobs; those that wait wait on."""
        jobs, now = self._jobs(f"--partition={self.partition}"), time.time()
        self._submitted_s = {job.key: job.submitted_s for job in jobs}
        self._learn(jobs)
        self._known = {job.key: self._known[job.key] for job in jobs if job.key in self._known}
        self._hold(jobs, now)
        self.write_lease()
        return [SeenJob(job, *self._known.get(job.key, ((), None, ""))[1:]) for job in jobs]

    def _jobs(self, of: str) -> list[SbatchJob]:
        """Return the jobs with tenbin's mark that an option of squeue names."""
        mark = new_separator()
        form = ",".join(f"{field}:{mark}" for field in FIELDS)
        options = "--noheader", "--all", "--array", "--states=all"
        return parse_sbatch_jobs(self.slurm.call("squeue", *options, of, f"--Format={form}"), mark)

    def rung(self) -> bool:
        """Say whether job_submit.lua has seen a job since the last call."""
        at = 0
        with suppress(OSError):
            at = self.bell.stat().st_mtime_ns
        before, self._rung = self._rung, at
        return at != before

    def write_lease(self) -> None:
        """Have job_submit.lua hold jobs for another while.

        Raises:
            Unavailable: the file cannot be written.
        """
        try:
            write_whole(self.lease, f"{int(time.time() + LEASE_S)} {int(self.gate_s)}\n", 0o644)
        except OSError as error:
            raise Unavailable(
                f"--take-over {self.lease}: {error.strerror}", "name a file that tenbin may write"
            ) from error

    def close(self) -> None:
        """Hold new jobs no more; those that wait start by themselves when their time has come."""
        self.lease.unlink(missing_ok=True)

    def _learn(self, jobs: Sequence[SbatchJob]) -> None:
        """Look up the needs of jobs that are new or were changed, those of each user by themselves."""
        now = time.time()
        known_requests = {key: known[0] for key, known in self._known.items()}
        # One that is about to start has its nodes from tenbin.
        new = [
            job
            for job in jobs
            if job.pending
            and known_requests.get(job.key) != job.request
            and (job.gated(now) or not job.required)
        ]
        arrays: dict[str, dict[str, dict[str, str]]] = {}
        until = time.monotonic() + LEARNS_S
        for job in new:
            if time.monotonic() > until:
                self._rung = -1  # the rest at the next look, soon
                return
            with suppress(SlurmTooLate):
                if job.array != job.key and job.array not in arrays:
                    arrays[job.array] = self._tasks(job.array, jobs)
                words = arrays.get(job.array, {}).get(job.number) or self._record(job.key)
                self._known[job.key] = job.request, *self._needs(job, words)

    def _tasks(self, array: str, jobs: Iterable[SbatchJob]) -> dict[str, dict[str, str]]:
        """Return the records of an array by their numbers; none if squeue did not list one of them."""
        said = parse_records(self._show(array))
        return said if said.keys() <= {job.number for job in jobs if job.array == array} else {}

    def _record(self, key: str) -> dict[str, str]:
        """Return the record of one job; {} if Slurm's words cannot be told from the user's."""
        return next(iter(said.values())) if len(said := parse_records(self._show(key))) == 1 else {}

    def _show(self, key: str) -> str:
        return self.slurm.call("scontrol", "--all", "show", "job", key)

    def _needs(self, job: SbatchJob, words: Mapping[str, str]) -> tuple[Needs | None, str]:
        if not words:
            return None, FORGED
        try:
            needs = needs_of(
                job.key, job.user, job.submitted_s, words, partition=self.partition, shape=self.shape
            )
            return needs, ""
        except (Unclear, Unavailable) as error:
            return None, str(error)
        except ValueError:  # a name, a path
            return None, "tenbin cannot take it over as it is written"

    def _hold(self, jobs: Iterable[SbatchJob], now: float) -> None:
        """Have jobs that wait for tenbin wait on, well before their time has come.

        The first time this holds also jobs whose time came while tenbin was away, if they have not started.
        """
        soon = now + self.gate_s / 2
        due = [job.key for job in jobs if job.pending and self._due(job, now, soon)]
        self._first = False
        for first in range(0, len(due), AT_ONCE):
            try:
                self.update(due[first : first + AT_ONCE], self._later())
            except SlurmSilent:
                raise
            except SlurmError as error:  # one of them has just started, or ended
                log.warning("jobs of sbatch are to wait on: %s", error)

    def _due(self, job: SbatchJob, now: float, soon: float) -> bool:
        return job.eligible_s < soon and (self._first or (job.gated(now) and not job.required))

    # -- steering -------------------------------------------------------------------------------------

    def is_still(self, key: str) -> bool:
        """Tell whether what has the number is the job still that was seen last.

        A slurmctld that was killed may have forgotten the job, and given its number to another.
        """
        try:
            submitted_s = {job.key: job.submitted_s for job in self._jobs(f"--jobs={key}")}
        except SlurmUnknownJob:
            return False
        return key in submitted_s and submitted_s[key] == self._submitted_s.get(key, submitted_s[key])

    def update(self, keys: Sequence[str], *changes: str) -> None:
        self.slurm.call("scontrol", "update", f"JobId={','.join(keys)}", *changes)

    def start(self, key: str, nodes: Sequence[str]) -> None:
        """Let a job start, there and nowhere else, if it still waits.

        Raises:
            SlurmError: Slurm refuses it.
        """
        words = self._record(key)
        if not words:
            raise SlurmError(f"job {key}: {FORGED}")
        if words["JobState"] != "PENDING":
            return
        changes = [f"ReqNodeList={','.join(nodes)}", "StartTime=now"]
        if words.get("NumNodes", "").split("-")[0] != str(len(nodes)):
            changes.insert(1, f"NumNodes={len(nodes)}")
        self.update([key], *changes)

    def hold(self, key: str) -> bool:
        """Have a job wait for tenbin again if it has not started; return whether it does."""
        with suppress(SlurmTooLate, SlurmNodeRefused):  # of a job that runs, no nodes are invalid ones
            self.update([key], "ReqNodeList=", self._later())
            return True
        return False

    def let_go(self, key: str, remark: str, *, named: bool = False) -> None:
        """Leave a job to Slurm's own scheduler, on any nodes if it was tenbin that had ``named`` some."""
        said = re.sub(r"[^\x20-\x7e]", "?", remark)[:200]
        anywhere = ("ReqNodeList=",) if named else ()
        with suppress(SlurmTooLate):
            self.update([key], f"AdminComment={FREE} ({said})", *anywhere, "StartTime=now")

    def _later(self) -> str:
        return f"StartTime=now+{int(self.gate_s)}"
