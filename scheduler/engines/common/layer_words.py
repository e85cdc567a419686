"""Words on the layer below OpenCL programs of jobs, the same under each engine that has it."""

from __future__ import annotations

from agent.attempts.records import RunState
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec

UNBEGUN = "cannot be moved before it has begun"
COMPILING = "the layer is being compiled{where}; jobs that start later can be moved"


def left_out(spec: JobSpec) -> str:
    """Say as a clause why a job is to be without the layer; "" if it is to have it."""
    if not spec.move:
        return "it was submitted with --no-move"
    return "its ranks are started by mpiexec" if spec.mpi else ""


def paused(job: Entry, state: RunState) -> str:
    """Say where the contents of a parked job are, and what it waits for."""
    if state.parked_mb is None:
        return "cannot be moved while it is paused"
    parked = f"it is parked: {state.parked_mb:.3g} MB that it had on {state.device}"
    if job.stage is Stage.RUNNING and job.placement is not None:
        return f"{parked}; it goes on as soon as {job.placement.pool} takes it"
    return parked
