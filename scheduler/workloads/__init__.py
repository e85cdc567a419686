"""Where jobs come from: logs in files, and generators.

Each is one file here and one line in ``GENERATORS`` or ``READERS``. A reader has
``read(path, parameters) -> Workload``, a generator ``generate(parameters, cluster, seed) -> Workload``; both
modules have a frozen dataclass ``Parameters``. The arrivals are a stream, sorted by time of submission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from scheduler.model import Cluster
from scheduler.parameters import fill, split, unknown
from scheduler.trace import Arrival, ClosedLoop
from scheduler.world import Settings

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
    """

    arrivals: Iterable[Arrival] | ClosedLoop
    source: str
    skipped: Counter[str] = field(default_factory=Counter)
    settings: Settings = field(default_factory=Settings)
    note: str = ""


GENERATORS = {
    "lublin": "scheduler.workloads.lublin",
}
READERS = {  # by the end of the file's name
    ".swf": "scheduler.workloads.swf",
    ".swf.gz": "scheduler.workloads.swf",
}


def load(text: str, cluster: Cluster, seed: int = 0) -> Workload:
    """The workload that ``"FILE"``, ``"FILE,k=v"`` or ``"generator:NAME,k=v,k=v"`` describes.

    Raises:
        BadInput: no such file, generator or parameter, or a value that makes no sense.
    """
    if text.startswith(PREFIX):
        name, given = split(text.removeprefix(PREFIX))
        if name not in GENERATORS:
            raise unknown("generator", name, GENERATORS)
        module = import_module(GENERATORS[name])
        workload: Workload = module.generate(_parameters(module, given, name), cluster, seed)
        return workload
    path, given = Path(text), {}
    if not path.exists() and "," in text:
        name, given = split(text)
        path = Path(name)
    if not path.exists():
        raise BadInput(
            f"workload {text}: no such file", f"give a log, or one of {', '.join(map(_named, GENERATORS))}"
        )
    module = import_module(_reader(path))
    logged: Workload = module.read(path, _parameters(module, given, path.name))
    return logged


def _named(generator: str) -> str:
    return PREFIX + generator


def _parameters(module: Any, given: dict[str, str], name: str) -> Any:
    return fill(module.Parameters, given, name)


def _reader(path: Path) -> str:
    endings = [ending for ending in READERS if path.name.endswith(ending)]
    if not endings:
        raise BadInput(f"workload {path}: unknown kind of file", f"known endings: {', '.join(READERS)}")
    return READERS[max(endings, key=len)]
