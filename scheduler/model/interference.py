"""Jobs that share nodes: their cores there, and their slow-downs, by measured pairs or measured pressures.

A *binding* is the layout of a job's tasks in each of its nodes (``Placement.binding``). "packed": on whole
nodes of its own. "spread", "near", "far": on parts of twice as many nodes, spread over the sockets, or on the
socket near to or far from the network card. ``BESIDE`` names the binding of a neighbour.

The *pressure* of a program is how much slower a probe gets beside it. memprobe writes through memory,
comprobe communicates all to all (Konishi et al. 2008). A file of pairs:

    programs = ["EP", "CG"]         # order of rows and columns
    alone_like = "EP"               # alone on a part of the nodes a program runs as beside this one
    [pressure.EP]                   # fields of Pressure; likewise for each program
    memory_percent = 3.1
    [times_s]                       # seconds of the row's program beside the column's
    packed = [[77.1, 76.5], [84.5, 84.1]]   # the mean of a row is the run time on whole nodes
    spread = [[76.7, 75.8], [81.3, 84.1]]   # likewise near, far
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from probes.topology import Topology
from profiles.errors import BadInput
from profiles.records import NetworkInterface
from scheduler.model.jobs import Job, Placement
from scheduler.model.parameters import unknown

PACKED, SPREAD, NEAR, FAR = "packed", "spread", "near", "far"
BESIDE = {SPREAD: SPREAD, NEAR: FAR, FAR: NEAR}
BUILT_IN = {"konishi2008": Path(__file__).parents[1] / "data" / "konishi2008.toml"}
REMEDY = "its form is described in scheduler/model/interference.py"


@dataclass(frozen=True)
class Pressure:
    """The pressure of a program on others, and its own share of communication.

    Attributes:
        memory_percent: how much slower memprobe is beside it.
        near_percent, far_percent: how much slower comprobe is, on cores near to and far from the card.
        communication_percent: share of its own run time that it spends communicating.
        dram_per_ms, io_per_ms: its mean requests by the processor's counters (misleading: peaks count).
    """

    memory_percent: float = 0.0
    near_percent: float = 0.0
    far_percent: float = 0.0
    communication_percent: float = 0.0
    dram_per_ms: float = 0.0
    io_per_ms: float = 0.0


class Slowdowns(Protocol):
    """Knowledge of programs that share a node, predicted for policies or the truth in a simulation."""

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        """Return run time of ``program``, bound so, beside those on its node / run time on whole nodes.

        1 where nothing is known of it.
        """

    def pressure(self, program: str) -> Pressure | None:
        """Return what the program does to others; None if it was never measured."""

    def on(self, pool: str) -> Slowdowns:
        """Return what is known on the nodes of one class."""
        return self


@dataclass(frozen=True)
class NoSlowdowns(Slowdowns):
    """No slow-downs, because no program was measured."""

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        return 1.0

    def pressure(self, program: str) -> Pressure | None:
        return None


NOTHING_KNOWN = NoSlowdowns()


@dataclass(frozen=True)
class SlowdownsByPool(Slowdowns):
    """Slow-downs that differ between classes of nodes; ``of``: those of each, by its name."""

    of: Mapping[str, Slowdowns]

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        return 1.0

    def pressure(self, program: str) -> Pressure | None:
        return None

    def on(self, pool: str) -> Slowdowns:
        return self.of.get(pool, NOTHING_KNOWN)


@dataclass(frozen=True)
class PairTable(Slowdowns):
    """Measured pairs. The effects of several neighbours, each relative to running alone, are added up.

    Attributes:
        base_s: run time of each program on whole nodes of its own.
        times_s: by binding, program and neighbour.
        pressures: by program.
        alone_like: beside this program the others run as if alone.
    """

    base_s: Mapping[str, float]
    times_s: Mapping[str, Mapping[str, Mapping[str, float]]]
    pressures: Mapping[str, Pressure]
    alone_like: str

    @property
    def programs(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(self.base_s)

    def change(self, program: str, binding: str, beside: str) -> float:
        """Return run time beside one other / run time on whole nodes - 1.

        Raises:
            KeyError: that was not measured.
        """
        return self.times_s[binding][program][beside] / self.base_s[program] - 1.0

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        row = self.times_s.get(binding, {}).get(program)
        if row is None or binding == PACKED:
            return 1.0
        alone = row[self.alone_like]
        return (alone + sum(row.get(other, alone) - alone for other in beside)) / self.base_s[program]

    def pressure(self, program: str) -> Pressure | None:
        return self.pressures.get(program)


class PressureWeights(NamedTuple):
    """Additions of a product of two pressures to a run time (share per percent^2), and the fit's quality."""

    memory: float
    network: float
    r2_ratio: float


@dataclass(frozen=True)
class PressureModel(Slowdowns):
    """Slow-downs from pressures alone, for pairs that were never measured.

    b adds to a's run time ``memory * memory_a * memory_b + network * near_b * communication_a``.

    Attributes:
        pressures: by program.
        weights: by binding, fitted by least squares.
        alone: factor of each program that is alone, by binding.
    """

    pressures: Mapping[str, Pressure]
    weights: Mapping[str, PressureWeights]
    alone: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def fit(cls, table: PairTable) -> PressureModel:
        """Fit the weights that explain best what each measured neighbour adds to running alone."""
        bindings = [binding for binding in table.times_s if binding in BESIDE]
        return cls(
            table.pressures,
            {binding: _weights(table, binding) for binding in bindings},
            {b: {p: table.factor(p, b, ()) for p in table.programs} for b in bindings},
        )

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        own, weights = self.pressures.get(program), self.weights.get(binding)
        if own is None or weights is None:
            return 1.0
        factor = self.alone.get(binding, {}).get(program, 1.0)
        for other in beside:
            if other in self.pressures:
                memory, network = products(own, self.pressures[other])
                factor += weights.memory * memory + weights.network * network
        return factor

    def pressure(self, program: str) -> Pressure | None:
        return self.pressures.get(program)


def products(own: Pressure, other: Pressure) -> tuple[float, float]:
    """Multiply both memory pressures, and the other's network pressure with the own communication."""
    return (
        own.memory_percent * other.memory_percent,
        other.near_percent * own.communication_percent,
    )


def _weights(table: PairTable, binding: str) -> PressureWeights:
    pairs = [(a, b) for a in table.programs for b in table.programs]
    causes = np.array([products(table.pressures[a], table.pressures[b]) for a, b in pairs])
    added = np.array([table.factor(a, binding, [b]) - table.factor(a, binding, ()) for a, b in pairs])
    solution, *_ = np.linalg.lstsq(causes, added, rcond=None)
    rest = added - causes @ solution
    r2 = 1.0 - float(rest @ rest) / float(np.square(added - added.mean()).sum())
    return PressureWeights(float(solution[0]), float(solution[1]), r2)


@dataclass(frozen=True)
class SharedNodeInterference:
    """Slow-downs as ``SimulationSettings.interference``: the slowest node slows the whole job."""

    slowdowns: Slowdowns

    def __call__(self, job: Job, placement: Placement, beside: Sequence[tuple[Job, Placement]]) -> float:
        on: dict[int, list[str]] = {node: [] for node, _ in placement.nodes}
        for other, where in beside:
            for node, _ in where.nodes:
                if node in on:
                    on[node].append(other.program)
        crowds = {tuple(programs) for programs in on.values()} or {()}
        known = self.slowdowns.on(placement.pool)
        return max(known.factor(job.program, placement.binding, crowd) for crowd in crowds)


def load_pairs(name: str) -> PairTable:
    """Read the pairs of a file, or of a built-in table.

    Raises:
        BadInput: there is no such file or table, or it lacks something.
    """
    path = BUILT_IN.get(name, Path(name))
    if name not in BUILT_IN and path.suffix != ".toml":
        raise unknown("table of pairs", name, [*BUILT_IN, "a .toml file"])
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"pairs {path}: {error.strerror}", REMEDY) from error
    except ValueError as error:  # of TOML and UTF-8
        raise BadInput(f"pairs {path}: {error}", "write valid TOML") from error
    return _table(content, f"pairs {path}")


def _table(content: Mapping[str, Any], at: str) -> PairTable:
    programs, alone_like = content.get("programs"), content.get("alone_like")
    if not isinstance(programs, list) or not programs or len(set(map(str, programs))) < len(programs):
        raise BadInput(f"{at}: programs is no list of different names", REMEDY)
    names = tuple(map(str, programs))
    if alone_like not in names:
        raise BadInput(f"{at}: alone_like = {alone_like!r} is none of its programs", REMEDY)
    given = content.get("times_s")
    if not isinstance(given, dict) or PACKED not in given:
        raise BadInput(f"{at}: there is no times_s.packed", REMEDY)
    times = {}
    for binding, rows in given.items():
        if binding not in (PACKED, *BESIDE):
            raise unknown(f"binding in {at}:", binding, (PACKED, *BESIDE))
        matrix = _matrix(rows, len(names), f"{at}: times_s.{binding}")
        times[binding] = {
            a: dict(zip(names, row, strict=True)) for a, row in zip(names, matrix.tolist(), strict=True)
        }
    base = {name: float(np.mean(list(times[PACKED][name].values()))) for name in names}
    stated = content.get("pressure")
    if not isinstance(stated, dict):
        raise BadInput(f"{at}: there is no table pressure", REMEDY)
    pressures = {name: _pressure(stated.get(name), f"{at}: pressure.{name}") for name in names}
    return PairTable(base, times, pressures, alone_like)


def _matrix(rows: object, size: int, at: str) -> NDArray[np.float64]:
    try:
        matrix: NDArray[np.float64] = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.shape != (size, size) or not np.isfinite(matrix).all() or not (matrix > 0).all():
        raise BadInput(f"{at} is no table of {size} x {size} times above 0", REMEDY)
    return matrix


def _pressure(given: object, at: str) -> Pressure:
    if not isinstance(given, dict):
        raise BadInput(f"{at} is missing", REMEDY)
    known = [f.name for f in fields(Pressure)]
    for name, value in given.items():
        if name not in known:
            raise unknown(f"field of {at}:", name, known)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise BadInput(f"{at}.{name} = {value!r}", "give a number, at least 0")
    return Pressure(**{name: float(value) for name, value in given.items()})


# In the words of Konishi et al.; the last two are next to the network card, and on the other socket.
WORDS = {PACKED: "4x2", SPREAD: "2x4", NEAR: "2x4F", FAR: "2x4B"}


@dataclass(frozen=True)
class Sockets:
    """The cores of each NUMA node, one logical CPU a core; the one next to the network card first.

    Attributes:
        card: True if the place of the network card is known.
    """

    cores: tuple[tuple[int, ...], ...]
    card: bool

    @property
    def why_not(self) -> str:
        """Say why there is nothing to choose; "" if there is."""
        if len(self.cores) > 1:
            return ""
        return "the cores that this process may use are of one socket and one NUMA node"

    def lay(self, bindings: Sequence[str], cores: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Choose the CPUs of jobs with these bindings and core counts on one node; None: no room."""
        free = [list(of_node) for of_node in self.cores]
        laid = []
        for binding, count in zip(bindings, cores, strict=True):
            where = {NEAR: free[:1], FAR: free[1:], PACKED: free}.get(binding)
            order = list(chain.from_iterable(where)) if where is not None else _in_turns(free)
            if len(order) < count:
                return None
            mine = order[:count]
            laid.append(tuple(sorted(mine)))
            free = [[core for core in of_node if core not in mine] for of_node in free]
        return laid


def sockets_of(topology: Topology, cards: Iterable[NetworkInterface]) -> Sockets:
    """List the NUMA nodes that have cores, first the node of the fastest network card."""
    known = [interface for interface in cards if interface.numa_node is not None]
    card = max(known, key=lambda interface: interface.speed_mbit or 0.0).numa_node if known else None
    nodes = sorted({cpu.node for cpu in topology.cores}, key=lambda node: (node != card, node))
    cores = tuple(tuple(cpu.index for cpu in topology.cores_of(node)) for node in nodes)
    return Sockets(cores, card in nodes)


def _in_turns(free: Sequence[Sequence[int]]) -> list[int]:
    """Take a core of each socket in turn."""
    longest = max((len(cores) for cores in free), default=0)
    return [cores[i] for i in range(longest) for cores in free if i < len(cores)]
