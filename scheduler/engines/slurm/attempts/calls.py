"""The calls of Slurm that a step asks for, made in the poller's thread."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.attempts.effects import Call
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob
from scheduler.engines.slurm.client.tools import Slurm, SlurmError, SlurmForbidden, SlurmSilent
from scheduler.engines.slurm.external.sbatch_queue import SbatchQueue


def steer(slurm: Slurm, attempt: SlurmAttempt, call: Call) -> object:
    """Make a call for tenbin's own job, if what has its number in Slurm is that job still."""
    number = attempt.slurm
    assert number is not None
    if not slurm.ours(number, attempt.comment):
        raise SlurmError(f"Slurm's job {number} is another's now")
    if call == "resume":
        return resume(slurm, number, attempt.cpus if attempt.want == "run" else {})
    (slurm.suspend if call == "suspend" else slurm.wake)(number)
    return None


def steer_external(sbatch: SbatchQueue, attempt: SlurmAttempt, call: Call) -> object:
    """Make a call for an external job."""
    key, slurm = attempt.external, sbatch.slurm
    if call == "start":
        sbatch.start(key, tuple(attempt.cpus))
    elif call == "hold":
        return sbatch.hold(key)
    elif call == "cancel":
        slurm.call("scancel", key)
    elif call == "suspend":
        slurm.call("scontrol", "suspend", key)
    elif isinstance(attempt.seen, SbatchJob):
        each = math.ceil(attempt.seen.cpus / len(attempt.cpus))
        return resume(slurm, key, dict.fromkeys(attempt.cpus, each))
    return None


def cancel(slurm: Slurm, number: int, comment: str) -> None:
    """Cancel the job of that number and comment, if there is one."""
    if slurm.ours(number, comment):
        slurm.cancel(number)


def resume(slurm: Slurm, number: int | str, shares: Mapping[str, int]) -> bool:
    """Let a suspended job go on if its CPUs are free, which Slurm does not check; return whether it does.

    Its supervisor was stopped as well: it looks for requests when it goes on.
    """
    if shares:
        room = {node.name: node.cpus - node.cpus_used for node in slurm.nodes()}
        if any(cpus > room.get(name, 0) for name, cpus in shares.items()):
            return False
    try:
        slurm.resume(number)
    except (SlurmSilent, SlurmForbidden):
        raise
    except SlurmError as error:
        if "not suspended" not in str(error):
            raise
    return True
