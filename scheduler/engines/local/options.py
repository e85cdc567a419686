"""Options of ``tenbin up`` for this machine."""

from __future__ import annotations

from profiles.errors import BadInput
from scheduler.engines.registry import IdleRule, Megabytes, Option, Seconds, UpRequest

OF = "this machine"
OPTIONS = (
    Option("cores", int, "Use so many cores. (default: all that this process may use)", least=1),
    Option("nodes", int, "Split the machine into so many nodes, for policies that place.", least=1),
    Option(
        "memory", Megabytes, "Memory for all jobs together: 20G. (default: all that this process may use)"
    ),
    Option(
        "share",
        bool,
        "Use cores and devices that another coordinator of this machine gives to jobs, too, or "
        "TENBIN_SHARE=1. (default: those that are left)",
        default=False,
    ),
    Option("no_gpus", bool, "Leave the GPUs of this machine alone. (default: jobs get them)", default=False),
    Option(
        "idle_after",
        Seconds,
        "Tell the owner of a job of GPUs on which it has done nothing for so long: 1h.",
        default=3600.0,
        least=1.0,
    ),
    Option(
        "idle_gpu",
        IdleRule,
        "What becomes of a job that has done nothing on all of its GPUs for so long: 2h=end, or 2h=park: "
        "it writes a checkpoint, if it can. (default: it runs on)",
        metavar="TIME=end|park",
    ),
    Option(
        "no_trials",
        bool,
        "With --devices: try no running program on an idle device to know how fast it would be there.",
        default=False,
    ),
)


def check(request: UpRequest, *, profiled: bool) -> None:
    """Refuse options that exclude each other.

    Raises:
        BadInput: they are given together.
    """
    if request.own["no_trials"] and not request.devices:
        raise BadInput("--no-trials: programs are tried on devices only", "add --devices")
    budget_w = request.power_budget_w
    given = {f"--{name}": request.own[name] for name in ("cores", "nodes")} | {"--power-budget": budget_w}
    for name, value in given.items():
        if request.devices and value is not None:
            what = f"{name} with --devices: devices are scheduled"
            raise BadInput(f"{what}, not {name[2:]}", "give one of them")
    if budget_w is not None and request.own["cores"] is not None:
        raise BadInput("--cores with --power-budget: jobs get whole packages", "say how many by --nodes")
