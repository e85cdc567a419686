"""Two jobs on one GPU: speeds predicted from measured pairs; what ``match`` and ``weigh`` make of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profiles.errors import BadInput
from profiles.models import Prediction
from profiles.models.pairs import PairModel, PairSpeed, Programs
from scheduler.evaluations import (
    Evaluation,
    Finding,
    Progress,
    Row,
    Scale,
    Table,
    changes,
    exactly,
    run_all,
)
from scheduler.evaluations.prediction import path_of
from scheduler.model.interference import SharedNodeInterference
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads.generators.labbench import GpuPairs, Speeds, family, pair_speeds

PAPER = "Pairs on one GPU: measured by Gavel (OSDI 2020) and PAL (SC 2024), predicted by tenbin's model"
FILE = "pal2024-colocation-v100.csv"
PAL = "PAL, v100"
CLEAR = 0.1  # sums of speeds that differ by more
KINDS = ("v100", "p100", "k80")
GPUS, MEDIAN_S, SIGMA = 16, 1800.0, 0.5
JOBS: dict[Scale, int] = {"small": 60, "full": 200}
SEEDS: dict[Scale, int] = {"small": 2, "full": 5}
LOADS = (None, 0.9)  # of GPUs that jobs do not share; None: all at once
FEW = (2, 4)  # partners with which each program was measured
BASE, CHANCE, ALL = "exclusive", "pairs by chance", "all pairs known"
WEIGHED = "all pairs known, weigh"
FITTED = tuple(f"{count} pairs of each" for count in FEW)
KNOWLEDGE = (BASE, CHANCE, *FITTED, ALL, WEIGHED)
POLICIES = {BASE: "exclusive", CHANCE: "pair,by=chance", WEIGHED: "weigh"}  # others: match

PARTS = 10  # of Gavel's pairs; each is predicted from the others


class PredictedPair(NamedTuple):
    """Measured speeds of both programs of a pair, and their predictions."""

    measured: tuple[float, float]
    predicted: tuple[Prediction, Prediction]


class Quality(NamedTuple):
    """Quality of predictions of so many pairs.

    Mean of |predicted / measured - 1|; shares of couples of pairs in the order of their sums, and of speeds
    inside the 95 % interval.
    """

    error: float
    order: float
    clear_order: float
    inside: float
    pairs: float


def read_pal(path: Path) -> tuple[Speeds, Programs]:
    """Read the pairs of PAL, and the family of each program; those that did not run together are left out.

    Raises:
        BadInput: the file cannot be read, or a field is no number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            table = list(csv.DictReader(lines))
        alone = {_name(row, 1): float(row["speed1"]) for row in table if row["model2"] == "Empty"}
        speeds, families = dict[tuple[str, str], float](), dict[str, str]()
        for row in table:
            a, b, own, other = _name(row, 1), _name(row, 2), float(row["speed1"]), float(row["speed2"])
            if row["model2"] != "Empty" and min(own, other) > 0:
                speeds |= {(b, a): other, (a, b): own / alone.get(a, 1.0)}
                families |= {a: row["model1"], b: row["model2"]}
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", f"let TENBIN_DATA name {FILE}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: a field is missing or no number", "get the file again") from error
    return speeds, Programs(families)


def _name(row: Mapping[str, str], place: int) -> str:
    """Name a program on some GPUs; the first of a pair also by its layout over them."""
    layout = row["pipeline_strategy"] if place == 1 else "NA"
    return f"{row[f'model{place}']} x{row[f'gpu_num{place}']}" + ("" if layout == "NA" else f" {layout}")


def pairs_of(speeds: Speeds) -> list[tuple[str, str]]:
    """List the pairs, each once."""
    return list({frozenset(pair): pair for pair in speeds}.values())


def gavel_programs(speeds: Speeds) -> Programs:
    """Return the model of each program, and its batch size as a setting."""
    names = {program for program, _ in speeds}
    sized = {name: name.rpartition("-")[2] for name in names if family(name) != name}
    return Programs(
        {name: family(name) for name in names}, {name: math.log2(int(size)) for name, size in sized.items()}
    )


def predict_pairs(
    speeds: Speeds, known: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]], programs: Programs
) -> tuple[PairModel, list[PredictedPair]]:
    """Fit the model to the measured speeds of some pairs, and predict others."""
    ways = [way for a, b in known for way in dict.fromkeys(((a, b), (b, a)))]
    model = PairModel.fit([PairSpeed(*way, speeds[way]) for way in ways], programs)
    return model, [
        PredictedPair((speeds[a, b], speeds[b, a]), (model.predict(a, b), model.predict(b, a)))
        for a, b in others
    ]


class Part(NamedTuple):
    """One of ``of`` parts of all pairs, which is predicted from the others."""

    data: str
    speeds: Speeds
    programs: Programs
    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.data}, part {self.number + 1} of {self.of}"


def leave_out(part: Part) -> list[PredictedPair]:
    """Predict a part of the pairs from all others."""
    pairs = pairs_of(part.speeds)
    others = [pair for place, pair in enumerate(pairs) if place % part.of != part.number]
    return predict_pairs(part.speeds, others, pairs[part.number :: part.of], part.programs)[1]


def quality(results: Sequence[PredictedPair]) -> Quality:
    """Compare predictions with what was measured."""
    both = [pair for result in results for pair in zip(*result, strict=True)]
    sums = [(sum(measured), sum(p.value for p in predicted)) for measured, predicted in results]
    couples = np.array([(a[0] - b[0], a[1] - b[1]) for a, b in combinations(sums, 2)])
    right, apart = couples[:, 0] * couples[:, 1] > 0, np.abs(couples[:, 0])
    return Quality(
        float(np.mean([abs(prediction.value / speed - 1) for speed, prediction in both])),
        float(np.mean(right[apart > 1e-9])),
        float(np.mean(right[apart > CLEAR])),
        float(np.mean([prediction.low <= speed <= prediction.high for speed, prediction in both])),
        len(results),
    )


# -- simulations -------------------------------------------------------------------------------------------


class PairCase(NamedTuple):
    """One simulation; ``partners``: with how many each program was measured, 0: all."""

    kind: str
    knowledge: str
    load: float | None
    jobs: int
    seed: int

    @property
    def partners(self) -> int:
        return FEW[FITTED.index(self.knowledge)] if self.knowledge in FITTED else 0

    def __str__(self) -> str:
        return f"{self.kind}, {self.knowledge}, {_when(self.load)}, seed {self.seed}"


class PairFigures(NamedTuple):
    """Makespan, mean turnaround, ms of a simulation for each decision."""

    makespan_s: float
    turnaround_s: float
    decision_ms: float


def few_pairs(speeds: Speeds, count: int, seed: int) -> list[tuple[str, str]]:
    """Choose partners of each program by chance."""
    rng = np.random.default_rng([seed, count])
    names = sorted({program for program, _ in speeds})
    chosen = {
        frozenset((name, names[other])): (name, names[other])
        for name in names
        for other in rng.choice(len(names), count, replace=False).tolist()
    }
    return list(chosen.values())


def predicted(kind: str, count: int, seed: int) -> tuple[Speeds, Quality]:
    """Return what is believed of all pairs when a few were measured, and the quality of the others."""
    speeds = pair_speeds(kind)
    known = few_pairs(speeds, count, seed)
    measured = {way for a, b in known for way in ((a, b), (b, a))}
    others = [pair for pair in pairs_of(speeds) if pair not in measured]
    model, results = predict_pairs(speeds, known, others, gavel_programs(speeds))
    believed = {way: speeds[way] if way in measured else model.predict(*way).value for way in speeds}
    return believed, quality(results)


def simulate(case: PairCase) -> tuple[PairFigures, Quality | None]:
    """Run one case; the same jobs of a seed for all."""
    cluster = Cluster((Pool(case.kind, GPUS, resources=("gpu",), capacity=(1.0,)),))
    truth = pair_speeds(case.kind)
    believed, of_others = predicted(case.kind, case.partners, case.seed) if case.partners else (truth, None)
    settings = SimulationSettings(
        interference=SharedNodeInterference(GpuPairs(truth)), slowdowns=GpuPairs(believed)
    )
    metrics = Accumulator(cluster)
    policy = create(POLICIES.get(case.knowledge, "match"), case.seed)
    summary = Simulator(cluster, jobs(case), policy, settings, sinks=[metrics]).run()
    figures = metrics.metrics()
    assert figures.mean_turnaround_s is not None
    milliseconds = 1e3 * summary.wall_s / max(1, summary.decisions)
    return PairFigures(figures.makespan_s, figures.mean_turnaround_s, milliseconds), of_others


def jobs(case: PairCase) -> list[Arrival]:
    """Make jobs of one GPU or half of one, of programs by chance, with log-normal lengths."""
    rng = np.random.default_rng(case.seed)
    names = sorted({program for program, _ in pair_speeds(case.kind)})
    programs = rng.choice(names, case.jobs).tolist()
    lengths = (MEDIAN_S * rng.lognormal(0.0, SIGMA, case.jobs)).tolist()
    gaps = rng.exponential(np.mean(lengths) / GPUS, case.jobs)
    submits = np.cumsum(gaps) / case.load if case.load else np.zeros(case.jobs)
    return [
        Arrival(
            Job(
                number,
                instant(submit),
                1,
                run_s,
                estimate_kind=EstimateKind.PREDICTED,
                demand=(0.5,),
                program=program,
            ),
            run_s,
        )
        for number, (program, run_s, submit) in enumerate(zip(programs, lengths, submits, strict=True), 1)
    ]


def _when(load: float | None) -> str:
    return "all at once" if load is None else f"load {load}"


# -- the evaluation ----------------------------------------------------------------------------------------


Results = Mapping[PairCase, tuple[PairFigures, Quality | None]]


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """See ``PAPER``; PAL's pairs where TENBIN_DATA has them."""
    others = from_others(progress)
    cases = [
        PairCase(kind, knowledge, load, JOBS[scale], seed)
        for kind in KINDS
        for load in LOADS
        for knowledge in KNOWLEDGE
        for seed in range(1, SEEDS[scale] + 1)
    ]
    results = dict(zip(cases, run_all(simulate, cases, progress), strict=True))
    findings, rows = _against_alone(results)
    if PAL in others:
        error, order = (exactly(100 * share) for share in others[PAL][:2])
        findings += [
            Finding("mean error of speeds", None, error, "%", (0.0, 10.0), of=PAL),
            Finding("couples in order", None, order, "%", (90.0, 100.0), of=PAL),
        ]
    predictions: list[Row] = [_quality_row(data, "all others", of) for data, of in others.items()]
    for kind in KINDS:
        for knowledge in FITTED:
            of = [of for case, (_, of) in results.items() if case[:3] == (kind, knowledge, None) and of]
            means = Quality(*(float(np.mean(values)) for values in zip(*of, strict=True)))
            predictions.append(_quality_row(f"Gavel, {kind}", knowledge, means))
    shares = ("mean error, %", "order right, %", f"of sums {CLEAR:g} apart", "inside the interval, %")
    title = f"{JOBS[scale]} jobs on {GPUS} GPUs: makespan, +-, mean turnaround, +-, against {BASE}, %"
    tables = (
        Table("Predicted speeds", ("pairs", "fitted to", "predicted", *shares), tuple(predictions)),
        Table(title, ("GPUs", *KNOWLEDGE[1:], "ms a decision, at most"), tuple(rows)),
    )
    return Evaluation(PAPER, scale, ASSUMPTIONS, tuple(findings), tables)


def from_others(progress: Progress) -> dict[str, Quality]:
    """Predict pairs from all others: PAL's one by one, Gavel's a tenth at a time."""
    parts = list[Part]()
    if path_of(FILE).exists():
        speeds, programs = read_pal(path_of(FILE))
        count = len(pairs_of(speeds))
        parts += [Part(PAL, speeds, programs, number, count) for number in range(count)]
    for kind in KINDS:
        speeds = pair_speeds(kind)
        programs = gavel_programs(speeds)
        parts += [Part(f"Gavel, {kind}", speeds, programs, number, PARTS) for number in range(PARTS)]
    results: dict[str, list[PredictedPair]] = {}
    for part, pairs in zip(parts, run_all(leave_out, parts, progress), strict=True):
        results.setdefault(part.data, []).extend(pairs)
    return {data: quality(pairs) for data, pairs in results.items()}


def _quality_row(data: str, fitted_to: str, of: Quality) -> Row:
    return data, fitted_to, round(of.pairs), *(100 * share for share in of[:-1])


def _against_alone(results: Results) -> tuple[list[Finding], list[Row]]:
    """Compare makespan and mean turnaround of each knowledge with those of one job a GPU."""
    findings, rows = list[Finding](), list[Row]()
    for kind in KINDS:
        for load in LOADS:
            by = {
                knowledge: [
                    figures for case, (figures, _) in results.items() if case[:3] == (kind, knowledge, load)
                ]
                for knowledge in KNOWLEDGE
            }
            cells = list[tuple[float, ...]]()
            for knowledge in KNOWLEDGE[1:]:
                change = [
                    changes([of[place] for of in by[knowledge]], [of[place] for of in by[BASE]])
                    for place in range(2)
                ]
                cells.append(tuple(value for of in change for value in (of.mean, of.half)))
                if load is None:
                    findings.append(Finding(f"mean turnaround, {knowledge}", None, change[1], "%", of=kind))
            slowest = max(figures.decision_ms for of in by.values() for figures in of)
            rows.append((f"{kind}, {_when(load)}", *cells, slowest))
    return findings, rows


ASSUMPTIONS = (
    "Programs are Gavel's of one GPU; of those that do not all fit beside each other the fewest are out.",
    "A job is alone on a GPU, or beside one other; run times alone are known. Memory is not asked about.",
    f"Lengths are log-normal (median {MEDIAN_S:g} s, sigma {SIGMA:g}), on the GPU itself.",
    "All others: PAL's pairs are left out one by one, Gavel's a tenth at a time.",
    "With a few pairs of each program known, those have their measured speeds, all others the predicted.",
)
