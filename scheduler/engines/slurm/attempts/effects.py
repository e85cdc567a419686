"""The effects that a step of an attempt may have; a Report is one of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from scheduler.engines.protocol import Report

Call = Literal["submit", "start", "wake", "suspend", "resume", "hold", "cancel"]


class Do(NamedTuple):
    """Make a call of Slurm; its outcome comes back as ``settled``."""

    call: Call


class Cancel(NamedTuple):
    """Cancel the Slurm job of this number, beside any other call."""

    number: int


class Revoke(NamedTuple):
    """Claim an attempt that has not begun; if that succeeds it never will, and the report says so."""

    report: Report


class Fence(NamedTuple):
    """Have the attempt end, wherever it runs."""


class Expect(NamedTuple):
    """Heartbeats are due from now on, or are not."""

    beats: bool


class Look(NamedTuple):
    """Take a snapshot so soon, and ask these nodes whether they answer."""

    after_s: float = 0.0
    ask: tuple[str, ...] = ()


class PutBack(NamedTuple):
    """Restore the power caps that a killed supervisor has left."""


class Refused(NamedTuple):
    """Slurm does not start the external job where tenbin wants."""

    why: str


class WaitsAgain(NamedTuple):
    """The external job waits for tenbin again."""


Effect = Report | Do | Cancel | Revoke | Fence | Expect | Look | PutBack | Refused | WaitsAgain
