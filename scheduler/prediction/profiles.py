"""Predictions from measured profiles: of nodes (costs and power of a cluster) and of jobs.

Costs of a class (paper A, eq. 2-5): ``C = alpha_C M + beta_C`` and ``R = alpha_R M + beta_R + K`` of the
class's device. K belongs to the program; the K of the probe's program, built with a warm cache, stands for
all. Poor or emulated coefficients are used too, and named in the notes.

Power of a pool (paper C, constraint 3.5 ``n (p + W_base)``): ``base_w`` is the power of a node at rest
without its packages, because a cap contains the power of an idle package. ``idle_w`` is ``W_base`` of the
profile, with the packages. ``peak_w`` is the rest of the largest power under load. Caps go in
steps of 5 W from the lowest that held to the first above all knees.

Speed under a cap, and over cores, belongs to the job: an engine has that of the built-in loads for jobs of
which nothing else is known, by what bounds them.

Not used: draining of queued kernels, power of GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from profiles.errors import BadInput
from profiles.files.store import JobStore
from profiles.jobs import JobProfile
from profiles.models import predict, quantile_of_line, t_quantile
from profiles.models.contention import slowdown_beside
from profiles.records import Model, NodeKind, Profile, Quality
from scheduler.model.clusters import checked
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.interference import PACKED, Pressure, Slowdowns
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.quantiles import LEVELS
from scheduler.model.speeds import ARITHMETIC, MEMORY, CapLine, Figures, all_bounds
from scheduler.prediction.run_times import JobSignature, PastRun, program_of

CAP_STEP_W = 5.0
SCALES_LIKE = {"compute": "ep", "memory": "mg"}  # the built-in load whose measured scaling stands for a job's
FIGURES = ("device_bandwidth_gbs", "device_gflops")
NEEDS = ("peak_memory_mb", "registered_mb", "compile_s")  # in the order of ``PastRun``


@dataclass(frozen=True)
class MeasuredCluster:
    """A cluster and costs made from profiles, and a note on each source for people."""

    cluster: Cluster
    costs: LinearCosts
    profiles: Mapping[str, Profile]
    notes: tuple[str, ...]


def measured_cluster(
    cluster: Cluster, profiles: Mapping[str, Profile], folder: Path | None = None
) -> MeasuredCluster:
    """Add what the profiles (by name of pool) say about its classes to a cluster.

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
    useful = False
    for pool in cluster.pools:
        changed = pool
        if pool.name in profiles:
            profile = profiles[pool.name]
            at = f"{pool.name}: {profile.node} ({', '.join(filter(None, (profile.id, profile.partly)))})"
            lines, note = lines_of(profile, pool.name, len(cluster.pools) == 1, folder)
            notes.append(f"{at}: {note}")
            if lines is not None:
                checkpoint[pool.name], restart[pool.name] = lines
                begin[pool.name] = begin_of(profile, pool.name, len(cluster.pools) == 1)
            changed, note = with_power(pool, profile)
            notes.append(f"{at}: {note}")
            useful = useful or lines is not None or changed != pool
        pools.append(changed)
    alone = len(cluster.pools) == 1
    ratios = all_bounds({name: figures_of(profile, name, alone) for name, profile in profiles.items()})
    if not useful and not ratios:
        remedy = "measure what it lacks: tenbin profile --only checkpoint,device,power"
        raise BadInput(f"--profile: nothing to use; {'; '.join(notes)}", remedy)
    notes += [
        f"{name}: {ratio.low:.3g} to {ratio.high:.3g} times as fast as {other}, by memory and arithmetic"
        for (name, other), ratio in ratios.items()
        if names.index(name) < names.index(other)
    ]
    whole = replace(checked(tuple(pools), cluster.budget_w, "with --profile"), ratios=ratios)
    return MeasuredCluster(whole, LinearCosts(checkpoint, restart, begin_s=begin), profiles, tuple(notes))


def lines_of(
    profile: Profile, pool: str, alone: bool, folder: Path | None = None
) -> tuple[tuple[LinearCost, LinearCost] | None, str]:
    """Read checkpoint and restart of a class (None: not measured), and a note on what was taken or lacks."""
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
    stop = LinearCost(_least_0(out, "alpha_C"), _least_0(out, "beta_C"), *_halves(out))
    start = LinearCost(_least_0(back, "alpha_R"), _least_0(back, "beta_R") + k, *_halves(back))
    k_text = f"K {k:.3g}" if compiling is not None else "K unknown"
    note = (
        f"{device} on {out.labels['storage']}: checkpoint {_line_words(stop)}, restart {_line_words(start)} "
        f"({k_text} included){_doubts(out, back)}"
    )
    return (stop, start), note


def begin_of(profile: Profile, pool: str, alone: bool) -> float:
    """Read what a restart takes beside restoring: context and K of the probe's program."""
    device = device_of(profile, pool, alone)
    context = None if device is None else profile.find("context_s", device=device)
    kernels = None if device is None else profile.find("compile_s", device=device, cache="warm")
    return (context["context"].value if context else 0.0) + (kernels["K"].value if kernels else 0.0)


def figures_of(profile: Profile, pool: str, alone: bool) -> Figures:
    """Read bandwidths and speeds of arithmetic of a class's device, as far as their intervals are known."""
    device = device_of(profile, pool, alone, "device_gflops")
    figures = {}
    for model in profile.models:
        resource = model.labels.get("kernel") or model.labels.get("precision")
        if model.quantity not in FIGURES or model.labels.get("device") != device or resource is None:
            continue
        c = model.coefficients[0]
        if resource in (*MEMORY, *ARITHMETIC) and c.low is not None and c.high is not None and c.low > 0:
            figures[resource] = c.low, c.high
    return figures


def device_of(profile: Profile, pool: str, alone: bool, quantity: str = "checkpoint_s") -> str | None:
    """Choose the device that a class stands for, of those with ``quantity``; None if that cannot be said.

    That of the class's name or one identical to it, else the first of that kind (cpu, gpu), else, for a
    single class, the only one.
    """
    devices = _devices(profile, quantity)
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
    """Rank a storage for a folder: 2 if it contains it, 1 on the same file system, else 0."""
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
    """Add the node's power to the pool; return a note on what was taken or is lacking."""
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
    """List the caps worth choosing from.

    They are the lowest that held under every load, then multiples of ``CAP_STEP_W`` up to the first at which
    no load is slowed any more.
    """
    curves = [model for model in profile.models if model.quantity == "power_speed_ratio"]
    lowest = [curve.x_min for curve in curves if curve.x_min is not None]
    if not lowest:
        return ()
    first = max(lowest)
    last = CAP_STEP_W * math.ceil(max(curve["knee_w"].value for curve in curves) / CAP_STEP_W)
    begin = math.floor(first / CAP_STEP_W) + 1
    return (first, *(CAP_STEP_W * step for step in range(begin, round(last / CAP_STEP_W) + 1)))


def scaling_of(profile: Profile) -> dict[str, tuple[float, float]]:
    """Downey's A and sigma by what bounds a job, as far as they were measured."""
    scaling = {}
    for load, probe in SCALES_LIKE.items():
        model = profile.find("run_s", load=probe)
        if model is not None:
            scaling[load] = (model["A"].value, model["sigma"].value)
    return scaling


def cap_lines(profile: Profile, pool: Pool, packages: int) -> dict[str, CapLine]:
    """Speed under a cap, by load, against the lowest cap (paper C, equation 4.5)."""
    lines = {}
    for model in profile.models:
        if model.quantity != "power_speed_ratio":
            continue
        knee_w = max(model["knee_w"].value / packages, pool.caps_w[0])
        slope = model["slope_per_w"].value * packages
        slowest = model["speed_flat"].value - slope * (knee_w - pool.caps_w[0])
        if slowest > 0:
            lines[model.labels["load"]] = CapLine(slope / slowest, pool.caps_w[0], knee_w)
    return lines


def _devices(profile: Profile, quantity: str = "checkpoint_s") -> list[str]:
    """List the devices of which a quantity was measured."""
    names = (model.labels["device"] for model in profile.models if model.quantity == quantity)
    return list(dict.fromkeys(names))


def _line_words(line: LinearCost) -> str:
    return f"{line.slope:.3g} s/MB + {line.offset:.3g} s"


def _least_0(model: Model, name: str) -> float:
    """Read a coefficient of a time, at least 0, because a fit may be below 0 near 0."""
    return max(0.0, model[name].value)


def _halves(line: Model) -> tuple[float, float]:
    """Return how far 10 and 90 % quantiles of a new observation are off a line, as a line (slope first)."""
    if line.covariance is None or not line.x_max:
        return 0.0, 0.0
    n = line.coefficients[0].n
    narrower = t_quantile(LEVELS[-1], max(n - 4, 1)) / quantile_of_line(n)
    (none, _, high_0), (most, _, high) = predict(line), predict(line, line.x_max)
    at_0, at_most = narrower * (high_0 - none), narrower * (high - most)
    return max(at_most - at_0, 0.0) / line.x_max, at_0


def _doubts(*models: Model) -> str:
    """List what speaks against the numbers; empty if nothing."""
    poor = [c.name for model in models for c in model.coefficients if c.quality is Quality.POOR]
    doubts = [f"poor: {', '.join(dict.fromkeys(poor))}"] if poor else []
    if any(model.emulated for model in models):
        doubts.append("EMULATED")
    return f"; {'; '.join(doubts)}" if doubts else ""


class ProfiledSlowdowns(Slowdowns):
    """``Slowdowns`` by the job profiles that jobs were submitted with.

    A job's ``program`` is the name of its job profile. Nothing is known of a job without one, so it has no
    neighbours.

    Args:
        kind: of this machine, because profiles of other kinds are not used.
    """

    def __init__(self, store: JobStore, kind: NodeKind) -> None:
        self.store, self.kind = store, kind
        self._known: dict[str, JobProfile] = {}
        self._factor = lru_cache(maxsize=4096)(self._predict)

    def introduce(self, names: Iterable[str]) -> None:
        """Use the newest job profiles of these names on this kind of node from now on.

        Raises:
            BadInput: there is none of a name, or it says nothing about sharing.
        """
        for name in set(names) - {""}:
            profile = self._usable(name)
            if self._known.get(name) != profile:
                self._known[name] = profile
                self._factor.cache_clear()

    def recall(self, names: Iterable[str]) -> None:
        """Do as ``introduce`` after a restart, but pass over names whose profile is gone."""
        for name in set(names):
            with suppress(BadInput):
                self.introduce([name])

    def _usable(self, name: str) -> JobProfile:
        profile = self.store.load(name, self.kind.key)
        remedy = f"measure it here: tenbin program profile {name} -- CMD...; or leave --job-profile out"
        if profile.kind.key != self.kind.key:
            what = f"job profile '{name}' was made on another kind of node ({profile.kind.title})"
            raise BadInput(f"{what}, this one is {self.kind.title}", remedy)
        if slowdown_beside(profile, [profile]) is None:
            raise BadInput(f"job profile '{name}' says nothing about pressure or sensitivity", remedy)
        return profile

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        """Predict alike for all bindings on a shared node, because jobs have cores of their own."""
        return 1.0 if binding == PACKED or not beside else self._factor(program, tuple(sorted(beside)))

    def pressure(self, program: str) -> Pressure | None:
        known = self._known.get(program)
        return None if known is None else pressure_of(known)

    def alone_s(self, program: str) -> float | None:
        """Return the measured run time of the program alone."""
        known = self._known.get(program)
        run = known.need("run_s") if known is not None else None
        return None if run is None else run.value

    def _predict(self, program: str, beside: tuple[str, ...]) -> float:
        known = [self._known.get(name) for name in (program, *beside)]
        profiles = [profile for profile in known if profile is not None]
        slowdown = slowdown_beside(profiles[0], profiles[1:]) if len(profiles) == len(known) else None
        return 1.0 if slowdown is None else max(slowdown.value, 1.0)


def pressure_of(job: JobProfile) -> Pressure | None:
    """Read the pressure of a job in the terms of the paper's rule; None if it was not measured.

    Of a job on one host: it presses on no network. comprobe's place is the core next to the job's: near.
    """
    pressure = job.pressure_by()
    if pressure is None:
        return None
    network, share = job.network, job.need("mpi_share")
    comprobe = network.pressure.slowdown.value if network and network.pressure else 1.0
    return Pressure(
        memory_percent=max(100 * (pressure.slowdown.value - 1), 0.0),
        near_percent=max(100 * (comprobe - 1), 0.0),
        communication_percent=100 * share.value if network and share else 0.0,
    )


class ProfiledJobs:
    """Run times, scaling and caps of jobs alone, from job profiles of this kind of node.

    Args:
        store: None: there are no profiles.
    """

    def __init__(self, store: JobStore | None = None, kind: NodeKind | None = None) -> None:
        self._store, self._kind = store, kind

    def check(self, names: Iterable[str]) -> None:
        """Refuse names of job profiles that do not exist; one of another kind of node names a program only.

        Raises:
            BadInput: there is none of a name.
        """
        if self._store is not None and self._kind is not None:
            for name in set(names) - {""}:
                self._store.find(name, self._kind.key)

    def runs(self, name: str) -> list[PastRun]:
        """Make a run each of the profile's median and both ends of its interval; empty without a profile."""
        profile = self._find(name)
        return [] if profile is None else runs_of(profile)

    def scaling(self, name: str) -> tuple[float, float] | None:
        """Return Downey's A and sigma; None: not measured, or over namespaces only."""
        profile = self._find(name)
        if profile is None or profile.scaling is None or profile.scaling.emulated:
            return None
        return profile.scaling["A"].value, profile.scaling["sigma"].value

    def caps(self, name: str, emulated: str) -> tuple[float, float] | None:
        """Return the knee in watts of a package and the speed lost by each watt below; None: not measured.

        Where its speed under caps was not (it draws less than the lowest), the knee is what it draws without.

        Args:
            emulated: the machine whose packages are meant; empty: the real one.
        """
        profile = self._find(name)
        if profile is None or profile.caps is None or profile.caps.emulated != emulated:
            return None
        speed, power_w = profile.caps.speed, profile.caps.levels[-1].power_w
        if speed is None:
            knee_w = max(power_w.value, power_w.high or 0.0)
            return (knee_w, 1.0 / knee_w) if knee_w > 0 else None
        flat = speed["speed_flat"].value
        return (speed["knee_w"].value, speed["slope_per_w"].value / flat) if flat > 0 else None

    def _find(self, name: str) -> JobProfile | None:
        if self._store is None or self._kind is None or not name:
            return None
        with suppress(BadInput):
            profile = self._store.load(name, self._kind.key)
            if profile.kind.key == self._kind.key and not profile.emulated:
                return profile
        return None


def runs_of(job: JobProfile) -> list[PastRun]:
    """Make runs of a profile (``ProfiledJobs.runs``)."""
    took = job.need("run_s")
    if took is None:
        return []
    signature = JobSignature(job.name, program_of(job.command)[1], "", (job.cores, 0))
    times = [took.low, took.high, took.value] if took.low and took.high else [took.value]
    needs = [None if need is None else need.value for need in map(job.need, NEEDS)]
    return [PastRun(signature, seconds, *needs) for seconds in times if seconds]
