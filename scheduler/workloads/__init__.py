"""Workloads: job logs in files, and generators.

Each is a frozen dataclass, whose fields are its parameters, and one line in ``GENERATORS`` or ``READERS``. A
reader has ``read(path) -> Workload``, a generator ``generate(cluster, seed) -> Workload``. The arrivals are a
stream, sorted by time of submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster
from scheduler.model.parameters import fill, split, unknown
from scheduler.simulator.trace import Arrival, ClosedLoop, SimulationSettings
from scheduler.workloads.arrivals import ALIKE, TakenResources, by_name, with_demands

PREFIX = "generator:"


@dataclass
class Workload:
    """A stream of jobs, and what is to be said about it.

    Attributes:
        arrivals: sorted by time of submission; or a closed loop.
        source: what it is, for people.
        skipped: entries that could not be used, by reason; filled while the arrivals are read.
        settings: how the simulated world behaves, where the workload decides that (costs, interference).
        note: an assumption or a stand-in that every result should name.
        remarks: entries that were read in a way that should be told, by what was done; filled likewise.
        demanded: names of the resources that its jobs demand, in their order; (): as the cluster has them.
        taken: what jobs take of resources of nodes, where a file beside the log says it.
    """

    arrivals: Iterable[Arrival] | ClosedLoop
    source: str
    skipped: Counter[str] = field(default_factory=Counter)
    settings: SimulationSettings = field(default_factory=SimulationSettings)
    note: str = ""
    remarks: Counter[str] = field(default_factory=Counter)
    demanded: tuple[str, ...] = ()
    taken: TakenResources | None = None


GENERATORS = {
    "k-mix": "scheduler.workloads.generators.kmix:KMix",
    "kernels": "scheduler.workloads.generators.kernels:Kernels",
    "labbench": "scheduler.workloads.generators.labbench:Labbench",
    "lublin": "scheduler.workloads.generators.lublin:Lublin",
    "power-set1": "scheduler.workloads.generators.power_sets:PowerSet1",
    "power-set2": "scheduler.workloads.generators.power_sets:PowerSet2",
    "multiresource": "scheduler.workloads.generators.multiresource:Multiresource",
    "resample": "scheduler.workloads.generators.multiresource:Resample",
    "migration": "scheduler.workloads.generators.migration:Migration",
}


class Reader(NamedTuple):
    """A reader's module and class, and the names of files that it is for, as patterns."""

    place: str
    patterns: tuple[str, ...]


READERS = {
    "swf": Reader("scheduler.workloads.logs.swf:Swf", ("*.swf", "*.swf.gz")),
    "history": Reader("scheduler.workloads.logs.history:History", ("*history*.csv",)),
    "google2011": Reader(
        "scheduler.workloads.logs.task_traces:Google2011", ("*task_events*", "part-?????-of-?????.csv*")
    ),
    "alibaba2017": Reader("scheduler.workloads.logs.task_traces:Alibaba2017", ("*batch_task*.csv*",)),
    "alibaba_gpu2023": Reader("scheduler.workloads.logs.task_traces:AlibabaGpu2023", ("*pod_list*.csv*",)),
}


def load(text: str, cluster: Cluster, seed: int = 0) -> Workload:
    """Load the workload that ``"FILE,k=v,k=v"`` or ``"generator:NAME,k=v,k=v"`` describes.

    ``"READER:FILE"`` reads a file (or, where the reader can, a folder) whose name does not tell what it is.
    """
    return _on_nodes(as_stated(text, cluster, seed), cluster)


def as_stated(text: str, cluster: Cluster, seed: int = 0) -> Workload:
    """Load a workload as ``load``, but leave jobs that state no demand of resources without one."""
    if text.startswith(PREFIX):
        name, given = split(text.removeprefix(PREFIX))
        if name not in GENERATORS:
            raise unknown("generator", name, GENERATORS)
        generated: Workload = fill(_class(GENERATORS[name]), given, name).generate(cluster, seed)
        return generated
    reader, path, given = _file(text)
    logged: Workload = fill(_class(READERS[reader].place), given, path.name).read(path)
    return logged


def _on_nodes(workload: Workload, cluster: Cluster) -> Workload:
    """Let jobs take resources of nodes, where the cluster has nodes: by their names, or by processors.

    Raises:
        BadInput: the workload, or a file beside it, names resources that the cluster does not have.
    """
    resources, taken = cluster.pools[0].resources, workload.taken or TakenResources()
    if workload.demanded and not resources:
        if more := [name for name in workload.demanded if name not in ALIKE]:
            what = f"the jobs of {workload.source} demand {', '.join(workload.demanded)}"
            nodes = ",".join(f"{name}=..." for name in workload.demanded)
            raise BadInput(
                f"{what}; the cluster has no {', '.join(more)}",
                f"name a list of its nodes as the cluster, or write 8xnode[{nodes}]",
            )
        workload.note += f"; of {', '.join(workload.demanded)} nothing is counted: each task takes one unit"
    if resources and workload.demanded and isinstance(workload.arrivals, Iterable):
        there = {ALIKE.get(name, name) for name in resources}
        if lacking := [name for name in workload.demanded if ALIKE.get(name, name) not in there]:
            what = f"the jobs of {workload.source} demand {', '.join(workload.demanded)}; the cluster has"
            what = f"{what} {', '.join(resources)}"
            raise BadInput(what, f"name them so in the cluster: {', '.join(lacking)}")
        workload.arrivals = by_name(workload.arrivals, workload.demanded, resources)
    for name in taken.resources:
        if name not in resources and not taken.needed:
            workload.remarks[f"it took {name}, which the cluster does not have"] += len(taken.ways)
        elif name not in resources:
            raise BadInput(
                f"{taken.source}: the cluster has no {name}", f"write for instance 8xnode[cores=64,{name}=4]"
            )
    if resources and isinstance(workload.arrivals, Iterable):
        workload.arrivals = with_demands(workload.arrivals, resources, taken, workload.remarks)
    return workload


def _class(place: str) -> Any:
    """Import a class by its module and name."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _file(text: str) -> tuple[str, Path, dict[str, str]]:
    """Find reader, path and parameters of a workload that is a file."""
    reader, sign, rest = text.partition(":")
    named = bool(sign) and reader in READERS
    name = rest if named else text
    path = Path(name)
    given: dict[str, str] = {}
    if not path.exists() and "," in name:
        name, given = split(name)
        path = Path(name)
    if not path.exists():
        raise BadInput(
            f"workload {text}: no such file",
            "give a log (your own jobs: tenbin history --csv > history.csv), or one of "
            + ", ".join(map(PREFIX.__add__, GENERATORS)),
        )
    return reader if named else _reader(path), path, given


def _reader(path: Path) -> str:
    for name, reader in READERS.items():
        if any(fnmatch(path.name, pattern) for pattern in reader.patterns):
            return name
    patterns = ", ".join(pattern for reader in READERS.values() for pattern in reader.patterns)
    raise BadInput(
        f"workload {path}: unknown kind of file",
        f"known names: {patterns}; or write one of {', '.join(READERS)} and a colon before it",
    )
