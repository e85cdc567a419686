"""The table of transitions: whole, as the page for developers has it, and kept in the world."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.coordinator import events as ev
from scheduler.coordinator.machine_state import MachineState
from scheduler.coordinator.transitions import TABLE, Transition
from scheduler.jobs.entry import Phase
from tests.support.paths import ROOT
from tests.support.world import live, pairs, plan

PAGE = (ROOT / "docs" / "developing.md").read_text()
HISTORIES = 30


def test_every_event_of_a_job_has_a_row() -> None:
    assert TABLE.keys() == {ev.AttemptOver, *ev.JobEvent.__subclasses__()} - {ev.Fault}


def test_the_page_for_developers_has_the_phases() -> None:
    assert re.findall(r"^\| `([\w ]+)` \| [^|`]+ \| [^|]+ \|$", PAGE, re.M) == [
        phase.value for phase in Phase
    ]


def test_the_page_for_developers_has_the_table() -> None:
    written = re.findall(r"^\| `\w+` \| [^|]+ \| `\w+\.\w+` \| [^|]+ \|$", PAGE, re.M)
    assert written == [row for event, of_phases in TABLE.items() for row in rows(event, of_phases)]


def rows(event: type[ev.Event], of_phases: Mapping[Phase, Transition]) -> list[str]:
    """Write the rows of an event as the page has them: one for each transition."""
    written = []
    for transition in dict.fromkeys(of_phases.values()):
        phases = [phase for phase in Phase if of_phases.get(phase) == transition]
        do = f"{transition.do.__module__.rpartition('.')[2]}.{transition.do.__name__}"
        written.append(f"| `{event.__name__}` | {named(phases)} | `{do}` | {named(transition.to)} |")
    return written


def named(phases: list[Phase] | tuple[Phase, ...]) -> str:
    """Name phases, or say which are missing."""
    unended = [phase for phase in Phase if phase.value not in ("done", "failed", "cancelled", "killed")]
    missing = [phase for phase in unended if phase not in phases]
    if len(phases) > len(unended) // 2 and len(missing) < 2:
        return "all but " + ", ".join(missing) if missing else "all"
    return ", ".join(phases) or "-"


def test_in_the_world_jobs_go_where_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an attempt that is over the phase is passing: what follows at once has a row of its own."""
    strays = set[tuple[str, Phase, Phase]]()

    def watched(event: type[ev.Event], phase: Phase, transition: Transition) -> Transition:
        def do(m: MachineState, of: Any) -> Any:
            follows = transition.do(m, of)
            if of.entry.phase not in (phase, *transition.to) and event is not ev.AttemptOver:
                strays.add((event.__name__, phase, of.entry.phase))
            return follows

        return transition._replace(do=do)

    for event, of_phases in list(TABLE.items()):
        whole = {phase: watched(event, phase, transition) for phase, transition in of_phases.items()}
        monkeypatch.setitem(TABLE, event, whole)
    chosen = pairs()
    for seed in range(HISTORIES):
        assert not live(seed, *chosen[seed % len(chosen)], plan(seed, 30)).rule
    assert not strays
