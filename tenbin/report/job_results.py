"""Results of each simulated job, as CSV and in the Standard Workload Format."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster
from scheduler.simulator.metrics import BSLD_BOUND_S, Window
from scheduler.simulator.trace import Outcome
from scheduler.workloads.logs import swf

KINDS = (".csv", ".swf")
COLUMNS = (
    *("job", "user", "program", "units", "submit_s", "start_s", "end_s", "wait_s", "run_s", "turnaround_s"),
    *("bounded_slowdown", "requested_s", "how", "counted", "pool", "used_units", "nodes", "preemptions"),
    *("migrations", "failures", "overhead_s", "lost_s", "energy_j"),
)


def files_of(path: Path, policies: Sequence[str]) -> dict[str, Path]:
    """Name the file of each policy: ``path`` of a single one, else ``jobs.POLICY.csv`` for ``jobs.csv``.

    Characters of a policy's parameters other than letters, digits and ``.=-`` become ``-``.

    Raises:
        BadInput: the file is neither CSV nor SWF.
    """
    if path.suffix not in KINDS:
        raise BadInput(f"--jobs-out {path}: neither .csv nor .swf", "end its name in .csv or .swf")
    if len(policies) == 1:
        return {policies[0]: path}
    files: dict[str, Path] = {}
    for text in policies:
        name, further = re.sub(r"[^A-Za-z0-9.=-]", "-", text), 1
        file = path.with_suffix(f".{name}{path.suffix}")
        while file in files.values():
            further += 1
            file = path.with_suffix(f".{name}-{further}{path.suffix}")
        files[text] = file
    return files


def text(
    file: Path, outcomes: Sequence[Outcome], cluster: Cluster, about: str, *, window: Window | None
) -> str:
    """Write all results, in the order of submission; CSV or SWF by the name of ``file``."""
    if file.suffix == ".swf":
        return "".join(swf.result_lines(outcomes, cluster, about))
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(COLUMNS)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.job.submit_s, outcome.job.id)):
        rows.writerow(_row(outcome, cluster, window))
    return written.getvalue()


def _row(outcome: Outcome, cluster: Cluster, window: Window | None) -> tuple[object, ...]:
    job, last = outcome.job, outcome.segments[-1].placement
    turnaround, run = outcome.end_s - job.submit_s, outcome.run_s - outcome.lost_s
    requested = job.reference_s(last.pool)
    return (
        job.id,
        job.user,
        job.program,
        job.units,
        _time(job.submit_s),
        _time(outcome.start_s),
        _time(outcome.end_s),
        _time(outcome.wait_s),
        _time(run),
        _time(turnaround),
        _time(max(1.0, turnaround / max(run, BSLD_BOUND_S))),
        "" if requested == float("inf") else _time(requested),
        outcome.how,
        "yes" if window is None or window.counts(job.submit_s) else "no",
        last.pool,
        last.units,
        " ".join(cluster[last.pool].name_of(node) for node, _ in last.nodes),
        outcome.preemptions,
        outcome.migrations,
        outcome.failures,
        _time(outcome.overhead_s),
        _time(outcome.lost_s),
        _time(outcome.energy_j),
    )


def _time(value: float) -> float:
    """Round to the simulator's grid of one microsecond."""
    return round(value, 6)
