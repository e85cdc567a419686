"""The world of the Slurm engine with jobs of plain sbatch, which tenbin takes over.

What ``job_submit.lua`` does to them, what slurmctld shows of them, and what their users do is simulated too:
they are held and released, cancelled, put back into the queue, get other limits, and end as they like.

    .venv/bin/python -m tests.support.sbatch_world 0-500
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.engines.slurm.sbatch_queue import FIELDS, GATE_S, MARK, SbatchQueue, Shape
from scheduler.engines.slurm.slurm_commands import error_of
from scheduler.jobs.entry import Entry, Phase, Stage
from tests.support import slurm_world, world
from tests.support.slurm_world import BatchJob, SimulatedSlurm, SlurmCluster, SlurmHistory
from tests.support.world import Broken, Machine, Setting

SETTINGS = {name: slurm_world.SETTINGS[name] for name in ("units", "whole", "nodes")}
KNOWN_S = 30.0  # in which tenbin follows what Slurm shows, where nothing is in the way
REQUEUED_S = 121.0  # until Slurm starts by itself what was put back into the queue


@dataclass
class SbatchJob(BatchJob):
    """A job of plain sbatch.

    Attributes:
        count: so many nodes it is to have. required: those that it must have. work_s: what is left of it.
        mark: what administrators have written. eligible_s: it does not start before.
        code: it exits so. works: its processes are on its nodes. began_s: when they went on last.
        changes: of its limit, so many. disturbed: something has happened that excuses any end.
        over_limit_s: until then a limit of its account keeps it waiting.
        suspended: it was, and goes on where it is, whatever units tenbin counts for it then.
    """

    count: int = 1
    required: tuple[str, ...] = ()
    work_s: float = 1.0
    mark: str = MARK
    eligible_s: float = 0.0
    submitted_s: float = 0.0
    code: int = 0
    held: bool = False
    restarts: int = 0
    requeue: bool = True
    works: bool = False
    began_s: float = 0.0
    killed_s: float = -math.inf
    over_limit_s: float = 0.0
    changes: int = 0
    disturbed: bool = False
    suspended: bool = False

    @property
    def taken(self) -> bool:
        return self.mark == MARK

    @property
    def end_s(self) -> float:
        """The time at which it ends by itself."""
        return self.began_s + min(self.work_s, self.limit_s) if self.state == "RUNNING" else math.inf


class SbatchCluster(SlurmCluster):
    """slurmctld with jobs of plain sbatch."""

    @property
    def sbatch_jobs(self) -> list[SbatchJob]:
        return [job for job in self.queue.values() if isinstance(job, SbatchJob)]

    def add(self, draw: random.Random, setting: Setting) -> SbatchJob:
        """Submit a job, which ``job_submit.lua`` marks."""
        self.number += 1
        count = draw.choice([1, 1, 2]) if setting is not SETTINGS["units"] else 1
        cpus = draw.choice([1, 2]) if setting is not SETTINGS["units"] else 1
        job = SbatchJob(self.number, "", (), cpus, Path("/"), 0.0, count=count)
        job.limit_s = draw.choice([60.0, 120.0, 600.0])
        job.work_s, job.code = draw.choice([1.0, 10.0, 50.0, 100.0]), draw.choice([0, 0, 3])
        job.requeue = draw.random() < 0.7
        job.submitted_s, job.eligible_s, job.starts_s = self.now, self.now + GATE_S, 0.0
        job.over_limit_s = self.now + 100.0 if job.id % 5 == 0 else 0.0
        self.queue[job.id] = job
        return job

    def _may_start(self, job: BatchJob) -> bool:
        if not isinstance(job, SbatchJob):
            return super()._may_start(job)
        if job.state != "PENDING" or job.held or max(job.eligible_s, job.over_limit_s) > self.now:
            return False
        names = job.required or slurm_world.NODES
        fit = [n for n in names if self._usable(self.nodes[n]) and self.room(n) >= job.cpus]
        if len(fit) < job.count:
            return False
        job.nodes = tuple(fit[: job.count])
        return True

    def _schedule(self) -> None:
        for job in self.sbatch_jobs:
            if job.eligible_s <= self.now and job.state == "PENDING" and job.taken and not job.required:
                raise Broken("who waits for tenbin does not start by itself", f"Slurm job {job.id}")
            if job.state == "PENDING" and not self._may_start(job):
                job.nodes = ()
        before = {job.id for job in self.sbatch_jobs if job.state == "PENDING"}
        super()._schedule()
        for job in self.sbatch_jobs:
            if job.id in before and job.state == "RUNNING":
                self.story(f"Slurm starts job {job.id} of sbatch on {', '.join(job.nodes)}")
                if job.killed_s > math.floor(self.now):
                    raise Broken("who was put back rests", f"Slurm job {job.id}")
                job.works = all(self.nodes[name].answers for name in job.nodes)
                job.began_s = self.now

    def batch(self, job: BatchJob) -> None:
        if not isinstance(job, SbatchJob):
            super().batch(job)

    def is_there(self, job: BatchJob) -> bool:
        return job.works if isinstance(job, SbatchJob) else super().is_there(job)

    def put_back(self, job: SbatchJob) -> None:
        """Put a job that runs back into the queue."""
        job.state, job.start_s, job.restarts = "PENDING", 0.0, job.restarts + 1
        job.eligible_s, job.killed_s, job.works, job.nodes = self.now + REQUEUED_S, self.now, False, ()

    def end(self, job: BatchJob, state: str) -> None:
        if isinstance(job, SbatchJob):
            job.works = False
            job.disturbed |= state == "NODE_FAIL"
            if state == "NODE_FAIL" and job.requeue:
                self.story(f"Slurm job {job.id} of sbatch is put back into the queue")
                return self.put_back(job)
        return super().end(job, state)

    def forget(self) -> None:
        works = {job.id for job in self.sbatch_jobs if job.works}
        for job in self.sbatch_jobs:
            job.disturbed = True
        super().forget()
        for job in self.sbatch_jobs:
            job.disturbed, job.works = True, job.id in works and job.state in ("RUNNING", "SUSPENDED")

    def look(self) -> None:
        for job in self.sbatch_jobs:
            lives = all(self.nodes[name].power for name in job.nodes)
            job.works = job.works and lives
            reached = all(self.nodes[name].answers for name in job.nodes)
            if job.works and reached and not self.dead and job.state == "COMPLETING":
                self.end(job, "CANCELLED")
            elif job.works and reached and not self.dead and job.end_s <= self.now + 1e-6:
                late = job.limit_s < job.work_s
                self.end(job, "TIMEOUT" if late else "FAILED" if job.code else "COMPLETED")
        super().look()

    @property
    def next_s(self) -> float:
        times = [super().next_s]
        for job in self.sbatch_jobs if not self.dead else ():
            if job.works and all(self.nodes[name].answers for name in job.nodes):
                times.append(job.end_s)
            if job.state == "PENDING" and job.eligible_s > self.now:
                times.append(job.eligible_s)
            if job.state == "PENDING" and job.over_limit_s > self.now:
                times.append(job.over_limit_s)
        return min(times)


class SimulatedSbatch(SimulatedSlurm):
    """The commands of Slurm that know jobs of plain sbatch."""

    cluster: SbatchCluster

    def _squeue(self, options: Sequence[str], given: str) -> str:
        form = next((word for word in options if word.startswith("--Format=")), "")
        if not form:
            return super()._squeue(options, given)
        mark = form.removeprefix("--Format=").split(",")[0].partition(":")[2]
        numbers = [word.removeprefix("--jobs=") for word in options if word.startswith("--jobs=")]
        return "".join(
            "".join(self._columns(job)[name] + mark for name in FIELDS) + "\n"
            for job in self.cluster.sbatch_jobs
            if not numbers or str(job.id) in numbers
        )

    def _columns(self, job: SbatchJob) -> dict[str, str]:
        done, now = job.final, self.cluster.now
        limited = job.state == "PENDING" and job.eligible_s <= now < job.over_limit_s
        reason = "QOSMaxJobsPerUserLimit" if limited else job.reason
        ended = job.ended_s if done else job.start_s + job.limit_s if job.start_s else 0.0
        return {
            **{"JobArrayID": str(job.id), "JobID": str(job.id), "State": job.state, "Reason": reason},
            **{"EligibleTime": f"{job.eligible_s:.0f}", "StartTime": f"{job.start_s:.0f}"},
            **{"EndTime": f"{ended:.0f}", "SubmitTime": str(math.floor(job.submitted_s + 0.5))},
            "exit_code": str(job.code << 8 if job.state == "FAILED" else 0),
            **{"NumNodes": str(job.count), "NumTasks": str(job.count)},
            **{"NumCPUs": str(job.cpus * job.count), "cpus-per-task": str(job.cpus), "MinMemory": "0"},
            **{"OverSubscribe": "OK", "ReqNodes": ",".join(job.required)},
            **{"TimeLimit": f"0:{job.limit_s:.0f}", "RestartCnt": str(job.restarts), "Dependency": "(null)"},
            **{"PriorityLong": "0" if job.held else "7", "UserName": "eve"},
            **{"nodelist": ",".join(job.nodes) if job.start_s else "", "admin_comment": job.mark},
        }

    def _scontrol(self, words: Sequence[str], given: str) -> str:
        plain = [word for word in words if not word.startswith("--")]
        if plain[:2] == ["show", "job"]:
            return self._record(self._sbatch_job(plain[2]))
        if plain[0] == "update" and plain[1].startswith("JobId="):
            for number in plain[1].partition("=")[2].split(","):
                self._update(self._sbatch_job(number), plain[2:])
            return ""
        return super()._scontrol(words, given)

    def _sbatch_job(self, number: str) -> SbatchJob:
        job = self._job(number)
        assert isinstance(job, SbatchJob)
        return job

    def _update(self, job: SbatchJob, changes: Sequence[str]) -> None:
        if job.final:
            raise error_of(("scontrol",), "Job has already finished", 1)
        if job.state != "PENDING":
            resizes = "ReqNodeList=" in changes
            said = "Invalid node name specified" if resizes else "Job is no longer pending execution"
            raise error_of(("scontrol",), f"{said} for job {job.id}", 1)
        for change in changes:
            name, _, value = change.partition("=")
            if name == "StartTime":
                ahead = value.removeprefix("now").removeprefix("+")
                job.eligible_s = self.cluster.now + float(ahead or 0.0)
            elif name == "ReqNodeList":
                job.required = tuple(value.split(",")) if value else ()
            elif name == "AdminComment":
                job.mark = value
        self.cluster.story(f"scontrol: Slurm job {job.id} of sbatch: {' '.join(changes)}")

    def _record(self, job: SbatchJob) -> str:
        return (
            f"JobId={job.id} JobName=job\n   UserId=eve(1)\n   JobState={job.state} Reason={job.reason}\n"
            f"   Requeue={job.requeue:d} Restarts={job.restarts}\n"
            f"   TimeLimit=00:{job.limit_s / 60:02.0f}:00\n   Partition=main\n"
            f"   ReqNodeList={','.join(job.required) or '(null)'}\n"
            f"   NumNodes={job.count} NumCPUs={job.cpus * job.count} NumTasks={job.count} "
            f"CPUs/Task={job.cpus} ReqB:S:C:T=0:0:*:*\n"
            "   MinMemoryNode=0\n   OverSubscribe=OK Contiguous=0\n   Command=/run\n   WorkDir=/tmp\n"
        )

    def _suspend(self, job: BatchJob, stops: bool) -> None:
        super()._suspend(job, stops)
        if isinstance(job, SbatchJob):
            job.suspended = True
        if isinstance(job, SbatchJob) and stops:
            job.work_s -= self.cluster.now - job.began_s
        elif isinstance(job, SbatchJob):
            job.began_s = self.cluster.now


WEIGHTS = slurm_world.WEIGHTS | {"sbatch": 12, "user": 14, "decide": 4, "set clock": 0, "submit": 10}


class SbatchHistory(SlurmHistory):
    """A history with jobs of plain sbatch."""

    name, settings, weights = "sbatch_world", SETTINGS, WEIGHTS
    slurm_of = SimulatedSbatch
    machine: SbatchCluster

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.submitted: dict[int, SbatchJob] = {}
        self._differ: dict[tuple[int, str], float] = {}  # what tenbin has not followed yet, and since when
        super().__init__(*arguments, **named)

    def new_machine(self, seed: int) -> Machine:
        return SbatchCluster(seed, self.setting, self.say)

    def new_sbatch(self) -> SbatchQueue:
        pool = self.setting.cluster.pools[0]
        kind = "nodes" if not pool.counted else "whole" if pool.name == "node" else "parts"
        queue = SbatchQueue(self.folder / "lease", GATE_S, "main", Shape(kind, self.setting.unit.cores))
        queue.slurm = SimulatedSbatch(self.machine)
        return queue

    # -- steps -------------------------------------------------------------------------------------------

    def sbatch(self, draw: random.Random) -> None:
        if self.machine.dead:
            return
        job = self.machine.add(draw, self.setting)
        self.submitted[job.id] = job
        self.say(f"sbatch, by a user: Slurm job {job.id}, {job.count} nodes with {job.cpus} CPUs")

    def user(self, draw: random.Random) -> None:
        """Let a user, or an administrator, change a job of sbatch."""
        jobs = [job for job in self.machine.sbatch_jobs if not job.final]
        if not jobs or self.machine.dead:
            return
        job, what = draw.choice(jobs), draw.choice([*["limit"] * 3, "cancel", "hold", "put back"])
        self.say(f"{what}: Slurm job {job.id} of sbatch")
        answers = all(self.machine.nodes[name].answers for name in job.nodes)
        if what == "limit":
            job.limit_s, job.changes = draw.choice([60.0, 120.0, 600.0]), job.changes + 1
        elif what == "cancel" and answers:
            job.disturbed |= job.state not in ("PENDING", "RUNNING")
            self.slurm_tool(job, "scancel", str(job.id))
        elif what == "hold" and job.state == "PENDING":
            job.held = not job.held
        elif what == "put back" and job.state == "RUNNING" and answers:
            self.machine.put_back(job)

    def decide(self, draw: random.Random) -> None:
        """Ask tenbin for something for one of the jobs that it has taken over."""
        entries = [entry for entry in self.jobs.values() if entry.spec.external is not None]
        if not entries:
            return
        entry, what = draw.choice(entries), draw.choice(["cancel", "suspend", "resume"])
        job = self.job_of(entry)
        if job is not None and what == "cancel":
            job.disturbed = True
        self.say(f"{what} {entry.id}, Slurm job {entry.spec.external.id if entry.spec.external else ''}")
        try:
            getattr(self.coordinator, what)([entry.id])
        except world.UserError as error:
            self.say(f"refused: {error}")

    def finish(self) -> None:
        for job in self.machine.sbatch_jobs:
            job.held = False
        super().finish()
        for entry in self.coordinator.job_table.journal.entries(1000):
            self._check_external_end(entry)

    # -- rules -------------------------------------------------------------------------------------------

    def job_of(self, entry: Entry) -> SbatchJob | None:
        job = self.machine.queue.get(int(entry.spec.external.id)) if entry.spec.external else None
        return job if isinstance(job, SbatchJob) else None

    def attempts_that_run(self) -> set[tuple[int, int]]:
        runs = {
            (entry.id, entry.attempt)
            for entry in self.jobs.values()
            if (job := self.job_of(entry)) is not None and job.holds
        }
        return super().attempts_that_run() | runs

    def cpus_in_use(self) -> Counter[str]:
        used = Counter[str]()
        for job in self.machine.sbatch_jobs:
            if job.state == "RUNNING" and job.works:
                used.update(dict.fromkeys(job.nodes, job.cpus))
        return used

    def _check_external_end(self, entry: Entry) -> None:
        external = entry.spec.external
        job = self.submitted.get(int(external.id)) if external is not None else None
        if job is None or job.disturbed or not job.taken or job.restarts or not job.final:
            return
        if external is None or external.submitted_s != math.floor(job.submitted_s + 0.5):
            return  # slurmctld has given its number to another
        expected = {"COMPLETED": Stage.DONE, "FAILED": Stage.FAILED, "TIMEOUT": Stage.KILLED}
        if entry.stage is not expected.get(job.state, Stage.CANCELLED):
            what = f"job {entry.id} is {entry.stage} ({entry.trouble}), Slurm job {job.id} was {job.state}"
            raise Broken("an end in Slurm is told as it was", what)
        limits = [line for line in self.journal.history(entry.id) if line[1] == "time limit"]
        if len(limits) > job.changes + 1:
            raise Broken("a limit is changed once", f"job {entry.id}: {limits}")

    def _check_attempts(self) -> None:
        super()._check_attempts()
        self._check_followed()

    def _check_followed(self) -> None:
        """Look whether tenbin follows what Slurm shows, where nothing is in the way."""
        entries = {
            int(entry.spec.external.id): entry
            for entry in self.jobs.values()
            if entry.spec.external is not None
        }
        differ: dict[tuple[int, str], float] = {}
        for job in self.machine.sbatch_jobs if self.quiet else ():
            if not job.taken:
                continue
            entry = entries.get(job.id)
            wrong = ""
            if job.final:
                wrong = "has ended" if entry is not None else ""
            elif entry is None:
                wrong = "is not known" if job.state == "PENDING" else ""
            elif job.state == "RUNNING" and not job.suspended and entry.phase is Phase.RUNNING:
                there = {slurm_world.NODES[core // slurm_world.CPUS] for core in entry.cores}
                wrong = f"is on {job.nodes}, not {there}" if there != {*job.nodes} else ""
            if wrong:
                differ[job.id, wrong] = self._differ.get((job.id, wrong), self.machine.now)
                if self.machine.now > differ[job.id, wrong] + KNOWN_S:
                    raise Broken("jobs of sbatch are followed", f"Slurm job {job.id} {wrong}")
        self._differ = differ


if __name__ == "__main__":
    sys.exit(world.main(SbatchHistory))
