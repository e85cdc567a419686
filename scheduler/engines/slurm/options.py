"""Options of ``tenbin up`` for a Slurm cluster."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import BadInput
from scheduler.engines.registry import Option, Seconds, UpRequest

OF = "a Slurm cluster"
OPTIONS = (
    Option("partition", str, "With --engine slurm: schedule these nodes. (default: Slurm's default)"),
    Option(
        "unit",
        int,
        "With --engine slurm: units of so many cores of one node, for policies that count units. "
        "(default: whole nodes)",
        least=1,
    ),
    Option(
        "lease",
        Seconds,
        "With --engine slurm: the time after which a job that cannot see its folder ends itself; the "
        "jobs of a lost node run again when it has passed.",
        default=30.0,
        least=2,
        metavar="TIME",
    ),
    Option(
        "set_down",
        bool,
        "With --engine slurm: set nodes that are dead down in Slurm, long before it notices itself; "
        "those that answer again are resumed. Takes an administrator.",
        default=False,
    ),
    Option(
        "take_over",
        Path,
        "With --engine slurm: take over jobs of plain sbatch. FILE tells job_submit.lua that "
        "tenbin is there; the same as in: tenbin slurm config --job-submit FILE",
        metavar="FILE",
    ),
    Option(
        "gate",
        Seconds,
        "With --take-over: jobs of sbatch that wait start by themselves so long after tenbin has gone.",
        default=3600.0,
        least=5,
        metavar="TIME",
    ),
    Option(
        "partitions",
        str,
        "With --engine slurm and policy regions: make each region a partition of Slurm, PREFIX-1, "
        "PREFIX-2, ...",
        metavar="PREFIX",
    ),
)


def check(request: UpRequest, *, profiled: bool) -> None:
    """Refuse options that exclude or need each other.

    Raises:
        BadInput: they are not as they should be.
    """
    own, capped = request.own, request.power_budget_w is not None
    if request.devices and capped:
        raise BadInput(
            "--power-budget with --devices: devices are scheduled, not power-budget", "give one of them"
        )
    if profiled and not capped and not request.devices:
        what = "--profile with --engine slurm is of power caps, or of devices"
        raise BadInput(what, "add --power-budget or --devices")
    if own["unit"] is not None and capped:
        raise BadInput("--unit with --power-budget: jobs get whole nodes", "leave it out")
    if own["take_over"] is not None and capped:
        raise BadInput("--take-over with --power-budget: nothing caps what sbatch starts", "give one of them")
    if own["take_over"] is not None and own["partitions"] is not None:
        what = "--take-over with --partitions: jobs of sbatch keep the partition that they have"
        raise BadInput(what, "give one of them")
