"""``weigh`` on nodes where run times are not known, beside ``las`` and ``las-mq``; part of ``weigh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler.evaluations import Finding, Progress, Row, Scale, Table, changes, run_all
from scheduler.evaluations.multiresource import LIKES, LasCase, LasFigures, NodesAndTasks, simulate

OWN, RIVALS = "weigh,pause=true", ("las", "las-mq")
LOADS = (None, 0.7, 0.9, 1.0, 1.2)  # None: the paper's closed loop
SIZES: dict[Scale, dict[str, NodesAndTasks]] = {
    "small": {"google": NodesAndTasks(8, 1500), "alibaba": NodesAndTasks(4, 1500)},
    "full": {"google": NodesAndTasks(16, 6000), "alibaba": NodesAndTasks(8, 6000)},
}
WORDS = {
    "p95": "p95 slow-down",
    "p99": "p99 slow-down",
    "p999": "p99.9 slow-down",
    "turnaround_s": "mean turnaround",
    "longest_s": "longest wait",
    "preemptions": "preemptions",
}
# Fixed before the runs: the change in percent that is allowed.
GOALS = {"p95": (-100.0, 2.0), "p99": (-100.0, 2.0), "p999": (-100.0, 0.0), "preemptions": (-100.0, 0.0)}


class Stream(NamedTuple):
    """Tasks like those of a trace, at a load; None: in the paper's closed loop."""

    like: str
    load: float | None

    def __str__(self) -> str:
        at = "closed loop" if self.load is None else f"load {self.load:g}"
        return f"B, {self.like.title()}-like, {at}"

    @property
    def more(self) -> str:
        return "" if self.load is None else f"load={self.load:g}"


def evaluate(scale: Scale, seeds: Sequence[int], progress: Progress) -> tuple[list[Finding], Table]:
    """Simulate every stream under ``weigh`` and its rivals."""
    streams = [Stream(like, load) for like in LIKES for load in LOADS]
    cases = {
        (stream, policy): [
            LasCase(policy, stream.like, *SIZES[scale][stream.like], seed, stream.more) for seed in seeds
        ]
        for stream in streams
        for policy in (OWN, *RIVALS)
    }
    every = [case for column in cases.values() for case in column]
    figures = dict(zip(every, run_all(simulate, every, progress), strict=True))
    findings, rows = [], list[Row]()
    for stream in streams:
        own = [figures[case] for case in cases[stream, OWN]]
        for rival in RIVALS:
            theirs = [figures[case] for case in cases[stream, rival]]
            changed = {name: changes(_column(own, name), _column(theirs, name)) for name in WORDS}
            findings += [
                Finding(f"{WORDS[name]} against {rival}", None, change, "%", GOALS.get(name), of=str(stream))
                for name, change in changed.items()
            ]
            cells = [(round(change.mean, 1), round(change.half, 1)) for change in changed.values()]
            stops = tuple(
                round(float(np.mean(_column(runs, "preemptions"))) / runs[0].tasks, 3)
                for runs in (own, theirs)
            )
            rows.append((str(stream), rival, *cells, stops))
    header = ("stream", "against", *WORDS.values(), "preemptions a task: own, theirs")
    return findings, Table("Run times not known: changes in %, half their 95 % interval", header, tuple(rows))


def _column(figures: Sequence[LasFigures], name: str) -> list[float]:
    return [getattr(run, name) for run in figures]
