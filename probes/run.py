"""A run of a probe: its settings, and the ways to record, report and change the node.

A probe is a function ``measure(run: Run) -> None``. It records every observation with ``run.sample`` at once
(so that Ctrl-C or a lost device keeps the earlier ones), says what it could not measure with ``run.absent``,
and changes the node only through ``run.control``, which journals the original value first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from profiles.errors import Unavailable
from profiles.records import Absent, Settings

if TYPE_CHECKING:  # a probe's process starts in half the time without it
    import pandas as pd

Event = dict[str, Any]


class Control(Protocol):
    """Writer of ``value`` to a control file of the node, after journalling the original for the restore."""

    def __call__(self, path: Path, value: str) -> None: ...


def _refuse(path: Path, value: str) -> None:
    raise Unavailable(f"no journal to change {path} under", "run the probe through 'tenbin profile'")


@dataclass
class Run:
    """A probe at work."""

    probe: str
    settings: Settings
    emit: Callable[[Event], None]
    control: Control = _refuse
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        import numpy as np  # late, because the doctor imports probes and runs none

        self.rng = np.random.default_rng((self.settings.seed, self.settings.round))

    def sample(self, **row: Any) -> None:
        """Record one observation. Units are in the column names."""
        s = self.settings
        base = {"round": s.round, "emulated": bool(s.emulated), "time_s": round(time.time(), 3)}
        self.emit({"event": "sample", "row": base | row})

    def absent(self, what: str, reason: str, remedy: str = "", *, failed: bool = False) -> None:
        """Say what could not be measured and why; ``failed``: broken, rather than not there."""
        record = Absent(probe=self.probe, what=what, reason=reason, remedy=remedy, failed=failed)
        self.emit({"event": "absent", "absent": record.model_dump()})

    def progress(self, doing: str, fraction: float | None = None) -> None:
        """Say what is being measured, and the ``fraction`` of the probe that is done (default: by time)."""
        if fraction is None:
            fraction = (time.monotonic() - self.started) / self.settings.budget_s
        self.emit({"event": "progress", "doing": doing, "fraction": min(max(fraction, 0.0), 1.0)})

    def left_s(self) -> float:
        """Compute the seconds left of this run's budget (negative when overdrawn)."""
        return self.settings.budget_s - (time.monotonic() - self.started)


def collect(
    probe: str, settings: Settings, measure: Callable[[Run], None]
) -> tuple[pd.DataFrame, list[Absent]]:
    """Run a probe in this process and gather its events; for tests and notebooks."""
    events: list[Event] = []
    measure(Run(probe, settings, events.append))
    return samples_of(events), [Absent(**e["absent"]) for e in events if e["event"] == "absent"]


def samples_of(events: list[Event]) -> pd.DataFrame:
    """Make the table of samples among ``events``, one row an observation."""
    import pandas as pd

    return pd.DataFrame([e["row"] for e in events if e["event"] == "sample"])
