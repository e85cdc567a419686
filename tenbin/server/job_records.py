"""``POST /history``: CPU time, memory, energy and place of jobs that have begun or ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import Field

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.entry import Entry
from scheduler.jobs.job_list import JobFilter
from tenbin.server.bodies import BODY
from tenbin.server.descriptions import brief, hosts
from tenbin.server.job_list import Conditions, CoordinatorJobs, Number
from tenbin.server.refusals import OF_BODIES


class Wanted(Conditions):
    """Conditions, of which one is that a job, or the array that it belongs to, is one of ``ids``."""

    model_config = BODY

    ids: Annotated[list[Number], Field(max_length=1_000_000)] | None = None

    def as_filter(self) -> JobFilter:
        """Return the conditions as the journal takes them."""
        return replace(super().as_filter(), ids=None if self.ids is None else frozenset(self.ids))


def add_history(api: FastAPI, coordinator: Coordinator) -> None:
    """Add the route that tells what jobs used."""

    @api.post("/history", responses=OF_BODIES)
    async def history(wanted: Wanted) -> list[dict[str, Any]]:
        """Tell what jobs used that have begun or ended, in the order of their numbers."""
        jobs = CoordinatorJobs(coordinator, waiting=False, limit=wanted.limit)
        entries = list(jobs.find(wanted.as_filter()))
        return [used(coordinator, entry) for entry in entries[-(wanted.limit or 0) :]]


def used(coordinator: Coordinator, entry: Entry) -> dict[str, Any]:
    """Describe what a job asked for and used; CPU time and memory are of its last attempt."""
    usage = entry.usage or {}
    running_s, cpu_s, peak_mb = usage.get("running_s"), None, usage.get("peak_memory_mb") or None
    energy_j = usage.get("energy_j")
    if usage:
        cpu_s = usage["user_s"] + usage["system_s"]
    if entry.alive and (rows := coordinator.folders.samples(entry.id, entry.attempt)):
        stay_s = rows[-1].at_s - (entry.since_s or rows[0].at_s)  # below 0 while it is paused
        running_s = entry.served_s - entry.kept_s + max(stay_s, 0.0)
        cpu_s, energy_j = rows[-1].cpu_s, rows[-1].energy_j
        peak_mb = max(row.memory_mb for row in rows)
    end_s = time.time() if entry.end_s is None else entry.end_s
    asked_mb = entry.spec.memory_mb and entry.spec.memory_mb * coordinator.job_table.tasks(entry)
    found = brief(coordinator, entry)
    cpu_share = None
    if cpu_s is not None and running_s and running_s > 0:
        cpu_share = cpu_s / (running_s * found["cores"])
    return {
        **found,
        "elapsed_s": None if entry.start_s is None else end_s - entry.start_s,
        "running_s": running_s,
        "cpu_s": cpu_s,
        "cpu_efficiency": cpu_share,
        "memory_asked_mb": asked_mb,
        "peak_memory_mb": peak_mb,
        "memory_efficiency": peak_mb / asked_mb if peak_mb and asked_mb else None,
        "energy_j": energy_j,
        "emulated": bool(usage.get("emulated")),
        "hosts": hosts(coordinator, entry),
        "attempts": entry.attempt,
        "migrations": entry.migrations,
        "preemptions": entry.preemptions,
        "signal": entry.signal,
    }
