"""Jobs of plain ``sbatch`` that tenbin takes over: how Slurm shows them, how they are held and let go.

``job_submit.lua`` marks them and puts the earliest time of their start an hour off, which tenbin moves on for
as long as they are to wait. So nobody's ``scontrol hold`` is hidden by tenbin's, and should tenbin never come
back they start by themselves. Everything here is called in the poller's thread.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.engines.external_jobs import Needs
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.sbatch_jobs import FIELDS, SbatchJob, SeenJob, read, records
from scheduler.engines.slurm.client.tools import Slurm, SlurmError, SlurmSilent
from scheduler.engines.slurm.external.needs import Shape, Unclear, needs_of

GATE_S = 3600.0
FORGED = "what its user has written (a name, a comment, a path) looks like words of Slurm's"
LEASE_S = 60.0  # for so long job_submit.lua believes that tenbin is there
FREE = "tenbin:free"  # in place of MARK, of a job that is left to Slurm
GONE = ("no longer pending", "Invalid job id", "already completed", "already completing")
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
        self._rung = 0
        self._first = True
        self.write_lease()

    # -- seeing ---------------------------------------------------------------------------------------

    def look(self) -> list[SeenJob]:
        """Return all external jobs; those that wait wait on."""
        mark = parse.separator()
        form = ",".join(f"{field}:{mark}" for field in FIELDS)
        text = self.slurm.call(
            *("squeue", "--noheader", "--all", "--array", "--states=all"),
            *(f"--partition={self.partition}", f"--Format={form}"),
        )
        found = read(text, mark)
        now = time.time()
        self._learn(found)
        self._known = {job.key: self._known[job.key] for job in found if job.key in self._known}
        self._hold(found, now)
        self.write_lease()
        return [SeenJob(job, *self._known.get(job.key, ((), None, ""))[1:]) for job in found]

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

    def _learn(self, found: Sequence[SbatchJob]) -> None:
        """Look up the needs of jobs that are new or were changed, those of each user by themselves."""
        now = time.time()
        asked = {key: known[0] for key, known in self._known.items()}
        # One that is about to start has its nodes from tenbin.
        new = [
            job
            for job in found
            if job.pending and asked.get(job.key) != job.asked and (job.gated(now) or not job.required)
        ]
        arrays: dict[str, dict[str, dict[str, str]]] = {}
        until = time.monotonic() + LEARNS_S
        for job in new:
            if time.monotonic() > until:
                self._rung = -1  # the rest at the next look, soon
                return
            with _waiting():
                if job.array != job.key and job.array not in arrays:
                    arrays[job.array] = self._tasks(job.array, found)
                words = arrays.get(job.array, {}).get(job.number) or self._record(job.key)
                self._known[job.key] = job.asked, *self._needs(job, words)

    def _tasks(self, array: str, found: Iterable[SbatchJob]) -> dict[str, dict[str, str]]:
        """Return the records of an array by their numbers; none if squeue did not list one of them."""
        said = records(self._show(array))
        return said if said.keys() <= {job.number for job in found if job.array == array} else {}

    def _record(self, key: str) -> dict[str, str]:
        """Return the record of one job; {} if Slurm's words cannot be told from the user's."""
        return next(iter(said.values())) if len(said := records(self._show(key))) == 1 else {}

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

    def _hold(self, found: Iterable[SbatchJob], now: float) -> None:
        """Have jobs that wait for tenbin wait on, well before their time has come.

        The first time this holds also jobs whose time came while tenbin was away, if they have not started.
        """
        soon = now + self.gate_s / 2
        due = [job.key for job in found if job.pending and self._due(job, now, soon)]
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
        with _waiting():
            self.update([key], "ReqNodeList=", self._later())
            return True
        return False

    def let_go(self, key: str, remark: str) -> None:
        """Leave a job to Slurm's own scheduler."""
        said = re.sub(r"[^\x20-\x7e]", "?", remark)[:200]
        with _waiting():
            self.update([key], f"AdminComment={FREE} ({said})", "StartTime=now")

    def _later(self) -> str:
        return f"StartTime=now+{int(self.gate_s)}"


@contextmanager
def _waiting() -> Iterator[None]:
    """Ignore errors of changing a job that has started or ended meanwhile."""
    try:
        yield
    except SlurmError as error:
        if not any(said in str(error) for said in GONE):
            raise
