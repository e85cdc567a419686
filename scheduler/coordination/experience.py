"""What earlier runs say of a job whose owner gives no estimate; learnt from the journal and job profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from scheduler.coordination.journal import Entry, Stage
from scheduler.coordination.specs import JobSpec
from scheduler.history import Asked, History, Quantity, Run, program_of
from scheduler.model import Cluster

REMEMBERED = 5000  # jobs that a new coordinator looks back on
NEEDS: tuple[Quantity, ...] = ("memory_mb", "registered_mb", "compile_s")
ORDER = ("user", "name", "scaled", "arguments")  # what is better to go by comes later
MANY = 1000  # waiting jobs
Told = dict[str, Any]


class Experience:
    """Predicts jobs, and is told how they ended.

    Args:
        entries: jobs that have ended, in the order of their numbers.
        profiled: runs that a job profile of that name consists of.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        user: str,
        cluster: Cluster,
        profiled: Callable[[str], Sequence[Run]] = lambda name: (),
    ) -> None:
        self.user, self._profiled = user, profiled
        self._pools = [pool.name for pool in cluster.pools if pool.kind] or [""]
        self._introduced: set[str] = set()
        self._kinds: dict[str, set[Asked]] = defaultdict(set)
        self.history = History()
        for entry in entries:
            self._introduce(entry.spec)  # its profile came first: what ran since counts more
            self.ended(entry)

    def ended(self, entry: Entry, waiting: int = 0) -> bool:
        """A job has ended; whether jobs that wait, so many, should be predicted anew.

        That is so when the first of its kind has ended; where very many wait, of one program only after the
        first, second, fourth, ... kind: a sweep over a parameter costs no time squared.
        """
        if (run := run_of(entry, self.user)) is None:
            return False
        self.history.add(run)
        kinds = self._kinds[run.asked.program]
        if run.asked in kinds:
            return False
        kinds.add(run.asked)
        return waiting <= MANY or len(kinds).bit_count() == 1

    def expect(self, specs: Sequence[JobSpec]) -> list[Told | None]:
        """What ``Entry.predicted`` is to be of each; None: nothing is known, or its owner says it."""
        found: dict[Asked, Told | None] = {}
        told: list[Told | None] = []
        for spec in specs:
            if spec.time_s is not None or spec.expect_s:
                told.append(None)
                continue
            self._introduce(spec)
            asked = asked_of(spec, self.user)
            if asked not in found:
                found[asked] = self._expect(asked)
            told.append(found[asked])
        return told

    def _introduce(self, spec: JobSpec) -> None:
        name = spec.job_profile
        if name and name not in self._introduced:
            self._introduced.add(name)
            for run in self._profiled(name):
                self.history.add(run)

    def _expect(self, asked: Asked) -> Told | None:
        runs = {pool: self.history.predict(asked._replace(pool=pool)) for pool in self._pools}
        known = {pool: asdict(found) for pool, found in runs.items() if found is not None}
        if not known:
            return None
        of_program = {pool: found for pool, found in known.items() if found["basis"] != "user"}
        needs = {name: self.history.predict(asked._replace(pool=self._pools[0]), name) for name in NEEDS}
        return {"run_s": of_program or known} | {
            name: asdict(found) for name, found in needs.items() if found is not None
        }


def asked_of(spec: JobSpec, user: str) -> Asked:
    """What the job is, in the terms of its history."""
    program, arguments = program_of(spec.command)
    name = spec.job_profile or spec.name or program
    return Asked(name, arguments, spec.owner(user), (spec.tasks * spec.cores, spec.nodes or 0))


def run_of(entry: Entry, user: str) -> Run | None:
    """What is to be learnt of a job; None if it did not run from its beginning to its end at once."""
    used = entry.usage
    if entry.stage is not Stage.DONE or entry.attempt != 1 or used is None or used["running_s"] <= 0:
        return None
    pool = entry.placement.pool if entry.devices and entry.placement is not None else ""
    return Run(
        asked_of(entry.spec, user)._replace(pool=pool),
        used.get("reference_s", used["running_s"]),
        used.get("peak_memory_mb") or None,  # 0: nobody looked
        used.get("registered_mb"),
        used.get("compile_s"),
    )


def better(new: Told | None, old: Told | None) -> bool:
    """Whether a job is to be predicted anew: from nothing, or from what is better to go by."""
    return new is not None and (old is None or _rank(new) > _rank(old))


def _rank(told: Told) -> tuple[int, int]:
    return len(told["run_s"]), max(ORDER.index(found["basis"]) for found in told["run_s"].values())
