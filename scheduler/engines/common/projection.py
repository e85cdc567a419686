"""Nodes in the terms that a policy schedules in: counted units, nodes, shared nodes, classes, power caps.

An engine describes its nodes once; what a policy schedules of them follows from what it ``suits``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from profiles.errors import BadInput
from profiles.records import Profile
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import NODES, Unit
from scheduler.model.jobs import Pool
from scheduler.model.parameters import split
from scheduler.policies.registry import policy_class
from scheduler.prediction.profiles import CAP_STEP_W, cap_lines, scaling_of, with_power

Terms = Literal["classes", "counted", "either", "nodes", "sharing"]


def terms_of(policy: str, on: str, *, devices: bool = False) -> Terms:
    """Return what the policy schedules of nodes; "either": counted units, or nodes if these have GPUs.

    Where it is "either" or "nodes", nodes may have GPUs. A policy that suits more than "sharing" is asked for
    that by its parameter ``most``.

    Args:
        on: what it is to schedule, for people. devices: their OpenCL devices.

    Raises:
        BadInput: it cannot.
    """
    name, given = split(policy)
    suits = policy_class(policy).suits
    if devices and "classes" not in suits:
        raise BadInput(f"policy {name} does not schedule classes of devices", "choose weigh, las-mq or fcfs")
    if devices:
        return "classes"
    if "sharing" in suits and ("most" in given or suits == {"sharing"}):
        return "sharing"
    if suits & {"counted", "power"}:
        return "either" if "nodes" in suits else "counted"
    if "nodes" in suits:
        return "nodes"
    raise BadInput(f"policy {name} cannot run jobs on {on} yet", "try it with: tenbin simulate")


def pool_of_nodes(
    capacities: Sequence[tuple[float, ...]], kinds: Sequence[GpuKind] = (), names: tuple[str, ...] = ()
) -> Pool:
    """Make a pool of nodes, given what each has: cores, memory, GPUs of these kinds.

    A job of several nodes takes the cores of the smallest on each of them. Where others have twice as many,
    a resource more keeps two of its parts off the same node.
    """
    resources: tuple[str, ...] = ("cores", "memory_mb", *(kind.resource for kind in kinds))
    cores = [capacity[0] for capacity in capacities]
    if max(cores) >= 2 * min(cores):
        resources, capacities = (*resources, NODES), [(*capacity, 1.0) for capacity in capacities]
    pool = Pool("node", len(capacities), resources=resources, names=names)
    if len(set(capacities)) == 1:
        return replace(pool, capacity=capacities[0])
    return replace(pool, capacities=tuple(capacities))


# -- power caps and speeds ---------------------------------------------------------------------------------


def check_caps(policy: str) -> None:
    """Refuse, by BadInput, a policy that chooses no power caps."""
    if "power" not in policy_class(policy).suits:
        name, _ = split(policy)
        raise BadInput(f"--power-budget: policy {name} chooses no power caps", "choose weigh or parm")


def cap_choices(lowest_w: float, highest_w: float) -> tuple[float, ...]:
    """List caps to choose from where nothing was measured."""
    steps = range(math.floor(lowest_w / CAP_STEP_W) + 1, math.ceil(highest_w / CAP_STEP_W))
    inner = (*(CAP_STEP_W * step for step in steps), highest_w) if highest_w > lowest_w else ()
    return (lowest_w, *inner) if inner else (highest_w,)


def measured_power(pool: Pool, profile: Profile, emulated: str) -> Pool:
    """Return the pool with the power of a whole node, and the caps that are worth choosing from.

    Args:
        emulated: the machine that the nodes emulate; empty: they are real.

    Raises:
        BadInput: the profile is of another machine, or says nothing of power.
    """
    if profile.settings.emulated != emulated:
        machines = [name or "the real machine" for name in (profile.settings.emulated, emulated)]
        what = f"--profile: it was measured on {machines[0]}, not on {machines[1]}"
        raise BadInput(what, "see: tenbin profile list")
    whole, note = with_power(pool, profile)
    if not whole.caps_w:
        raise BadInput(f"--profile: {note}", "measure it: tenbin profile --only power")
    return whole


def measured_speeds(unit: Unit, profile: Profile | None, pool: Pool, parts: int) -> Unit:
    """Return the unit, one of so many equal ``parts`` of a node, with how sizes and caps change its speed."""
    if profile is None:
        return unit
    return replace(unit, scaling=scaling_of(profile), caps=cap_lines(profile, pool, parts))
