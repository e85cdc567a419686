"""What was predicted of a job, kept beside what then happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["run-time", "checkpoint", "restart", "migration", "suspension", "pairing", "cap"]
Unit = Literal["s", "ratio"]

UNITS: dict[Kind, Unit] = {
    "run-time": "s",  # from an attempt's start to its end, what moving it costs apart
    "checkpoint": "s",  # from the request until the job has left
    "restart": "s",  # from the decision until it computes again
    "migration": "s",  # from the request until it computes again, elsewhere
    "suspension": "s",  # to stop it and to get it going again, without the time between
    "pairing": "ratio",  # run time beside another job / run time alone
    "cap": "ratio",  # run time under its power cap / believed run time without one
}


STATED = "stated by the user"  # what such a run time rests on


@dataclass(slots=True)
class Forecast:
    """One prediction, in seconds or as a ratio (``UNITS``), and its outcome.

    Attributes:
        number: counted over all jobs.
        at_s: when it was made, in seconds since 1970.
        measured: None as long as it is not known, or if it never will be.
        void: why it never will be, as a sentence; "" if it may yet.
        emulated: the outcome comes of emulated hardware.
        detail: what it was about (``from``, ``to``, ``bytes``, ...), as JSON knows it.
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
        """Whether its owner said so by --expect: no prediction of tenbin's."""
        return self.kind == "run-time" and self.detail.get("rests_on", STATED) == STATED

    def told(self) -> dict[str, Any]:
        """As JSON knows it: what its owner stated is not called a prediction."""
        return apart(asdict(self), self.is_stated)


def apart(values: dict[str, Any], is_stated: bool) -> dict[str, Any]:
    """``predicted`` of these as what tenbin predicted, or what the user stated; the other one is None."""
    said = values["predicted"]
    return {**values, "predicted": None if is_stated else said, "stated": said if is_stated else None}


class Forecasts:
    """The predictions whose outcome is not known yet, and what is to be journalled of them next.

    A job has at most one open prediction of a kind: a new one makes the old one void.

    Args:
        last: number of the last prediction that the journal has.
        open_ones: those that the journal has and whose outcome is not known.
    """

    def __init__(self, last: int = 0, open_ones: Iterable[Forecast] = ()) -> None:
        self._last = last
        self._open = {(one.job, one.kind): one for one in open_ones}
        self._changed: dict[int, Forecast] = {}

    def predict(
        self,
        job: int,
        attempt: int,
        now: float,
        kind: Kind,
        value: float,
        *,
        emulated: bool = False,
        **detail: Any,
    ) -> Forecast:
        """A decision rests on this; journalled together with it."""
        self.void(job, "predicted anew", kind)
        self._last += 1
        one = Forecast(self._last, job, attempt, kind, now, value, emulated=emulated, detail=detail)
        self._open[job, kind] = one
        self._changed[one.number] = one
        return one

    def measure(self, job: int, kind: Kind, value: float, **detail: Any) -> Forecast | None:
        """The outcome of the open prediction of that kind, if there is one; ``detail`` joins what it has."""
        one = self._open.pop((job, kind), None)
        if one is not None:
            one.measured = value
            one.detail |= detail
            self._changed[one.number] = one
        return one

    def void(self, job: int, why: str, *kinds: Kind) -> None:
        """No outcome will come of the job's open predictions (of these kinds; none named: of all)."""
        for kind in kinds or UNITS:
            one = self._open.pop((job, kind), None)
            if one is not None:
                one.void = why
                self._changed[one.number] = one

    def of(self, job: int, kind: Kind) -> Forecast | None:
        """The job's open prediction of a kind."""
        return self._open.get((job, kind))

    def touch(self, one: Forecast) -> None:
        """Its ``detail`` has changed."""
        self._changed[one.number] = one

    def changed(self) -> list[Forecast]:
        """What the journal does not have yet."""
        return list(self._changed.values())

    def committed(self) -> None:
        """The journal has all of it."""
        self._changed.clear()
