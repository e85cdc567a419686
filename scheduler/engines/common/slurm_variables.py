"""The variables that Slurm sets for a batch script, for scripts with ``#SBATCH`` lines."""

from __future__ import annotations

import os
import platform

from scheduler.jobs.entry import Entry


def of_script(job: Entry) -> dict[str, str]:
    """Return the variables that no engine gets from Slurm, because an array is one of tenbin's own."""
    found = {"SLURM_JOB_NAME": job.spec.name}
    if job.array_index is not None:
        found["SLURM_ARRAY_TASK_ID"] = str(job.array_index)
        found["SLURM_ARRAY_JOB_ID"] = str(job.array or job.id)
    return found


def of_machine(job: Entry) -> dict[str, str]:
    """Return the variables of a job on this machine, where there is no Slurm."""
    cores, node = str(len(job.cores) or job.spec.tasks * job.spec.cores), platform.node().partition(".")[0]
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
