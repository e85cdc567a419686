"""Training jobs of a laboratory with GPUs: tables that were measured, joined by assumptions.

Measured (``scheduler/data/labbench.json``, where sources and licences stand): steps a second of 26 programs
on 1, 2, 4 and 8 V100, P100 and K80, and their speeds in pairs on one GPU (Gavel); time of an epoch and mean
power of six networks under power limits on V100 and P100 (Zeus).

Assumed, because nobody has measured all of it for the same programs:

- **Sizes.** 70, 10, 15 and 5 % of the jobs need at least 1, 2, 4 and 8 GPUs. A number of GPUs that was not
  measured is as fast as the next smaller one. Over GPUs a program speeds up on all kinds as on the first.
- **Caps.** A program slows down under a cap, and draws on each of its GPUs, as the network of Zeus that is
  most like it (``LIKE``); where that draws less under a higher cap, as much as under the lower.
- **Pairs.** Jobs that share GPUs take half of one. Those of a node lie two to a GPU in the order of their
  numbers. Only programs of which all pairs were measured share.
- **Stops and restarts.** A job has 1 to 10 GB to save, at ``cost_s_per_gb``, of which 60 % are for the
  checkpoint: 25 to 250 s, the range that Sia (SOSP 2023) measured.
- **Lengths** are log-normal on the first class, and cut at 60 times the median. Submissions are Poisson, and
  stretched until the load is met exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from profiles.errors import BadInput
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.interference import PACKED, Pressure, Slowdowns, SlowdownsByPool
from scheduler.model.jobs import CHECKPOINT, EMPTY, Cluster, EstimateKind, Job, Placement, Pool, instant
from scheduler.model.speeds import CapTable, TabulatedPower, TabulatedSpeed
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads import Workload

Speeds = Mapping[tuple[str, str], float]  # of (program, beside), over that alone
DATA = Path(__file__).parents[2] / "data" / "labbench.json"
SIZES, CHANCES = (1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05)  # Gavel's own mix of jobs
LONGEST = 60.0  # times the median
MB_PER_GB = 1024.0
MOST_GB = 10.0
CHECKPOINT_SHARE = 0.6
LIKE = {
    "ResNet-18": "shufflenetv2",
    "A3C": "shufflenetv2",
    "ResNet-50": "resnet50",
    "CycleGAN": "resnet50",
    "Transformer": "bert-sentiment140",
    "LM": "bert-squad",
    "Recommendation": "ncf",
}


@dataclass(frozen=True)
class Labbench:
    """The jobs to generate.

    Attributes:
        jobs: how many.
        load: GPU-seconds of the jobs, spread over all GPUs, / (GPUs x time from first to last submission).
        median_s, sigma: of the run times.
        sizes: "fixed"; "moldable" or "malleable": up to the fastest number of GPUs (counted classes).
        times: fixed sizes are so many times what a job needs at least, up to the fastest number.
        shared: share of the jobs of one GPU that take half of one; all of it where GPUs are counted.
        knowledge: of what sharing a GPU costs: policies know the "pairs" (nodes of one GPU), or "nothing".
        cores, memory_gb: that a job takes for each GPU (nodes that have them).
        cost_s_per_gb: of a checkpoint and a restart together.
        estimate: "exact" or "none".
    """

    jobs: int = 1000
    load: float = 0.9
    median_s: float = 1800.0
    sigma: float = 1.5
    sizes: Literal["fixed", "moldable", "malleable"] = "fixed"
    times: int = 1
    shared: float = 0.0
    knowledge: Literal["pairs", "nothing"] = "nothing"
    cores: float = 4.0
    memory_gb: float = 16.0
    cost_s_per_gb: float = 25.0
    estimate: Literal["exact", "none"] = "exact"

    def __post_init__(self) -> None:
        if self.jobs < 2:
            raise ValueError("jobs must be at least 2")
        if self.times < 1:
            raise ValueError("times must be at least 1")
        for name in ("load", "median_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0")
        for name in ("sigma", "cores", "memory_gb", "cost_s_per_gb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must not be negative")
        if not 0 <= self.shared <= 1:
            raise ValueError("shared is a share, 0 to 1")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate a stream of jobs for classes named after kinds of GPU."""
        lab = _Lab.of(cluster)
        if self.sizes != "fixed" and lab.gpu is not None:
            raise BadInput(
                f"generator labbench: sizes={self.sizes} needs counted GPUs", "write for instance 16xv100"
            )
        slope = self.cost_s_per_gb / MB_PER_GB
        costs = LinearCosts(
            {kind: LinearCost(slope * CHECKPOINT_SHARE, 0.0) for kind in lab.gpus},
            {kind: LinearCost(slope * (1 - CHECKPOINT_SHARE), 0.0) for kind in lab.gpus},
        )
        settings = SimulationSettings(costs=costs)
        if self.shared and lab.gpu is not None:
            settings = SimulationSettings(costs=costs, interference=SharedGpus(lab.gpu))
        if self.knowledge == "pairs":
            if lab.gpu is None or any(pool.capacity_of(0)[lab.gpu] != 1 for pool in lab.pools):
                what = "generator labbench: knowledge=pairs is of nodes with one GPU"
                raise BadInput(what, "write for instance 8xv100[gpu=1]")
            known = SlowdownsByPool({kind: GpuPairs(pair_speeds(kind)) for kind in lab.gpus})
            settings = replace(settings, slowdowns=known)
        kinds = " and ".join(f"{count:g} {kind}" for kind, count in lab.gpus.items())
        return Workload(
            _arrivals(self, lab, seed),
            f"{self.jobs} training jobs on {kinds}, load {self.load:g}, seed {seed}",
            settings=settings,
            note="tables of Gavel and Zeus, joined by the assumptions in "
            "scheduler/workloads/generators/labbench.py",
        )


# -- what was measured -------------------------------------------------------------------------------------


@cache
def tables() -> Mapping[str, Any]:
    """Read the measured tables."""
    content: Mapping[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return content


def rate(program: str, kind: str, gpus: int) -> float:
    """Return the steps a second of a program, at the largest measured number of GPUs up to ``gpus``."""
    by_gpus: Mapping[str, float] = tables()["throughputs"][program][kind]
    return by_gpus[str(max(int(n) for n in by_gpus if int(n) <= gpus))]


@cache
def pair_speeds(kind: str) -> Speeds:
    """Map (program, beside) to the measured speed over that alone, of programs that all fit together."""
    names = list(tables()["throughputs"])
    rows = tables()["pairs"][kind]
    speeds = {(a, b): rows[a][place] for a in names for place, b in enumerate(names)}
    while lacks := [key for key, speed in speeds.items() if speed is None or speeds[key[::-1]] is None]:
        most = max(names, key=lambda name: sum(name in key for key in lacks))
        speeds = {key: speed for key, speed in speeds.items() if most not in key}
    return speeds


def family(program: str) -> str:
    """Return the name of the model, without its batch size."""
    return program if program in LIKE else program.rpartition("-")[0]


def under_caps(program: str, kind: str, lowest_w: float) -> CapTable:
    """Return the speed under a cap, over that at the lowest."""
    caps_w, epochs_s, _ = _caps(program, kind)
    curve = CapTable(caps_w, tuple(1.0 / seconds for seconds in epochs_s))
    base = curve(lowest_w)
    return CapTable(caps_w, tuple(speed / base for speed in curve.values))


def drawn(program: str, kind: str) -> TabulatedPower:
    """Return what a program draws under a cap."""
    caps_w, _, watts = _caps(program, kind)
    return TabulatedPower(CapTable(caps_w, tuple(accumulate(watts, max))))


def _caps(program: str, kind: str) -> Iterable[tuple[float, ...]]:
    """Return the caps of the network like it, its times of an epoch and its watts under them."""
    return zip(*tables()["caps"][kind][LIKE[family(program)]], strict=True)


@dataclass(frozen=True)
class SharedGpus:
    """The slow-down of jobs that have half of a GPU, two to each in the order of their numbers.

    Attributes:
        gpu: the place of GPUs among the resources of a node.
    """

    gpu: int

    def __call__(self, job: Job, placement: Placement, beside: Sequence[tuple[Job, Placement]]) -> float:
        if job.demand[self.gpu] >= 1:
            return 1.0
        halves = sorted((other.id, other.program) for other, _ in beside if other.demand[self.gpu] < 1)
        before = sum(number < job.id for number, _ in halves)
        place = before - 1 if before % 2 else before  # of the partner, among the others
        if place >= len(halves):
            return 1.0
        return 1.0 / pair_speeds(placement.pool)[job.program, halves[place][1]]


@dataclass(frozen=True)
class GpuPairs(Slowdowns):
    """Slow-downs of two programs on one GPU; those of which nothing is known stay alone."""

    speeds: Speeds

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        if binding == PACKED or not beside:
            return 1.0
        return 1.0 / self.speeds[program, beside[0]]

    def pressure(self, program: str) -> Pressure | None:
        return Pressure() if (program, program) in self.speeds else None


# -- the jobs ----------------------------------------------------------------------------------------------


class _Lab(NamedTuple):
    """The GPUs of a cluster, by kind; the place of GPUs among the resources of nodes (None: counted)."""

    pools: tuple[Pool, ...]
    gpus: dict[str, float]
    gpu: int | None

    @classmethod
    def of(cls, cluster: Cluster) -> _Lab:
        resources = cluster.pools[0].resources
        names = [name for name in resources if name in ("gpu", "gpus")]
        kinds = list(tables()["pairs"])
        strange = [pool.name for pool in cluster.pools if pool.name not in kinds]
        if strange or any(pool.resources != resources for pool in cluster.pools):
            raise BadInput(
                f"generator labbench: classes {', '.join(pool.name for pool in cluster.pools)}",
                f"name them {', '.join(kinds)}, with the same resources: 4xv100[cores=32,gpu=4]+8xp100[...]",
            )
        capped = [pool.name for pool in cluster.pools if pool.caps_w and pool.name not in tables()["caps"]]
        if capped or (resources and not names):
            what = f"caps of {capped[0]} were not measured" if capped else "nodes without GPUs"
            raise BadInput(
                f"generator labbench: {what}", "leave caps_w out, and name gpu among the resources"
            )
        if not resources:
            return cls(cluster.pools, {pool.name: float(pool.units) for pool in cluster.pools}, None)
        place = resources.index(names[0])
        gpus = {
            pool.name: sum(pool.capacity_of(node)[place] for node in range(pool.units))
            for pool in cluster.pools
        }
        return cls(cluster.pools, gpus, place)


def _arrivals(parameters: Labbench, lab: _Lab, seed: int) -> list[Arrival]:
    rng = np.random.default_rng(seed)
    first, *_ = lab.gpus
    sizes = [size for size in SIZES if size <= min(lab.gpus.values())]
    if not sizes:
        raise BadInput("generator labbench: a class without a GPU", "give each class a GPU at least")
    chances = np.array(CHANCES[: len(sizes)]) / sum(CHANCES[: len(sizes)])
    programs = {size: _programs(size, lab.gpus) for size in sizes}
    sharing = sorted(set.intersection(*({a for a, _ in pair_speeds(kind)} for kind in lab.gpus)))
    jobs, work = list[tuple[Job, dict[str, float]]](), 0.0
    for number in range(1, parameters.jobs + 1):
        size = int(rng.choice(sizes, p=chances))
        shares = size == 1 and rng.random() < parameters.shared
        names = sharing if shares else programs[size]
        program = names[int(rng.integers(len(names)))]
        longest = parameters.median_s * LONGEST
        run_s = min(longest, parameters.median_s * float(rng.lognormal(0.0, parameters.sigma)))
        memory_mb = float(rng.uniform(1.0, MOST_GB)) * MB_PER_GB
        scaling, fastest = _speed(program, size, lab)
        speed: TabulatedSpeed | None = scaling
        units, most, gain, power = size, fastest, 1.0, None
        if parameters.sizes == "fixed":
            units = most = size if shares else min(parameters.times * size, fastest)
            speed, gain = None, scaling(units, None)
        if lab.pools[0].caps_w:
            power = drawn(program, first)
            table = under_caps(program, first, lab.pools[0].caps_w[0])
            speed = TabulatedSpeed(units, speed.by_units if speed else (1.0,), table)
            run_s *= table(None)  # the length is that of an uncapped run
        times = {kind: run_s * rate(program, first, size) / rate(program, kind, size) for kind in lab.gpus}
        gpu = 0.5 if shares else 1.0
        uncapped = speed(size, None) if speed else 1.0
        work += gpu * size / sum(count / times[kind] for kind, count in lab.gpus.items()) / uncapped
        run_s, times = run_s / gain, {kind: whole_s / gain for kind, whole_s in times.items()}
        several, known = len(times) > 1, parameters.estimate == "exact"
        job = Job(
            number,
            0.0,
            units,
            run_s if known and not several else None,
            memory_mb=memory_mb,
            estimate_kind=EstimateKind.EXACT if known else EstimateKind.PREDICTED,
            stop=CHECKPOINT,
            max_units=most if most > units else None,
            malleable=parameters.sizes == "malleable",
            estimates_s=(times if known else dict.fromkeys(times, math.inf)) if several else EMPTY,
            demand=_demand(parameters, lab, gpu),
            speed=speed,
            power=power,
            program=program,
        )
        jobs.append((job, times))
    submits = np.cumsum(rng.exponential(1.0, parameters.jobs))
    submits = (submits - submits[0]) * work / parameters.load / (submits[-1] - submits[0])
    return [
        Arrival(replace(job, submit_s=instant(submit)), times[first], times if len(times) > 1 else EMPTY)
        for (job, times), submit in zip(jobs, submits.tolist(), strict=True)
    ]


def _programs(size: int, kinds: Sequence[str] | Mapping[str, float]) -> list[str]:
    """List the programs that were measured on so many GPUs of each kind."""
    rows = tables()["throughputs"]
    return [name for name in rows if all(str(size) in rows[name][kind] for kind in kinds)]


def _speed(program: str, size: int, lab: _Lab) -> tuple[TabulatedSpeed, int]:
    """Return the speed over GPUs, over that on ``size``, and the number of GPUs on which it is fastest."""
    first, *_ = lab.gpus
    most = int(min(max(SIZES), *lab.gpus.values()))
    rates = [rate(program, first, gpus) for gpus in range(size, most + 1)]
    speed = TabulatedSpeed(size, tuple(value / rates[0] for value in rates))
    return speed, size + rates.index(max(rates))


def _demand(parameters: Labbench, lab: _Lab, gpu: float) -> tuple[float, ...]:
    """Return what a task takes on a node: GPUs, and cores and memory in proportion."""
    amounts = {"gpu": gpu, "gpus": gpu}
    amounts |= dict.fromkeys(("cores", "cpu"), parameters.cores * gpu)
    amounts |= dict.fromkeys(("memory_mb", "memory"), parameters.memory_gb * MB_PER_GB * gpu)
    return tuple(amounts.get(name, 0.0) for name in lab.pools[0].resources)
