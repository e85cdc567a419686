"""From measured profiles of nodes to a cluster with power and costs of checkpoint and restart.

Costs of a class (paper A, eq. 2-5): ``C = alpha_C M + beta_C`` and ``R = alpha_R M + beta_R + K`` of the
class's device. K belongs to the program; that of the probe's own program, built with a warm cache, stands for
all. What a profile calls poor, or emulated, is taken too, and told.

Power of a pool (paper C, constraint 3.5 ``n (p + W_base)``): ``base_w`` is what a node draws at rest beside
its packages, because a cap contains what an idle package draws. ``W_base`` of the profile contains that as
well: it is ``idle_w``, the power of a node nobody uses. ``peak_w`` is what is left of the largest power under
load. Caps go in steps of 5 W from the lowest that held to the first above all knees.

Not taken: draining of queued kernels, power of GPUs, the speed under a cap (it belongs to the job).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.errors import BadInput
from profiles.records import Model, Profile, Quality
from scheduler.model.clusters import checked
from scheduler.model.costs import Line, LinearCosts
from scheduler.model.jobs import Cluster, Pool
from scheduler.simulator.settings import Settings

CAP_STEP_W = 5.0


@dataclass(frozen=True)
class Measured:
    """A cluster and costs made from profiles, and what was taken, a line each, for people."""

    cluster: Cluster
    costs: LinearCosts
    profiles: Mapping[str, Profile]
    notes: tuple[str, ...]

    def settings(self, settings: Settings) -> Settings:
        """A world with these costs, which policies know, and these profiles."""
        if not self.costs.checkpoint:
            return replace(settings, profiles=self.profiles)
        return replace(settings, costs=self.costs, planned_costs=None, profiles=self.profiles)


def measured(cluster: Cluster, profiles: Mapping[str, Profile], folder: Path | None = None) -> Measured:
    """The cluster with what the profiles (by name of pool) say about its classes.

    Args:
        folder: where checkpoints will lie; of several storages that were measured, the one it is on.

    Raises:
        BadInput: there is no such pool, or the profiles give nothing that a simulation could use.
    """
    names = [pool.name for pool in cluster.pools]
    for name in profiles:
        if name not in names:
            raise BadInput(f"--profile {name}=...: no such class", f"the cluster has {', '.join(names)}")
    checkpoint, restart, begin, pools, notes = {}, {}, {}, [], []
    found = False
    for pool in cluster.pools:
        changed = pool
        if pool.name in profiles:
            profile = profiles[pool.name]
            at = f"{pool.name}: {profile.node} ({profile.id})"
            lines, note = lines_of(profile, pool.name, len(cluster.pools) == 1, folder)
            notes.append(f"{at}: {note}")
            if lines is not None:
                checkpoint[pool.name], restart[pool.name] = lines
                begin[pool.name] = begin_of(profile, pool.name, len(cluster.pools) == 1)
            changed, note = with_power(pool, profile)
            notes.append(f"{at}: {note}")
            found = found or lines is not None or changed != pool
        pools.append(changed)
    if not found:
        remedy = "measure what it lacks: tenbin profile --only checkpoint,power"
        raise BadInput(f"--profile: nothing to use; {'; '.join(notes)}", remedy)
    whole = checked(tuple(pools), cluster.budget_w, "with --profile")
    return Measured(whole, LinearCosts(checkpoint, restart, begin_s=begin), profiles, tuple(notes))


def lines_of(
    profile: Profile, pool: str, alone: bool, folder: Path | None = None
) -> tuple[tuple[Line, Line] | None, str]:
    """Checkpoint and restart of a class (None: the profile has none), and what was taken or is lacking."""
    device = device_of(profile, pool, alone)
    models = [m for m in profile.models if m.quantity == "checkpoint_s" and m.labels["device"] == device]
    out = max(models, key=lambda model: _nearness(model.labels["storage"], folder), default=None)
    if device is None or out is None:
        has = ", ".join(_devices(profile)) or "none"
        return None, f"no checkpoint costs, checkpoints are free (devices measured: {has})"
    back = profile.find("restart_s", device=device, storage=out.labels["storage"])
    if back is None:
        return None, f"checkpoint costs of {device} without those of restart, both are free"
    compiling = profile.find("compile_s", device=device, cache="warm")
    k = compiling["K"].value if compiling is not None else 0.0
    stop = Line(_least_0(out, "alpha_C"), _least_0(out, "beta_C"))
    start = Line(_least_0(back, "alpha_R"), _least_0(back, "beta_R") + k)
    k_text = f"K {k:.3g}" if compiling is not None else "K unknown"
    note = (
        f"{device} on {out.labels['storage']}: checkpoint {_told(stop)}, restart {_told(start)} "
        f"({k_text} included){_doubts(out, back)}"
    )
    return (stop, start), note


def begin_of(profile: Profile, pool: str, alone: bool) -> float:
    """What a restart on a class takes beside restoring: context and K of the probe's program."""
    device = device_of(profile, pool, alone)
    context = None if device is None else profile.find("context_s", device=device)
    kernels = None if device is None else profile.find("compile_s", device=device, cache="warm")
    return (context["context"].value if context else 0.0) + (kernels["K"].value if kernels else 0.0)


def device_of(profile: Profile, pool: str, alone: bool) -> str | None:
    """The measured device that a class stands for; None: it cannot be said.

    That of the class's name or one identical to it, else the first of that kind (cpu, gpu), else, for a
    single class, the only one.
    """
    devices = _devices(profile)
    known = {device.key: device for device in profile.inventory.opencl}
    for key in (pool, *devices):
        if key in devices and (key == pool or (pool in known and known[pool].is_like(known.get(key)))):
            return key
    of_kind = [device.key for device in profile.inventory.opencl if device.kind == pool]
    for key in of_kind:
        if key in devices:
            return key
    return devices[0] if alone and len(devices) == 1 and pool not in ("cpu", "gpu") else None


def _nearness(storage: str, folder: Path | None) -> int:
    """How far a measured folder stands for another: 2: it contains it, 1: on the same file system, 0: not."""
    if folder is None:
        return 0
    if folder.is_relative_to(storage):
        return 2
    while not folder.exists():
        folder = folder.parent
    try:
        return int(Path(storage).stat().st_dev == folder.stat().st_dev)
    except OSError:  # the profile's may be gone
        return 0


def with_power(pool: Pool, profile: Profile) -> tuple[Pool, str]:
    """The pool with the node's power, and what was taken or is lacking."""
    if pool.has_power:
        return pool, "power as the cluster's description states it"
    rest, beside = profile.find("W_base"), profile.find("beside_packages_w")
    busy = [model for model in profile.models if model.quantity == "power_w"]
    if rest is None or not busy:
        return pool, "no power, energy is not counted"
    if beside is None:
        return pool, (
            "no power: its W_base contains what the packages draw at rest, which caps contain too; "
            "a profile made anew tells them apart"
        )
    base_w = max(0.0, beside["beside_packages_w"].value)
    idle_w = rest["W_base"].value
    peak_w = max(model["power_w"].value for model in busy) - base_w
    caps = caps_of(profile)
    limits = f"caps {caps[0]:g} to {caps[-1]:g} W" if caps else "no caps"
    note = (
        f"power of a node: base {base_w:.3g} W (at rest {idle_w:.3g} W, of which the packages "
        f"{idle_w - base_w:.3g} W lie within the caps), {peak_w:.3g} W more uncapped, {limits}"
    )
    power = {"base_w": base_w, "peak_w": peak_w, "idle_w": idle_w, "caps_w": caps}
    return replace(pool, **power), note + _doubts(rest, beside, *busy)  # type: ignore[arg-type]


def caps_of(profile: Profile) -> tuple[float, ...]:
    """Caps worth choosing from: the lowest that held under every load, then multiples of ``CAP_STEP_W`` up to
    the first at which no load is slowed any more."""
    curves = [model for model in profile.models if model.quantity == "power_speed_ratio"]
    lowest = [curve.x_min for curve in curves if curve.x_min is not None]
    if not lowest:
        return ()
    first = max(lowest)
    last = CAP_STEP_W * math.ceil(max(curve["knee_w"].value for curve in curves) / CAP_STEP_W)
    begin = math.floor(first / CAP_STEP_W) + 1
    return (first, *(CAP_STEP_W * step for step in range(begin, round(last / CAP_STEP_W) + 1)))


def _devices(profile: Profile) -> list[str]:
    """Devices whose checkpoints were measured."""
    found = (model.labels["device"] for model in profile.models if model.quantity == "checkpoint_s")
    return list(dict.fromkeys(found))


def _told(line: Line) -> str:
    return f"{line.slope:.3g} s/MB + {line.offset:.3g} s"


def _least_0(model: Model, name: str) -> float:
    """A coefficient of a time: the fit may be below 0 where the truth is nearly 0."""
    return max(0.0, model[name].value)


def _doubts(*models: Model) -> str:
    """What is to be said against the numbers; empty if nothing."""
    poor = [c.name for model in models for c in model.coefficients if c.quality is Quality.POOR]
    doubts = [f"poor: {', '.join(dict.fromkeys(poor))}"] if poor else []
    if any(model.emulated for model in models):
        doubts.append("EMULATED")
    return f"; {'; '.join(doubts)}" if doubts else ""
