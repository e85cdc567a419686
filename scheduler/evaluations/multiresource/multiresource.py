"""Tasks of unknown run time on several resources (Yabuuchi and Shinagawa 2019): ``las`` against ``kairos``.

Section 4.3 (figures 3 and 4, preemptions) and 4.4 (sensitivity to L, N, W and the number of nodes), and
beyond the paper ``las-prompt`` and ``las-mq`` beside them, far quantiles, and open arrivals up to overload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from scheduler.evaluations import (
    Estimate,
    Evaluation,
    Finding,
    Picture,
    Progress,
    Row,
    Scale,
    Series,
    Table,
    changes,
    over_seeds,
    run_all,
)
from scheduler.evaluations.multiresource.las_cases import (
    LIKES,
    LOADS,
    OWN,
    PARTS,
    POLICIES,
    SIZES,
    LasSize,
    main_cases,
    overload_case,
    part,
    readings,
    seeds,
    settings,
    trace_cases,
    varied_cases,
)
from scheduler.evaluations.multiresource.las_runs import (
    FIGURE_3,
    POINTS,
    TRACE_CAPACITY,
    LasCase,
    LasFigures,
    simulate,
)

PAPER = (
    "H. Yabuuchi, T. Shinagawa: A cluster scheduler without run-time estimates for several kinds of uneven "
    "resource demands. IPSJ SIG Technical Report 2019-OS-146 (in Japanese)"
)


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """Reproduce the paper's evaluation."""
    size = SIZES[scale]
    cases = list(dict.fromkeys(main_cases(size) + varied_cases(size) + trace_cases(size)))
    # The longest first, so that no core is left with one of them at the end.
    order = sorted(cases, key=lambda case: -case.tasks)
    found = dict(zip(order, run_all(simulate, order, progress, _say), strict=True))
    findings = tuple(f for like in LIKES for f in _findings(found, size, like))
    return Evaluation(
        paper=PAPER,
        scale=scale,
        assumptions=_assumptions(found, size),
        findings=findings + _beyond(found, size) + _sensitivity_findings(found, size),
        tables=(
            _main_table(found, size),
            _sensitivity_table(found, size),
            _overload_table(found, size),
            _readings_table(found, size),
            *_trace_tables(found, size),
        ),
        pictures=(*(_picture(found, size, like) for like in LIKES), _overload_picture(found, size)),
        remarks=_remarks(size),
    )


def _say(case: LasCase) -> str:
    return f"{case.policy}, {case.like}-like {case.more}, {case.nodes} nodes, seed {case.seed}"


# -- what is told of them -------------------------------------------------------------------------------

Found = dict[LasCase, LasFigures]


def _runs(
    found: Found, size: LasSize, like: str, policy: str, *, only: int | None = None
) -> list[LasFigures]:
    most = seeds(size, like, policy) if only is None else only
    return [found[LasCase(policy, like, *size.main[like], seed)] for seed in range(most)]


def _change(found: Found, size: LasSize, like: str, policy: str, *, field: str) -> Estimate:
    """Compare with kairos on the same tasks, in percent."""
    runs = _runs(found, size, like, policy)
    bases = _runs(found, size, like, "kairos", only=len(runs))
    return changes([getattr(r, field) for r in runs], [getattr(b, field) for b in bases])


def _preemptions(found: Found, size: LasSize, like: str, policy: str) -> Estimate:
    """Express preemptions in percent of kairos's."""
    change = _change(found, size, like, policy, field="preemptions")
    return Estimate(100 + change.mean, 100 + change.low, 100 + change.high, change.n)


def _rough(value: float) -> tuple[float, float]:
    """Return half to one and a half times as much."""
    low, high = sorted((0.5 * value, 1.5 * value))
    return low, high


PRINTED = {
    "google": {"p95": -28.2, "p99": -30.7, "preemptions": 9.74},
    "alibaba": {"p99": -11.5, "preemptions": 7.94},
}


def _findings(found: Found, size: LasSize, like: str) -> list[Finding]:
    """Section 4.3."""
    name, printed = f"{like.title()}-like", PRINTED[like]
    rows = []
    if like == "alibaba":
        values = [run.p95 for run in _runs(found, size, like, "kairos")]
        rows.append(Finding(f"{name}: p95 slowdown of kairos", 1.00, over_seeds(values), "", (1.0, 1.02)))
    for field in ("p95", "p99"):
        if field in printed:
            value = printed[field]
            change = _change(found, size, like, "las", field=field)
            what = f"{name}: {field} slowdown, las against kairos"
            rows.append(Finding(what, value, change, "%", _rough(value)))
    rows.append(
        Finding(
            f"{name}: preemptions of las, of kairos's",
            printed["preemptions"],
            _preemptions(found, size, like, "las"),
            "%",
            (printed["preemptions"] / 3, printed["preemptions"] * 3),
            "rests on how much room the load leaves: see the readings",
        )
    )
    for field, resource in (("cpu", "CPU"), ("memory", "memory")):
        more = [
            100 * (getattr(las, field) - getattr(kairos, field))
            for las, kairos in zip(
                _runs(found, size, like, "las"), _runs(found, size, like, "kairos"), strict=True
            )
        ]
        what = f"{name}: use of {resource}, las above kairos"
        note = "printed as bars only: higher"
        rows.append(Finding(what, None, over_seeds(more), "% of the machine", (0.0, 100.0), note))
    return rows


def _beyond(found: Found, size: LasSize) -> tuple[Finding, ...]:
    """Add what the paper does not print."""
    rows = []
    for like in LIKES:
        for policy in POLICIES[1:]:
            what = f"{like.title()}-like: {{}}, {policy} against kairos"
            change = _change(found, size, like, policy, field="p999")
            rows.append(Finding(what.format("p99.9 slowdown"), None, change, "%"))
            if policy != "las":
                change = _change(found, size, like, policy, field="p99")
                rows.append(Finding(what.format("p99 slowdown"), None, change, "%"))
                share = _preemptions(found, size, like, policy)
                rows.append(Finding(what.format("preemptions"), None, share, "% of kairos's"))
    return tuple(rows)


def _sensitivity_findings(found: Found, size: LasSize) -> tuple[Finding, ...]:
    """Section 4.4, which tells directions only."""
    by = {what: found[case] for what, case in settings(size)}
    own = by[OWN]

    def versus(
        what: str, one: LasFigures, other: LasFigures, field: str, *, same: tuple[float, float]
    ) -> Finding:
        change = changes([getattr(one, field)], [getattr(other, field)])
        return Finding(f"Google-like: {field} slowdown, {what}", None, change, "%", same, "one seed")

    least, most = -100.0, 1e4
    rows = [
        versus("L = 3 against 1.5", by["L = 3"], own, "p99", same=(-5.0, 5.0)),
        versus("N = 1 against 8", by["N = 1"], by["N = 8"], "p95", same=(least, 0.0)),
        versus("N = 1 against 8", by["N = 1"], by["N = 8"], "p999", same=(0.0, most)),
        versus("W = 300 s against 30 s", by["W = 300 s"], by["W = 30 s"], "p95", same=(least, 0.0)),
        versus("W = 300 s against 30 s", by["W = 300 s"], by["W = 30 s"], "p999", same=(0.0, most)),
    ]
    for divisor in (1, *PARTS):
        las, kairos = (found[part(size, policy, divisor)] for policy in ("las", "kairos"))
        what = f"las against kairos, {size.varied.nodes // divisor} nodes"
        rows.append(versus(what, las, kairos, "p99", same=(least, 0.0)))
    return tuple(rows)


COLUMNS = ("p50", "p95", "p99", "p99.9", "preemptions a task", "CPU in use", "memory in use")


def _row(runs: Sequence[LasFigures]) -> Row:
    """Means over the seeds."""
    columns = [(r.p50, r.p95, r.p99, r.p999, r.preemptions / r.tasks, r.cpu, r.memory) for r in runs]
    return tuple(np.mean(columns, axis=0).round(4).tolist())


def _main_table(found: Found, size: LasSize) -> Table:
    rows: tuple[Row, ...] = tuple(
        (like, policy, len(runs), runs[0].tasks, *_row(runs))
        for like, policy in product(LIKES, POLICIES)
        for runs in [_runs(found, size, like, policy)]
    )
    title = "Slowdown, preemptions and use (means over the seeds), closed loop at load 1.414"
    return Table(title, ("trace", "policy", "seeds", "tasks", *COLUMNS), rows)


def _sensitivity_table(found: Found, size: LasSize) -> Table:
    rows: tuple[Row, ...] = tuple((what, *_row([found[case]])) for what, case in settings(size))
    return Table(f"las, Google-like, {size.varied.nodes} nodes, one seed", ("setting", *COLUMNS), rows)


def _overload_table(found: Found, size: LasSize) -> Table:
    rows: tuple[Row, ...] = tuple(
        (at, policy, *_row([found[overload_case(size, policy, at)]]))
        for at, policy in product(LOADS, POLICIES)
    )
    title = f"Open arrivals, Alibaba-like, {size.overload.nodes} nodes, one seed"
    return Table(title, ("offered load", "policy", *COLUMNS), rows)


def _readings_table(found: Found, size: LasSize) -> Table:
    rows = []
    for like, more, kairos, las in readings(size):
        one, other = found[las], found[kairos]
        rows.append(
            (
                like,
                more,
                kairos.nodes,
                round(other.cpu, 3),
                round(100 * (one.p95 / other.p95 - 1), 1),
                round(100 * (one.p99 / other.p99 - 1), 1),
                round(other.preemptions / other.tasks, 3),
                round(100 * one.preemptions / other.preemptions, 1),
            )
        )
    columns = ("trace", "reading", "nodes", "CPU in use, kairos", "p95, %", "p99, %")
    more_columns = ("preemptions a task, kairos", "las, % of them")
    return Table("las against kairos, read otherwise, one seed", columns + more_columns, tuple(rows))


def _trace_tables(found: Found, size: LasSize) -> list[Table]:
    """Google's own tasks, where there is a file of them."""
    cases = trace_cases(size)
    if not cases:
        return []
    first, (cpu, memory) = cases[0], TRACE_CAPACITY
    title = (
        "Tasks of Google 2011's first 93 minutes, drawn anew with table 1's spread (generator:resample): "
        f"{first.tasks} on {first.nodes} nodes of CPU {cpu}, memory {memory}, one seed"
    )
    rows: tuple[Row, ...] = tuple((case.policy, *_row([found[case]])) for case in cases)
    return [Table(title, ("policy", *COLUMNS), rows)]


def _picture(found: Found, size: LasSize, like: str) -> Picture:
    """Figure 3: the distribution of slowdowns (its upper end)."""
    points = tuple(np.linspace(*FIGURE_3[like], POINTS)[:-1].tolist())
    series = []
    for policy in POLICIES:
        curve = np.mean([run.curve for run in _runs(found, size, like, policy)], axis=0)[:-1]
        shown = curve <= 2.0
        x, y = curve[shown].tolist(), np.array(points)[shown].tolist()
        series.append(Series(policy, tuple(x), tuple(y)))
    title = f"Figure 3: slowdown, {like.title()}-like"
    return Picture(title, "slowdown", "share of the tasks", tuple(series), "lines")


def _overload_picture(found: Found, size: LasSize) -> Picture:
    series = tuple(
        Series(policy, LOADS, tuple(found[overload_case(size, policy, at)].p99 for at in LOADS))
        for policy in POLICIES
    )
    title = "p99 slowdown under open arrivals, Alibaba-like"
    return Picture(title, "offered load", "p99 slowdown", series, "lines", log_y=True)


def _assumptions(found: Found, size: LasSize) -> tuple[str, ...]:
    used = []
    for like in LIKES:
        runs = [(run.cpu, run.memory) for run in _runs(found, size, like, "kairos")]
        cpu, memory = np.mean(runs, axis=0)
        used.append(f"{like} CPU {cpu:.1%}, memory {memory:.1%}")
    return (
        "The tasks are generated (generator:multiresource): lognormal demands and run times with the "
        "coefficients of variation and the correlation of table 1; the paper's traces could not be had. "
        f"Google's own tasks of 93 minutes are {'the last table' if trace_cases(size) else 'left out'}.",
        "Median run times: 370 s (Google 2011, first 93 minutes) and 20 s (Alibaba 2017, 12 hours); they "
        "decide how long a task runs in terms of W.",
        "Capacity: the mean demand is 0.03 (Google-like) and 0.1 (Alibaba-like) of a node in both resources, "
        "so that kairos uses about 90 % between 10 % of the time with submissions and their end. Here: "
        f"{'; '.join(used)}.",
        "Load near sqrt 2: a closed loop that submits while the norm of the unfinished demand over the "
        "capacity of the machine is below sqrt 2.",
        "Scheduling, pausing and resuming cost nothing, as in the paper.",
        "Ranges that count as agreement: half to one and a half times the printed change of a quantile; a "
        "third to three times the printed share of preemptions.",
    )


def _remarks(size: LasSize) -> tuple[str, ...]:
    return (
        "From p99.9 on, las is worse than kairos with the Google-like tasks (not with the Alibaba-like "
        "ones): a large new task for which no N tasks make room waits on its node until it drains. "
        "las-prompt lets it displace more.",
        "In overload las collapses: paused tasks lift all nodes above L; new tasks, mostly short, wait in "
        "the central queue. las-prompt has no L.",
        "How many of kairos's preemptions las saves rests on how much room the load leaves, not on the "
        "granularity of demands or on W (last table). At sqrt 2 all of the machine is wanted, and tasks take "
        "turns every W under both. At 1.3 (with demands so fine that kairos still uses about 90 %) las finds "
        "room for nearly all tasks, while kairos, which counts tasks, still overloads some nodes: then the "
        "share is the paper's or less. las-mq saves most at sqrt 2: tasks of like age no longer take turns.",
        "L hardly matters as long as it is above the load itself, sqrt 2; below (1.2) the central queue "
        "holds tasks back and every quantile is worse.",
        "Beyond p99 the effect of W is lost in that of large new tasks that starve, which W does not touch.",
        f"Cut for time: Alibaba's tasks have {size.seeds['alibaba']} seeds ({size.further_seeds} under "
        "las-prompt and las-mq); sensitivity, overload and readings have one.",
    )
