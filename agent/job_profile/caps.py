"""Run time and energy of a program under power caps: it runs alone, again and again, under each cap.

A repetition visits every cap and the limits as found once, in random order; speeds are ratios within a
repetition. All packages of the node have the same cap. Power and energy are those of the packages that the
job runs on, with their draw at rest. An emulated machine stops and continues the program to hold the cap.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from agent.emulation.machines import cores_of as emulated_cores
from agent.emulation.machines import emulated_node, parse
from agent.job_profile.trial import RunOutcome, Trial, as_ranks, check, plain
from agent.journal import Journal
from agent.measured_node import node_lock
from probes.meters import Meter, Reading, choose_meter
from probes.mpi.runner import find_mpi
from probes.power import HEADROOM, held
from probes.power_load import MARK
from probes.powercap import Caps, capped, cores_of, find_caps, zones
from probes.visits import Point, Visits
from profiles.errors import Unavailable
from profiles.files.safe_files import state_dir
from profiles.records import Settings

CAPS, QUICK_CAPS = 6, 5
LEAST, QUICK, MOST = 2, 2, 5  # repetitions; more than two only while there is time
LOOK_S = 0.02
EMULATION_STARTS_S = 20.0


@dataclass(frozen=True)
class UnderCapsOrder:
    """The command to run, and its conditions.

    Attributes:
        cpus: a logical CPU of each of its cores.
        limit_s: longest time of a run. budget_s: time in which repetitions beyond
            the second must end.
        emulated: name of the emulated machine; empty: this machine.
    """

    command: tuple[str, ...]
    folder: str
    cpus: tuple[int, ...]
    limit_s: float = 600.0
    budget_s: float = 1200.0
    quick: bool = False
    seed: int = 1
    mpi: bool = False
    emulated: str = ""


@dataclass
class _Bench:
    """The meter, the caps (None: there are none), and the rows so far."""

    order: UnderCapsOrder
    meter: Meter
    caps: Caps | None
    packages: tuple[str, ...]
    rows: list[dict[str, object]] = field(default_factory=list)

    def run(self, cap_w: float | None, repetition: int) -> float:
        """Run once under a cap on each package (None: the limits as found); return the mean power in W."""
        if self.caps is not None:
            self.caps.reset() if cap_w is None else self.caps.set_w(cap_w * len(self.caps.packages))
        seen: list[tuple[float, Reading]] = []
        with _trial(self.order) as trial:
            while (ended := trial.ended(LOOK_S)) is None:
                seen.append((time.monotonic(), self.meter.read()))
        seen.append((time.monotonic(), self.meter.read()))
        check(ended, self.order.limit_s)
        energy_j = self._energy_j(seen, ended)
        power_w = None if energy_j is None else energy_j / ended.wall_s
        self.rows.append(
            {
                "repetition": repetition,
                "cap_w": cap_w,
                "wall_s": ended.wall_s,
                "cpu_s": ended.cpu_s,
                "energy_j": energy_j,
                "power_w": power_w,
                "held": None if cap_w is None or power_w is None else self._held(cap_w, power_w),
            }
        )
        if power_w is None:
            raise Unavailable("the energy counters failed during a run", "see the kernel log (dmesg)")
        return power_w

    def _held(self, cap_w: float, power_w: float) -> bool:
        return held(cap_w * len(self.packages), power_w)

    def _energy_j(self, seen: Sequence[tuple[float, Reading]], ended: RunOutcome) -> float | None:
        """Compute the energy of a run; None if a counter jumped, stopped or vanished."""
        first, last = seen[0][1], seen[-1][1]
        if any(first.breaks[part] != last.breaks[part] for part in self.packages):
            return None
        at = [when for when, _ in seen]
        sums = [sum(reading.energy_j[part] for part in self.packages) for _, reading in seen]
        begin_j, end_j = np.interp([ended.started_s, ended.ended_s], at, sums)
        # The run begins a moment before the first reading; its power then is taken as its mean power.
        unseen = max(at[0] - ended.started_s, 0.0) / max(ended.wall_s, 1e-9)
        return float(end_j - begin_j) / max(1.0 - unseen, 0.5)


def check_meter(emulated: str) -> None:
    """See that there is a meter, before minutes are spent.

    Raises:
        BadInput: there is no such machine to emulate. Unavailable: no energy counter can be read here.
    """
    if emulated:
        parse(emulated)
        return
    with choose_meter(Settings()):
        pass


def measure(
    order: UnderCapsOrder, tell: Callable[[str], None] = lambda doing: None
) -> tuple[pd.DataFrame, str]:
    """Run the command under each cap, and return a table and the reason why there are no caps ("").

    The table: rows ``repetition``, ``cap_w`` (of each package; none: the limits as found), ``wall_s``,
    ``cpu_s``, ``energy_j`` and ``power_w`` (of the packages that the command runs on), ``held``.

    Raises:
        CommandFailed: a run fails. Busy: a profile is being measured on this node.
        Unavailable: no meter, or its counters fail.
    """
    rng, doubt = np.random.default_rng(order.seed), ""
    until_s = time.monotonic() + order.budget_s
    with ExitStack() as stack:
        stack.enter_context(node_lock())
        sysfs = stack.enter_context(emulated_node(order.emulated)) if order.emulated else Path("/sys")
        journal = stack.enter_context(Journal(state_dir() / "journal"))
        meter = stack.enter_context(_meter(sysfs, order.emulated))
        caps: Caps | None = None
        try:
            caps = find_caps(sysfs, journal.control)
            caps.remember()
        except Unavailable as error:
            caps, doubt = None, str(error)
        bench = _Bench(order, meter, caps, _packages(order, sysfs, meter))
        tell("without a cap")
        natural_w = bench.run(None, 1)
        plan: list[float] = []
        if caps is not None:
            each_w = natural_w / len(bench.packages)
            lowest_w = caps.lowest_w / len(caps.packages)
            if lowest_w < each_w:
                tell(f"under {lowest_w:.0f} W a package")
                seen_w = bench.run(lowest_w, 1) / len(bench.packages)
                bench.rows.pop()  # it may have drawn more than the cap, because packages have a floor
                plan = _plan(max(lowest_w, min(seen_w + 0.5, each_w)), each_w, caps, order.quick)
            else:
                doubt = f"uncapped it draws {each_w:.1f} W a package, less than the lowest cap: none slows it"
        most = QUICK if order.quick else MOST
        points = [Point[float | None](cap_w, least=LEAST, most=most) for cap_w in (None, *plan)]
        points[0].count = 1
        for visit in Visits(points, rng, lambda: until_s - time.monotonic(), whole=True):
            under = "without a cap" if visit.key is None else f"under {visit.key:.0f} W a package"
            tell(f"repetition {visit.count}: {under}")
            bench.run(visit.key, visit.count)
    return pd.DataFrame(bench.rows), doubt


def _meter(sysfs: Path, emulated: str) -> Meter:
    """Choose the machine's meter; the counters of an emulated machine may begin late under load."""
    until_s = time.monotonic() + (EMULATION_STARTS_S if emulated else 0.0)
    while True:
        try:
            return choose_meter(Settings(sysfs=sysfs, emulated=emulated))
        except Unavailable:
            if time.monotonic() > until_s:
                raise
            time.sleep(LOOK_S)


def _plan(lowest_w: float, natural_w: float, caps: Caps, quick: bool) -> list[float]:
    """Choose caps from the lowest that holds to a little above the job's own power."""
    top_w = min(HEADROOM * natural_w, caps.original_w / len(caps.packages))
    lowest_w = min(math.ceil(lowest_w), top_w)
    return [float(cap) for cap in np.linspace(lowest_w, top_w, QUICK_CAPS if quick else CAPS)]


def _packages(order: UnderCapsOrder, sysfs: Path, meter: Meter) -> tuple[str, ...]:
    """Find the packages that the job runs on; all if that is unknown."""
    cores: Mapping[str, Sequence[int]]
    if order.emulated:
        cores = emulated_cores(parse(order.emulated)[0])
    else:
        cores = cores_of(sysfs, capped(zones(sysfs)), os.sched_getaffinity(0))
    used = tuple(part for part in meter.packages if set(cores.get(part, ())) & set(order.cpus))
    return used or meter.packages


def _trial(order: UnderCapsOrder) -> Trial:
    start = plain(order.command, order.cpus)
    if order.mpi:
        start = as_ranks(find_mpi(), order.command, order.cpus, limit_s=order.limit_s)
    variables = {**start.variables, **({MARK: "compute"} if order.emulated else {})}
    return Trial(start.command, order.folder, start.cpus, limit_s=order.limit_s, variables=variables)
