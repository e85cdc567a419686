"""Orders for supervisors: command, environment, cores and limits of a job's attempt."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.attempts.folder import JOB_KEY, Attempt
from agent.attempts.records import Order
from agent.multi_node import ranks, remote_shell
from probes.mpi import rank_guard
from probes.power_load import MARK
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.jobs.entry import Entry
from scheduler.jobs.rows import row_of
from scheduler.jobs.sizes import Unit, tasks_on
from scheduler.jobs.specs import JobSpec

if TYPE_CHECKING:
    from probes.mpi.runner import MpiInstall

OUTER_RANKS = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_")  # what an mpiexec around us tells its ranks


class Files(NamedTuple):
    """A job's own folder, and where its output goes."""

    folder: Path
    stdout: Path
    stderr: Path


class Orders:
    """Writes orders.

    Args:
        store: folder of the coordinator.
        unit: what one unit of a pool of cores or nodes is.
        node_of: the node of each core.
        sysfs: root of the tree with the power caps, where jobs get whole packages. emulated: it is emulated.
        pins: whether a job is bound to its cores here; else by whatever starts its supervisor.
    """

    def __init__(
        self,
        store: Path,
        unit: Unit,
        node_of: Mapping[int, int],
        *,
        sysfs: Path | None = None,
        emulated: bool = False,
        pins: bool = True,
    ) -> None:
        self.unit, self.sysfs, self.emulated, self.pins = unit, sysfs, emulated, pins
        self._node_of = node_of
        self._mpi: MpiInstall | None = None
        self._mpi_file = store / "mpi.json"

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        """Look for an MPI if one of the jobs needs it; Unavailable if there is none that works."""
        if self._mpi is None and any(spec.mpi for spec in specs):
            from probes.mpi.runner import find_mpi

            mpi = find_mpi()
            write_whole(self._mpi_file, json.dumps([str(mpi.launcher), mpi.family, mpi.library]))
            self._mpi = mpi

    def order(
        self,
        job: Entry,
        environment: dict[str, str],
        attempt: Attempt,
        mark: str,
        *,
        files: Files,
        shares: Mapping[str, int] | None = None,
    ) -> Order:
        """Write down what the attempt's supervisor is to do.

        Args:
            shares: the job's cores on each node, where it may have several.

        Raises:
            Unavailable: it takes an mpiexec, and none was found at its submission.
        """
        spec, tasks, command = job.way, self._tasks(job), job.spec.command
        devices = () if self.unit.gpus else job.devices  # GPUs have variables of their own
        environment = {**environment, **spec.env, **_about(job, tasks, files.folder, devices)}
        hosts: dict[str, int] = {}
        if spec.mpi:
            environment = {k: v for k, v in environment.items() if not k.startswith(OUTER_RANKS)}
            environment[rank_guard.REPORTS] = str(attempt.path / ranks.REPORTS)
            mpi = self._known_mpi()
            if shares is None or len(shares) == 1:
                command = tuple(mpi.job_command(tasks, command, self._bind(job, tasks)))
            else:
                hosts = ranks_on(shares, spec.cores, tasks)
                command = tuple(mpi.spread_command(hosts, command))
                environment |= remote_shell.variables() | {remote_shell.FOLDER: str(attempt.path)}
        if self.emulated:
            environment[MARK] = spec.load  # its processes are loads of an emulated machine
        total_mb = None if spec.memory_mb is None else spec.memory_mb * tasks
        return Order(
            job_id=job.id,
            attempt=job.attempt,
            mark=mark,
            command=command,
            environment=environment,
            folder=spec.folder,
            stdout=str(files.stdout),
            stderr=str(files.stderr),
            terminal=spec.terminal,
            cores=job.cores if self.pins else (),
            time_limit_s=spec.time_s,
            memory_limit_mb=total_mb,
            checkpoint_signal=spec.checkpoint_signal,
            checkpoint_code=spec.checkpoint_code,
            grace_s=spec.grace_s,
            mpi=spec.mpi,
            sysfs=str(self.sysfs) if self.sysfs is not None else "",
            emulated=self.emulated,
            hosts=hosts,
            journalled=row_of(job),
        )

    def _tasks(self, job: Entry) -> int:
        placement = job.placement
        assert placement is not None
        of_devices = job.devices and not self.unit.gpus
        return placement.units if of_devices else tasks_on(job.way, placement.units, self.unit)

    def _bind(self, job: Entry, tasks: int) -> list[tuple[int, ...]]:
        """Return the cores of each task, none of them across nodes; empty: anywhere."""
        of_task, groups = job.way.cores, []
        if not self.pins:
            return []
        for _, node in groupby(job.cores, key=self._node_of.get):
            cores = tuple(node)
            groups += [cores[i : i + of_task] for i in range(0, len(cores) - of_task + 1, of_task)]
        return groups[:tasks]

    def _known_mpi(self) -> MpiInstall:
        """Return the MPI found when a job was submitted, because a new search would block all for seconds."""
        from probes.mpi.runner import MpiInstall

        if self._mpi is None:
            try:
                launcher, family, library = json.loads(self._mpi_file.read_text())
            except (OSError, ValueError) as error:
                raise Unavailable(f"{self._mpi_file}: {error}", "submit the job again") from None
            self._mpi = MpiInstall(Path(launcher), family, library)
        return self._mpi


def _about(job: Entry, tasks: int, folder: Path, devices: Sequence[int]) -> dict[str, str]:
    """Return the variables that tell a job about itself; its key is unique, also after a new journal."""
    spec = job.spec
    variables = {
        "TENBIN_JOB_ID": str(job.id),
        "TENBIN_JOB_FOLDER": str(folder),
        JOB_KEY: f"{job.id}-{job.submit_s:.0f}",
        "TENBIN_GENERATION": str(job.attempt),
        "TENBIN_TASKS": str(tasks),
    }
    if spec.alternatives and job.placement is not None:
        variables["TENBIN_ALTERNATIVE"] = str(job.placement.alternative)
    if devices:
        variables["TENBIN_DEVICE"] = ",".join(map(str, devices))
    if spec.checkpoint_signal is not None:
        variables["TENBIN_CHECKPOINT_SIGNAL"] = str(spec.checkpoint_signal)
    if job.array_index is not None:
        variables["TENBIN_ARRAY_INDEX"] = str(job.array_index)
    if job.array is not None:
        variables["TENBIN_ARRAY"] = str(job.array)
    if spec.slurm_variables:
        variables |= slurm_script_variables(job)
    return variables


def ranks_on(shares: Mapping[str, int], of_rank: int, tasks: int) -> dict[str, int]:
    """Distribute ranks of so many cores each over nodes, in order, as many as there is room."""
    ranks: dict[str, int] = {}
    for host, cores in shares.items():
        ranks[host] = min(cores // of_rank, tasks - sum(ranks.values()))
    return {host: count for host, count in ranks.items() if count}


# -- variables of scripts with #SBATCH lines ---------------------------------------------------------------


def slurm_script_variables(job: Entry) -> dict[str, str]:
    """Return the variables that no engine gets from Slurm, because an array is one of tenbin's own."""
    variables = {"SLURM_JOB_NAME": job.spec.name}
    if job.array_index is not None:
        variables["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
        variables["SLURM_ARRAY_JOB_ID"] = str(job.array or job.id)
    return variables


def slurm_machine_variables(job: Entry) -> dict[str, str]:
    """Return the variables of a job on this machine, where there is no Slurm."""
    cores, node = str(len(job.cores) or job.way.tasks * job.way.cores), platform.node().partition(".")[0]
    return {
        "ENVIRONMENT": "BATCH",
        "SLURMD_NODENAME": node,
        "SLURM_CLUSTER_NAME": "tenbin",
        "SLURM_CPUS_ON_NODE": cores,
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_CPUS_PER_NODE": cores,
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NODELIST": node,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_LOCALID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": node,
        "SLURM_PROCID": "0",
        "SLURM_RESTART_COUNT": str(job.attempt - 1),
    }
