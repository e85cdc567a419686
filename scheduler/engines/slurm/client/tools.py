"""Slurm by its command line tools: each call has a time-out, and its answer is understood or refused."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.processes import umask
from profiles.errors import Unavailable
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.parse import SlurmJob, SlurmNode

TIMEOUT_S = 20.0
FREE_S = 10  # until a node on which a job has just ended takes another
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ")
SILENT = (
    *("Unable to contact slurm controller", "Connection refused", "onnection timed out", "Socket timed out"),
    *("Communication connection failure", "standby mode", "Zero Bytes were transmitted", "Try again"),
    *("missing socket", "Communication send failure", "eceive failure", "Communication shutdown failure"),
    *("Transport endpoint is not connected", "temporarily unable to accept", "Unable to establish control"),
)
STRANGE = ("unge", "authentication", "Invalid authentication credential")
FORBIDDEN = ("Access/permission denied", "Invalid user id", "Operation not permitted", "ermission denied")
OF_NODES = (
    *("Invalid node name specified", "Requested nodes not in this partition", "Requested nodes are busy"),
    "Required node not available",
)
UNCONFIGURED = ("configuration source", "unable to process configuration", "Unable to open", "slurm.conf")


class SlurmError(Unavailable):
    """A failed call: Slurm refused, and will again."""


class SlurmSilent(SlurmError):
    """A call without an answer; Slurm may have done what it was told."""


class SlurmNodeRefused(SlurmError):
    """A call refused because of the nodes that it names; others may do."""


class SlurmForbidden(SlurmError):
    """A call that takes more rights than this user has."""


@dataclass(frozen=True)
class Batch:
    """A job for sbatch.

    Attributes:
        script: the whole script.
        comment: by which it is found again.
        nodes: where it has to run.
        tasks, cpus: tasks in all, CPUs of each.
        memory_mb: on each node; None: as the site has it by default.
        time_s: limit; None: that of the partition.
        output: file for what the script itself prints.
        gres: generic resources on each node, as ``--gres`` takes them; empty: none.
    """

    script: str
    name: str
    comment: str
    partition: str
    nodes: tuple[str, ...]
    tasks: int
    cpus: int
    memory_mb: float | None
    time_s: float | None
    output: Path
    gres: str = ""

    def options(self) -> list[str]:
        found = [
            *("--parsable", "--no-requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
            *(f"--job-name={self.name}", f"--comment={self.comment}", f"--output={self.output}"),
            *(f"--partition={self.partition}", f"--nodelist={','.join(self.nodes)}"),
            *(f"--nodes={len(self.nodes)}", f"--ntasks={self.tasks}", f"--cpus-per-task={self.cpus}"),
        ]
        if self.memory_mb is not None:
            found.append(f"--mem={math.ceil(self.memory_mb / parse.MIB - 1e-6)}M")
        if self.time_s is not None:
            found.append(f"--time={int(self.time_s // 60) + 2}")  # tenbin ends it first, to the second
        if self.gres:
            found.append(f"--gres={self.gres}")
        return found


class Slurm:
    """The tools; safe to be used by several threads."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        # What the environment says of other jobs, or of defaults (SBATCH_PARTITION), must not come into ours.
        self.environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C"}

    def submit(self, batch: Batch) -> int:
        """Hand a job to Slurm and return its number; after SlurmSilent it may be there all the same."""
        return parse.submitted(self.call("sbatch", *batch.options(), given=batch.script))

    def jobs(self) -> list[SlurmJob]:
        """List this user's jobs, with those that ended within the last minutes."""
        mark = parse.separator()
        form = "".join(column + mark for column in parse.COLUMNS)
        whose = ("--all", "--states=all", f"--user={os.getuid()}")
        return parse.jobs(self.call("squeue", "--noheader", *whose, f"--format={form}"), mark)

    def nodes(self) -> list[SlurmNode]:
        return parse.nodes(self.call("scontrol", "--oneliner", "--all", "show", "node"))

    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        return parse.partitions(self.call("scontrol", "--oneliner", "--all", "show", "partition"))

    def config(self) -> Mapping[str, str]:
        return parse.config(self.call("scontrol", "show", "config"))

    def version(self) -> tuple[int, int]:
        return parse.version(self.call("sbatch", "--version"))

    def wake(self, job: int) -> None:
        """Signal the batch script's process (SIGUSR1) that there is a request in its folder."""
        self.call("scancel", "--batch", "--signal=USR1", str(job))

    def suspend(self, job: int) -> None:
        self.call("scontrol", "suspend", str(job))

    def resume(self, job: int | str) -> None:
        """Resume a job; Slurm does not check that its CPUs are free."""
        self.call("scontrol", "resume", str(job))

    def cancel(self, job: int) -> None:
        self.call("scancel", str(job))

    def ours(self, job: int, comment: str) -> bool:
        """Say whether the job of that number has the comment.

        A slurmctld that was killed may have forgotten the job, and given its number to another.
        """
        try:
            whose = ("--all", "--states=all", f"--user={os.getuid()}", f"--jobs={job}")
            said = self.call("squeue", "--noheader", *whose, "--format=%k")
        except SlurmSilent:
            raise
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return False
            raise
        return said.removesuffix("\n") == comment

    def set_node(self, name: str, state: str, reason: str = "") -> None:
        """Set the state of a node; SlurmForbidden unless this user is an administrator, SlurmUser or root."""
        why = [f"Reason={reason}"] if reason else []
        self.call("scontrol", "update", f"NodeName={name}", f"State={state}", *why)

    def slurmd_port(self) -> int:
        """Return the port of slurmd on nodes that name none of their own; the first of several."""
        return int(self.config().get("SlurmdPort", "6818").split("-")[0])

    def run_on(self, nodes: Sequence[str], partition: str, program: Sequence[str]) -> str:
        """Run a short program on each of the nodes, and return its output; SlurmError if none is free."""
        return self.call(*step_command(nodes, partition, program))

    def call(self, *command: str, given: str = "") -> str:
        """Call a tool and return its output.

        Raises:
            SlurmSilent, SlurmForbidden, SlurmError: as they say.
        """
        path = shutil.which(command[0], path=self.environment.get("PATH"))
        if path is None:
            raise SlurmError(
                f"{command[0]}: no such program",
                "install Slurm's tools (Debian: slurm-client), or see: tenbin doctor --engine slurm",
            )
        try:
            done = subprocess.run(
                [path, *command[1:]],
                input=given,
                env=self.environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
                start_new_session=True,  # Ctrl-C is for the coordinator
                umask=umask.of_jobs(),  # sbatch hands it on
            )
        except subprocess.TimeoutExpired:
            raise SlurmSilent(f"{command[0]} did not answer within {self.timeout_s:g} s", REACH) from None
        if done.returncode == 0:
            return done.stdout
        raise error_of(command, done.stderr or done.stdout, done.returncode)


REACH = "is slurmctld running? see: scontrol ping"


def error_of(command: Sequence[str], said: str, code: int) -> SlurmError:
    """Explain a failed call."""
    lines = [line.partition("error: ") for line in said.splitlines() if line.strip()]
    reasons = [reason.strip() for _, mark, reason in lines if mark]
    reasons = reasons or [line[0].strip() for line in lines[-1:]]
    what = f"{command[0]}: {'; '.join(reasons)[:300] or f'exit code {code}'}"
    if any(sign in said for sign in STRANGE):
        return SlurmSilent(what, "does munged run here with the cluster's key? see: munge -n | unmunge")
    if any(sign in said for sign in SILENT):
        return SlurmSilent(what, REACH)
    if any(sign in said for sign in FORBIDDEN):
        return SlurmForbidden(what, "see: tenbin doctor --engine slurm")
    if any(sign in said for sign in OF_NODES):
        return SlurmNodeRefused(what, "see: sinfo")
    if any(sign in said for sign in UNCONFIGURED):
        return SlurmError(what, "name the cluster's slurm.conf in SLURM_CONF")
    return SlurmError(what, "see: tenbin doctor --engine slurm")


def step_command(
    nodes: Sequence[str],
    partition: str,
    program: Sequence[str],
    *,
    memory_mb: int = 64,
    gres: str = "",
    minutes: int = 1,
) -> list[str]:
    """Return the command line that runs a short program once on each of the nodes, if they are free now."""
    count = len(nodes)
    return [
        *(
            "srun",
            "--quiet",
            f"--immediate={FREE_S}",
            f"--mem={memory_mb}M",
            f"--time={minutes}",
            "--mpi=none",
        ),
        *("--input=none", "--chdir=/", "--job-name=tenbin-node", f"--partition={partition}"),
        *("--ntasks-per-node=1", f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(nodes)}"),
        *([f"--gres={gres}"] if gres else []),
        *program,
    ]
