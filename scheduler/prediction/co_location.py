"""Who shares a node with whom: predicted slow-downs, kept beside those that were measured.

A job's company can change while it runs. What is predicted of it then is the slow-down over all of it: its
run time over what it would have taken alone, had it gone on as fast as predicted beside each company.
"""

from __future__ import annotations

from agent.attempts.folder import Result
from scheduler.coordinator.job_table import Ledger
from scheduler.coordinator.journal import Entry
from scheduler.model.interference import PACKED
from scheduler.model.state import JobState, State
from scheduler.prediction.predictions import Forecast
from scheduler.prediction.profiled import JobProfiles

LEAST_PAUSE_S = 0.5  # between its supervisor's time and its own


class Company:
    """Looks, once every turn, who runs beside whom, and writes to ``ledger.forecasts``."""

    def __init__(self, ledger: Ledger, profiles: JobProfiles) -> None:
        self.ledger, self.profiles = ledger, profiles

    def look(self, state: State) -> None:
        """Note the company of each running job, if it has changed."""
        for running in state.running.values():
            placement = running.placement
            if placement is None or self.profiles.pressure(running.job.program) is None:
                continue
            beside = _beside(running, state)
            one = self.ledger.forecasts.of(running.job.id, "pairing")
            if one is not None and one.detail["company"][-1]["beside"] == beside:
                continue
            factor = self.profiles.factor(running.job.program, placement.binding, beside)
            met = {"since_s": state.now, "beside": beside, "factor": factor}
            if one is not None:
                one.detail["company"].append(met)
                self.ledger.forecasts.touch(one)
            elif placement.binding != PACKED:
                entry = self.ledger.entries[running.job.id]
                self.ledger.forecasts.predict(
                    entry.id, entry.attempt, state.now, "pairing", factor, company=[met]
                )

    def ended(self, entry: Entry, result: Result) -> None:
        """An attempt has come to its end: if with success, its slow-down is known."""
        one = self.ledger.forecasts.of(entry.id, "pairing")
        alone_s = self.profiles.alone_s(entry.spec.job_profile)
        if one is None:
            return
        paused = result.usage.wall_s - result.usage.running_s > LEAST_PAUSE_S
        if alone_s is None or result.how != "exited" or result.code or paused or entry.failures:
            self.ledger.forecasts.void(entry.id, "it did not run from beginning to end at once", "pairing")
            return
        one.predicted = overall(one, result.ended_s)
        self.ledger.forecasts.measure(entry.id, "pairing", result.usage.running_s / alone_s, alone_s=alone_s)


def overall(one: Forecast, end_s: float) -> float:
    """The predicted slow-down over all the company that it had until ``end_s``."""
    met = one.detail["company"]
    ends = [*(after["since_s"] for after in met[1:]), max(end_s, met[-1]["since_s"])]
    spent = [max(end - there["since_s"], 0.0) for there, end in zip(met, ends, strict=True)]
    work = sum(seconds / there["factor"] for there, seconds in zip(met, spent, strict=True))
    return float(sum(spent) / work) if work > 0 else float(met[-1]["factor"])


def _beside(running: JobState, state: State) -> list[str]:
    """Programs of the jobs on its nodes, in alphabetical order."""
    assert running.placement is not None
    nodes = {node for node, _ in running.placement.nodes}
    others = (other for other in state.running.values() if other is not running and other.placement)
    return sorted(
        other.job.program
        for other in others
        if other.placement is not None and nodes & {node for node, _ in other.placement.nodes}
    )
