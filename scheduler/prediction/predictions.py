"""Predictions of jobs beside their outcomes, and how good they were: errors by kind and place."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median, quantiles
from typing import Any, Literal

Kind = Literal[
    "run-time",
    "device-ratio",
    "trial",
    "checkpoint",
    "restart",
    "migration",
    "pause",
    "suspension",
    "pairing",
    "cap",
]
Unit = Literal["s", "ratio"]

UNITS: dict[Kind, Unit] = {
    "run-time": "s",  # from an attempt's start to its end, without migration costs
    "device-ratio": "s",  # the same, on a device where no such job ran, by the figures of the devices
    "trial": "s",  # the same, by a trial of the program
    "checkpoint": "s",  # from the request until the job has left
    "restart": "s",  # from the decision until the job computes again
    "migration": "s",  # from the request until the job computes again, elsewhere
    "pause": "s",  # how long a program stood that was moved while it ran
    "suspension": "s",  # to stop the job and to let it go on, without the time between
    "pairing": "ratio",  # run time beside another job / run time alone
    "cap": "ratio",  # run time under its power cap / believed run time without one
}


STATED = "stated by the user"  # the basis of such a run time
ELSEWHERE: Literal["devices"] = "devices"  # the basis: its time on another device, and the figures of both
TRIED: Literal["tried"] = "tried"  # the basis: its time on another device, and a trial of the program on both
RUN_TIMES: tuple[Kind, ...] = ("run-time", "device-ratio", "trial")  # a running job has one of these


@dataclass(slots=True)
class TrackedPrediction:
    """One prediction, in seconds or as a ratio (``UNITS``), and its outcome.

    Attributes:
        number: counted over all jobs.
        at_s: when it was made, in seconds since 1970.
        measured: the outcome; None if it is not known (yet).
        void: why there will be no outcome, as a sentence; "" if there may be one.
        emulated: the outcome was measured on emulated hardware.
        detail: further facts (``from``, ``to``, ``bytes``, ...), as JSON knows them.
    """

    number: int
    job: int
    attempt: int
    kind: Kind
    at_s: float
    predicted: float
    measured: float | None = None
    void: str = ""
    emulated: bool = False
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.measured is None and not self.void

    @property
    def is_stated(self) -> bool:
        """True if the job's owner stated it by --expect, so that it is no prediction of tenbin's."""
        # Older journals tell it by words alone.
        by_owner = self.detail.get("by_owner", self.detail.get("rests_on", STATED) == STATED)
        return self.kind == "run-time" and bool(by_owner)

    def as_json(self) -> dict[str, Any]:
        """Return the prediction as JSON knows it; what the owner stated is not called a prediction."""
        return apart(asdict(self), self.is_stated)


def apart(values: dict[str, Any], is_stated: bool) -> dict[str, Any]:
    """Tell ``predicted`` as what tenbin predicted, or as what the user stated; the other is None."""
    said = values["predicted"]
    return {**values, "predicted": None if is_stated else said, "stated": said if is_stated else None}


class OpenPredictions:
    """Predictions without outcome yet, and those to be journalled next.

    A job has at most one open prediction of a kind: a new one makes the old one void.

    Args:
        last: number of the last prediction in the journal.
        open_ones: predictions in the journal whose outcome is not known.
    """

    def __init__(self, last: int = 0, open_ones: Iterable[TrackedPrediction] = ()) -> None:
        self._last = last
        self._open = {(prediction.job, prediction.kind): prediction for prediction in open_ones}
        self._changed: dict[int, TrackedPrediction] = {}

    def predict(
        self,
        job: int,
        attempt: int,
        now: float,
        kind: Kind,
        *,
        value: float,
        emulated: bool = False,
        **detail: Any,
    ) -> TrackedPrediction:
        """Enter a prediction that a decision rests on; it is journalled with the decision."""
        self.void(job, "predicted anew", kind)
        self._last += 1
        prediction = TrackedPrediction(
            self._last, job, attempt, kind, now, value, emulated=emulated, detail=detail
        )
        self._open[job, kind] = prediction
        self._changed[prediction.number] = prediction
        return prediction

    def measure(self, job: int, kind: Kind, value: float, **detail: Any) -> TrackedPrediction | None:
        """Enter the outcome of the open prediction of that kind, if there is one; ``detail`` is added."""
        prediction = self._open.pop((job, kind), None)
        if prediction is not None:
            prediction.measured = value
            prediction.detail |= detail
            self._changed[prediction.number] = prediction
        return prediction

    def void(self, job: int, why: str, *kinds: Kind) -> None:
        """Close the job's open predictions (of these kinds, or all) without an outcome."""
        for kind in kinds or UNITS:
            prediction = self._open.pop((job, kind), None)
            if prediction is not None:
                prediction.void = why
                self._changed[prediction.number] = prediction

    def of(self, job: int, kind: Kind) -> TrackedPrediction | None:
        """Return the job's open prediction of a kind."""
        return self._open.get((job, kind))

    def touch(self, prediction: TrackedPrediction) -> None:
        """Mark a prediction whose ``detail`` has changed."""
        self._changed[prediction.number] = prediction

    def shift(self, step_s: float) -> None:
        """Move what durations are counted from with a clock that was set."""
        for prediction in self._open.values():
            prediction.at_s += step_s
            if "resumed_s" in prediction.detail:
                prediction.detail["resumed_s"] += step_s
            for there in prediction.detail.get("company", ()):
                there["since_s"] += step_s
            self.touch(prediction)

    def changed(self) -> list[TrackedPrediction]:
        """List what the journal does not have yet."""
        return list(self._changed.values())

    def committed(self) -> None:
        """Note that the journal has all changes."""
        self._changed.clear()


BOUND = 1.0  # paper A: 95 % of its predictions have an error of at most this


@dataclass(frozen=True)
class AccuracyRow:
    """Accuracy of predictions of one kind at one place. An error is (predicted - measured) / measured.

    Attributes:
        place: the class, or both classes of a migration.
        n: outcomes with a prediction. blind: outcomes without one.
        open, void: predictions without an outcome yet, or for ever.
        predicted, measured: medians, in ``unit``.
        median, p95: of the signed errors, and of their absolute values; None without outcomes.
        within: share of the outcomes with an absolute error of at most ``BOUND``.
        worst, worst_job: the largest error, and its job.
        is_stated: users stated ``predicted`` by --expect.
    """

    kind: str
    place: str
    unit: str
    emulated: bool
    n: int
    blind: int
    open: int
    void: int
    predicted: float | None = None
    measured: float | None = None
    median: float | None = None
    median_absolute: float | None = None
    p95: float | None = None
    within: float | None = None
    worst: float | None = None
    worst_job: int | None = None
    is_stated: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON knows it."""
        values = asdict(self)
        return apart(values, values.pop("is_stated"))


def error_of(prediction: TrackedPrediction) -> float | None:
    """Compute (predicted - measured) / measured; None without a prediction or a measurement."""
    if not prediction.measured or prediction.predicted <= 0:
        return None
    return (prediction.predicted - prediction.measured) / prediction.measured


def summary(predictions: Sequence[TrackedPrediction]) -> list[AccuracyRow]:
    """Make one row for each kind and place; emulated outcomes and users' statements apart."""
    groups: dict[tuple[str, str, bool, bool], list[TrackedPrediction]] = defaultdict(list)
    for p in predictions:
        groups[p.kind, _place(p), p.emulated, p.is_stated].append(p)
    order = list(UNITS)
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1:]))  # type: ignore[arg-type]
    return [_row(*key, predictions=groups[key]) for key in keys]


def _row(
    kind: str, place: str, emulated: bool, is_stated: bool, *, predictions: list[TrackedPrediction]
) -> AccuracyRow:
    import numpy as np  # here, because the journal imports this file, and numpy takes a tenth of a second

    outcomes = [(error, p) for p in predictions if (error := error_of(p)) is not None]
    row = AccuracyRow(
        kind,
        place,
        UNITS[kind],  # type: ignore[index]
        emulated,
        n=len(outcomes),
        blind=sum(p.measured is not None for p in predictions) - len(outcomes),
        open=sum(p.open for p in predictions),
        void=sum(bool(p.void) for p in predictions),
        is_stated=is_stated,
    )
    if not outcomes:
        return row
    errors = np.array([error for error, _ in outcomes])
    worst, whose = max(outcomes, key=lambda pair: abs(pair[0]))
    return replace(
        row,
        predicted=median(p.predicted for _, p in outcomes),
        measured=median(p.measured for _, p in outcomes if p.measured is not None),
        median=float(np.median(errors)),
        median_absolute=float(np.median(abs(errors))),
        p95=float(np.quantile(abs(errors), 0.95)),
        within=float((abs(errors) <= BOUND).mean()),
        worst=worst,
        worst_job=whose.job,
    )


def parts(predictions: Sequence[TrackedPrediction]) -> list[tuple[str, int, float, float]]:
    """List (part, n, median predicted, median measured) in seconds, for programs that note their phases.

    The parts of checkpoints and restarts are in the order in which they follow each other.
    """
    times: dict[str, list[tuple[float, float]]] = {}
    for prediction in predictions:
        if prediction.kind in ("checkpoint", "restart"):
            for part, seconds in prediction.detail.get("measured", {}).items():
                times.setdefault(part, []).append((prediction.detail["parts"][part], seconds))
    return [
        (part, len(pairs), median(p for p, _ in pairs), median(m for _, m in pairs))
        for part, pairs in times.items()
    ]


def samples(predictions: Sequence[TrackedPrediction], storage: str) -> list[dict[str, Any]]:
    """Turn the outcomes of jobs' checkpoints into rows of the checkpoint probe.

    The rows leave out the start and the end of programs (``profiles.fits.checkpoint``).
    """
    rows: list[dict[str, Any]] = []
    for prediction in predictions:
        took, mb = prediction.detail.get("measured"), prediction.detail.get("mb", 0.0)
        if prediction.measured is None or not took or not mb:
            continue
        if prediction.kind != "restart" and "drain" not in took:
            continue  # the layer parked or moved the program, not on this storage
        device, common = prediction.detail["pool"], {"emulated": prediction.emulated}
        where = {"device": device, "storage": storage, "memory_mb": mb} | common
        if prediction.kind == "checkpoint":
            rows.append({"kind": "checkpoint", **where, "seconds": took["save"]})
        elif prediction.kind == "restart":
            context, kernels = took["context"], took["compile"]
            rows.append({"kind": "restart", **where, "seconds": context + took["restore"]})
            rows.append({"kind": "compile", "cache": "warm", "device": device, "seconds": kernels} | common)
            rows.append({"kind": "phase", "phase": "context", "device": device, "seconds": context} | common)
        elif prediction.kind == "migration":
            to = prediction.detail["to"]
            seconds = sum(took[part] for part in ("drain", "save", "context", "compile", "restore"))
            twin = {"to_device": to, "costs_of": device, "to_costs_of": to}
            rows.append({"kind": "migration", **where, **twin, "seconds": seconds})
    return [{**row, "repetition": number} for number, row in enumerate(rows)]


def within_bounds(predictions: Sequence[TrackedPrediction]) -> tuple[int, int]:
    """Count the outcomes of predictions that state bounds, and those inside their bounds."""
    bounded = [p for p in predictions if p.measured is not None and "low_s" in p.detail]
    inside = sum(p.detail["low_s"] <= (p.measured or 0.0) <= p.detail["high_s"] for p in bounded)
    return len(bounded), inside


def _place(prediction: TrackedPrediction) -> str:
    place = str(prediction.detail.get("pool", ""))
    return f"{place} -> {prediction.detail['to']}" if "to" in prediction.detail else place


# -- expected starts beside the real ones; how wrong they were gives the next ones their interval ----------

LEAST = 8  # outcomes before an expected start has an interval
KEPT = 200  # outcomes
AWAITED = 10_000  # jobs whose start is still to come
SHORTEST_S = 1.0  # of a wait that is compared


class StartTimes:
    """The waits that were expected, and the ratios of real to expected wait; all in memory."""

    def __init__(self) -> None:
        self._awaited: dict[int, tuple[float, float]] = {}  # when it was first said, and the wait
        self._ratios: deque[float] = deque(maxlen=KEPT)

    def expect(self, job_id: int, now_s: float, wait_s: float) -> tuple[float, float] | None:
        """Note the first expectation of a job; return the 8 of 10 interval of the wait, None: not known."""
        if wait_s > SHORTEST_S and job_id not in self._awaited:
            if len(self._awaited) >= AWAITED:
                del self._awaited[next(iter(self._awaited))]
            self._awaited[job_id] = now_s, wait_s
        spread = self._spread()
        return None if spread is None else (wait_s * spread[0], wait_s * spread[2])

    def started(self, job_id: int, now_s: float) -> None:
        """Compare what was expected with what has come."""
        if job_id in self._awaited:
            said_s, wait_s = self._awaited.pop(job_id)
            self._ratios.append(max(now_s - said_s, 0.0) / wait_s)

    def account(self) -> dict[str, Any]:
        """Return how many outcomes there are, and the quantiles of real / expected wait if they suffice."""
        low, middle, high = self._spread() or (None, None, None)
        return {"outcomes": len(self._ratios), "needed": LEAST, "low": low, "middle": middle, "high": high}

    def _spread(self) -> tuple[float, float, float] | None:
        """Return the 10, 50 and 90 % quantiles of real / expected wait; None: of too few outcomes."""
        if len(self._ratios) < LEAST:
            return None
        low, *_, middle, _, _, _, high = quantiles(self._ratios, n=10)
        return max(low, 0.0), middle, high
