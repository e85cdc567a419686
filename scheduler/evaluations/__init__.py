"""The papers' own evaluations, run again: printed numbers beside tenbin's, with stand-ins and assumptions.

Each is one file here with ``evaluate(scale, progress) -> Evaluation``, and one line in ``EVALUATIONS``.
``small`` shows the findings in about a minute; ``full`` is the paper's own size over at least five seeds.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from scheduler.model.parameters import unknown

Scale = Literal["small", "full"]
Progress = Callable[[int, int, str], None]  # done, of how many, what is being done
Case = TypeVar("Case")
Result = TypeVar("Result")
Cell = str | float | int | None | tuple[float | int | None, ...]
Row = tuple[Cell, ...]
CONFIDENCE = 0.95
ROUNDING = 1e-12  # relative; differences up to this are of floating-point arithmetic

EVALUATIONS: dict[str, str] = {
    "gpu-pairs": "scheduler.evaluations.gpu_pairs",
    "gpu-sizes": "scheduler.evaluations.gpu_sizes",
    "interference": "scheduler.evaluations.interference",
    "migration": "scheduler.evaluations.migration",
    "multiresource": "scheduler.evaluations.multiresource",
    "pairs-on-this-machine": "scheduler.evaluations.pairs_here",
    "power": "scheduler.evaluations.power",
    "prediction": "scheduler.evaluations.prediction",
    "regions": "scheduler.evaluations.regions",
    "weigh": "scheduler.evaluations.weigh",
    "weigh-optimum": "scheduler.evaluations.weigh_optimum",
}


class Estimate(NamedTuple):
    """A mean over ``n`` seeds with its 95 % interval (equal to the mean for a value without chance)."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        """Half the interval; 0 for a single seed."""
        return self.high - self.mean if math.isfinite(self.high) else 0.0


@dataclass(frozen=True)
class Finding:
    """One number of the paper beside tenbin's.

    Attributes:
        what: which number, with the setting it belongs to.
        paper: what was printed; None if the paper only says it in words, or not at all.
        tenbin: what came out.
        unit: "%", "s", "J", "" ...
        same: the range of values that have the paper's sign and rough size; None: nothing to agree with.
            It is fixed from the paper's text, never from the result.
        note: a stand-in or an assumption that this number rests on, or why it does not come out.
        of: which of several it is (a policy, a mix of jobs), where the same is told of each of them.
    """

    what: str
    paper: float | None
    tenbin: Estimate
    unit: str = ""
    same: tuple[float, float] | None = None
    note: str = ""
    of: str = ""

    @property
    def name(self) -> str:
        """The number, and of which of several it is."""
        return f"{self.what}, {self.of}" if self.of else self.what

    @property
    def agrees(self) -> bool | None:
        """Compare the mean with ``same``; None if there is nothing to agree with."""
        return None if self.same is None else self.same[0] <= self.tenbin.mean <= self.same[1]


@dataclass(frozen=True)
class Table:
    """Further numbers: a title, the names of the columns (with units), rows of text and numbers.

    A cell with several numbers is a tuple; the title or the column says which they are.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Series:
    """One line or one group of bars of a picture; ``error`` is half an interval of each point."""

    name: str
    x: tuple[str | float, ...]
    y: tuple[float, ...]
    error: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, x: Sequence[str | float], y: Sequence[Estimate], scale: float = 1.0) -> Series:
        """Draw estimates, times ``scale``, with their intervals."""
        return cls(name, tuple(x), tuple(e.mean * scale for e in y), tuple(e.half * scale for e in y))


@dataclass(frozen=True)
class Picture:
    """A figure of the paper, drawn from tenbin's numbers."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    kind: Literal["bars", "stacked", "lines", "points"] = "bars"
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The output of ``tenbin reproduce``.

    Attributes:
        paper: authors, title, year.
        assumptions: readings and stand-ins that all of it rests on, a sentence each.
        remarks: what was found out beside the numbers: why something does not come out, a sentence each.
    """

    paper: str
    scale: Scale
    assumptions: tuple[str, ...]
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def evaluate(name: str, scale: Scale, progress: Progress | None = None) -> Evaluation:
    """Run the evaluation of that name."""
    if name not in EVALUATIONS:
        raise unknown("evaluation", name, EVALUATIONS)
    result: Evaluation = import_module(EVALUATIONS[name]).evaluate(scale, progress or _silent)
    return result


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean of one value a seed with its 95 % interval (Student's t; infinite for a single seed).

    Values that differ by rounding errors only are equal: their interval is the mean.
    """
    from scipy.stats import t

    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Estimate(mean, -math.inf, math.inf, n)
    if np.ptp(values) <= ROUNDING * np.max(np.abs(values)):
        return Estimate(mean, mean, mean, n)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def changes(values: Sequence[float], bases: Sequence[float]) -> Estimate:
    """Change against a base, seed by seed, in percent: paired, because both saw the same jobs."""
    shares = ((v / b if b else math.inf) - 1.0 if v != b else 0.0 for v, b in zip(values, bases, strict=True))
    return over_seeds([100.0 * share if abs(share) > ROUNDING else 0.0 for share in shares])


def exactly(value: float) -> Estimate:
    """Wrap a value that no chance enters."""
    return Estimate(value, value, value, 1)


def run_all(
    work: Callable[[Case], Result],
    cases: Sequence[Case],
    progress: Progress,
    say: Callable[[Case], str] = str,
    *,
    processes: int | None = None,
) -> list[Result]:
    """Run ``work`` for each case, on all cores; return the results in the order of the cases.

    ``work`` must be a function of a module. An interrupt ends the processes, and so does our own end.
    """
    results = []
    with ProcessPoolExecutor(processes, get_context("spawn"), _obey_parent) as pool:
        futures = [pool.submit(work, case) for case in cases]
        try:
            for done, (case, future) in enumerate(zip(cases, futures, strict=True)):
                progress(done, len(cases), say(case))
                results.append(future.result())
        except BaseException:  # the pool gives up by itself what its processes have not done
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
    progress(len(cases), len(cases), "done")
    return results


def _obey_parent() -> None:
    """Ctrl-C is the parent's business: it ends the processes. They end too if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _silent(done: int, of: int, what: str) -> None:
    pass
