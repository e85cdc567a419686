"""This machine's processor packages as nodes under power caps and one budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from probes.power.caps import LOWEST_SHARE
from probes.power.powercap import Zone, capped, cores_of, zones
from profiles.errors import BadInput, Unavailable
from profiles.records import Profile
from scheduler.engines.common.machine import cap_lines, scaling_of
from scheduler.engines.local.machine import LocalMachine
from scheduler.engines.local.packages import Packages
from scheduler.engines.local.supply import Supply
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import policy_class
from scheduler.prediction.profiles import CAP_STEP_W, with_power

HINT = "see: tenbin doctor; to try it on emulated ones: --emulate intel-2s"


def capped_packages(
    policy: str,
    budget_w: float,
    nodes: int | None,
    profile: Profile | None,
    *,
    sysfs: Path,
    emulated: str,
    supply: Supply | None = None,
) -> LocalMachine:
    """Find the processor packages, each a node that one job has to itself.

    Args:
        policy: name of the policy, which must choose caps.
        budget_w: what the packages in use may draw together.
        nodes: so many packages; None: all.
        profile: measured here; says what a package draws and how caps and sizes change the speed.
        sysfs: root of the tree with the zones. emulated: name of the emulated machine; empty: it is real.

    Raises:
        BadInput: the policy chooses no caps, there are fewer packages, or the budget carries none of them.
        Unavailable: there are no caps here, or this user may not set them.
    """
    name = policy.partition(",")[0]
    if "power" not in policy_class(policy).suits:
        raise BadInput(f"--power-budget: policy {name} chooses no power caps", "choose parm or fifo-mid")
    found = sorted(capped(zones(sysfs)), key=lambda zone: zone.key)
    if not found:
        raise Unavailable(f"--power-budget: no package below {sysfs} has a power cap", HINT)
    for zone in found:
        if not zone.writable:
            raise Unavailable(f"--power-budget: {zone.path} may be written by root only", "run as root")
    if nodes is not None and nodes > len(found):
        have = f"{len(found)} package{'s' * (len(found) > 1)} here"
        raise BadInput(f"--nodes {nodes}: a cap is of a whole package, and there are {have}", "ask for fewer")
    supply = supply or Supply()
    cores = _emulated_cores(emulated) if emulated else cores_of(sysfs, found, supply.usable.core_of)
    taken = supply.take_packages([cores[zone.key] for zone in found if cores[zone.key]], nodes)
    used = [zone for zone in found if cores[zone.key] in taken]
    size = min((len(cores[zone.key]) for zone in used), default=0)
    if not size:
        raise Unavailable("--power-budget: this process may use no core of any package", "see: taskset -p $$")
    pool = _power(used, len(found), profile, emulated)
    unit = Unit(node=True, cores=size, package=True, emulated=emulated)
    if profile is not None:
        unit = replace(unit, scaling=scaling_of(profile), caps=cap_lines(profile, pool, len(found)))
    least_w = pool.power_w(1, pool.caps_w[0])
    if budget_w < least_w:
        what = f"--power-budget {budget_w:g}: a package at its lowest cap draws {least_w:g} W"
        raise BadInput(what, "give at least that")
    packages = Packages(sysfs, tuple(zone.key for zone in used), emulated)
    parts = [list(cores[zone.key][:size]) for zone in used]
    return LocalMachine(Cluster((pool,), budget_w), cores=parts, unit=unit, packages=packages, supply=supply)


def _power(used: Sequence[Zone], packages: int, profile: Profile | None, emulated: str) -> Pool:
    """Return the pool with the power of a package; a profile tells the power of all packages together."""
    pool = Pool("node", len(used))
    if profile is not None:
        if profile.settings.emulated != emulated:
            other = profile.settings.emulated or "the real machine"
            what = f"--profile: it was measured on {other}, not on {emulated or 'the real machine'}"
            raise BadInput(what, "see: tenbin list")
        whole, note = with_power(pool, profile)
        if whole.caps_w:
            caps = tuple(cap / packages for cap in whole.caps_w)
            power = {"base_w": whole.base_w / packages, "peak_w": whole.peak_w / packages, "caps_w": caps}
            return replace(pool, **power, idle_w=whole.idle_w / packages)  # type: ignore[arg-type]
        raise BadInput(f"--profile: {note}", "measure it: tenbin profile --only power")
    lowest = max(_lowest_w(zone) for zone in used)
    highest = min(zone.cap_w or math.inf for zone in used)
    steps = range(math.floor(lowest / CAP_STEP_W) + 1, math.ceil(highest / CAP_STEP_W))
    caps = (lowest, *(CAP_STEP_W * step for step in steps), highest) if highest > lowest else (highest,)
    return replace(pool, peak_w=highest, caps_w=caps)


def _lowest_w(zone: Zone) -> float:
    """Return the lowest cap that the hardware names, else a quarter of the largest."""
    constraint = zone.long_term
    if constraint is not None and constraint.min_w:
        return constraint.min_w
    return LOWEST_SHARE * min(zone.cap_max_w or zone.cap_w or 0.0, zone.cap_w or 0.0)


def _emulated_cores(name: str) -> dict[str, tuple[int, ...]]:
    from agent.emulation.machines import cores_of, parse

    return cores_of(parse(name)[0])
