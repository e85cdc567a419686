"""Slow-downs of real jobs that share a node, as predicted by their job profiles.

A job's ``program`` is the name of its job profile. One that was submitted without is nobody's neighbour:
nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache

from profiles.errors import BadInput
from profiles.job_store import JobStore
from profiles.jobs import JobProfile, NodeKind
from profiles.models.neighbours import slowdown_beside
from scheduler.model.interference import PACKED, Pressure
from scheduler.prediction.history import Asked, Run, program_of

NEEDS = ("peak_memory_mb", "registered_mb", "compile_s")  # in the order of ``Run``


class JobProfiles:
    """The ``Slowdowns`` of those job profiles that jobs were submitted with.

    Args:
        kind: of this machine: profiles made on another are not used.
    """

    def __init__(self, store: JobStore, kind: NodeKind) -> None:
        self.store, self.kind = store, kind
        self._known: dict[str, JobProfile] = {}
        self._factor = lru_cache(maxsize=4096)(self._predict)

    def introduce(self, names: Iterable[str]) -> None:
        """Jobs of these job profiles come: the newest ones of this kind of node are used from now on.

        Raises:
            BadInput: there is none of a name, or it says nothing about sharing.
        """
        for name in set(names) - {""}:
            found = self._usable(name)
            if self._known.get(name) != found:
                self._known[name] = found
                self._factor.cache_clear()

    def recall(self, names: Iterable[str]) -> None:
        """After a restart: as ``introduce``; of jobs whose profile is gone nothing is known."""
        for name in set(names):
            with suppress(BadInput):
                self.introduce([name])

    def _usable(self, name: str) -> JobProfile:
        found = self.store.load(name, self.kind.key)
        remedy = f"measure it here: tenbin job profile {name} -- CMD...; or leave --job-profile out"
        if found.kind.key != self.kind.key:
            what = f"job profile '{name}' was made on another kind of node ({found.kind.title})"
            raise BadInput(f"{what}, this one is {self.kind.title}", remedy)
        if slowdown_beside(found, [found]) is None:
            raise BadInput(f"job profile '{name}' says nothing about pressure or sensitivity", remedy)
        return found

    def factor(self, program: str, binding: str, beside: Sequence[str]) -> float:
        """All bindings on a shared node are the same here: the job has cores of its own."""
        return 1.0 if binding == PACKED or not beside else self._factor(program, tuple(sorted(beside)))

    def pressure(self, program: str) -> Pressure | None:
        known = self._known.get(program)
        return None if known is None else pressure_of(known)

    def alone_s(self, program: str) -> float | None:
        """Its run time alone, as measured."""
        known = self._known.get(program)
        run = known.need("run_s") if known is not None else None
        return None if run is None else run.value

    def _predict(self, program: str, beside: tuple[str, ...]) -> float:
        known = [self._known.get(name) for name in (program, *beside)]
        profiles = [profile for profile in known if profile is not None]
        found = slowdown_beside(profiles[0], profiles[1:]) if len(profiles) == len(known) else None
        return 1.0 if found is None else max(found.value, 1.0)


def pressure_of(job: JobProfile) -> Pressure | None:
    """What a job presses with, in the terms of the paper's rule; None if it was not measured.

    Of a job on one host: it presses on no network. comprobe's place is the core next to the job's: near.
    """
    found = job.pressure_by()
    if found is None:
        return None
    network, share = job.network, job.need("mpi_share")
    comprobe = network.pressure.slowdown.value if network and network.pressure else 1.0
    return Pressure(
        memory_percent=max(100 * (found.slowdown.value - 1), 0.0),
        near_percent=max(100 * (comprobe - 1), 0.0),
        communication_percent=100 * share.value if network and share else 0.0,
    )


class Measured:
    """What job profiles made on this kind of node say of jobs by themselves: run times, and how they scale.

    Args:
        store: None: there are none.
    """

    def __init__(self, store: JobStore | None = None, kind: NodeKind | None = None) -> None:
        self._store, self._kind = store, kind

    def check(self, names: Iterable[str]) -> None:
        """Refuse names of job profiles that do not exist; one of another kind of node names a program only.

        Raises:
            BadInput: there is none of a name.
        """
        if self._store is not None and self._kind is not None:
            for name in set(names) - {""}:
                self._store.find(name, self._kind.key)

    def runs(self, name: str) -> list[Run]:
        """The profile's median and both ends of its interval, a run each; empty: there is none."""
        found = self._find(name)
        return [] if found is None else runs_of(found)

    def scaling(self, name: str) -> tuple[float, float] | None:
        """Downey's A and sigma; None: not measured, or over namespaces only."""
        found = self._find(name)
        if found is None or found.scaling is None or found.scaling.emulated:
            return None
        return found.scaling["A"].value, found.scaling["sigma"].value

    def caps(self, name: str, emulated: str) -> tuple[float, float] | None:
        """Knee in watts of a package, and the share of speed lost by each watt below; None: not measured.

        Args:
            emulated: the machine whose packages are meant; empty: the real one.
        """
        found = self._find(name)
        if found is None or found.caps is None or found.caps.speed is None or found.caps.emulated != emulated:
            return None
        speed = found.caps.speed
        flat = speed["speed_flat"].value
        return (speed["knee_w"].value, speed["slope_per_w"].value / flat) if flat > 0 else None

    def _find(self, name: str) -> JobProfile | None:
        if self._store is None or self._kind is None or not name:
            return None
        with suppress(BadInput):
            found = self._store.load(name, self._kind.key)
            if found.kind.key == self._kind.key and not found.emulated:
                return found
        return None


def runs_of(job: JobProfile) -> list[Run]:
    """See ``Measured.runs``."""
    took = job.need("run_s")
    if took is None:
        return []
    asked = Asked(job.name, program_of(job.command)[1], "", (job.cores, 0))
    times = [took.low, took.high, took.value] if took.low and took.high else [took.value]
    needs = [None if found is None else found.value for found in map(job.need, NEEDS)]
    return [Run(asked, seconds, *needs) for seconds in times if seconds]
