"""Run-time predictions for jobs without an estimate, learnt from the journal and from job profiles.

Waiting jobs are indexed by what they can be predicted from, so the end of a job costs time only for those
jobs that it may predict better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.speeds import run_time_on
from scheduler.prediction.history import (
    Basis,
    History,
    HistoryPrediction,
    JobSignature,
    PastRun,
    Quantity,
    program_of,
    shape_of,
)
from scheduler.prediction.predictions import ELSEWHERE, STATED, TRIED
from scheduler.prediction.tried import Pair, TriedRatio, TriedRatios, pair, run_time_tried, tried_words

REMEMBERED = 5000  # earlier jobs that a new coordinator learns from
NEEDS: tuple[Quantity, ...] = ("memory_mb", "registered_mb", "compile_s")
ORDER = ("user", "name", "scaled", "arguments")  # later ones predict better
AT_ONCE = 50  # jobs that differ in numbers only and are predicted again for each kind that ends
Told = dict[str, Any]
Key = tuple[object, ...]  # common properties of jobs: a basis of ``ORDER``, then terms of ``JobSignature``
Program = tuple[str, tuple[int, ...]]  # name and size: what a trial tells of


class RunTimePredictor:
    """Predictor of run times that learns from the ends of jobs.

    Args:
        entries: jobs that have ended, in the order of their numbers.
        profiled: returns the runs of a job profile, by name.

    Attributes:
        predictions: how many jobs were predicted.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        user: str,
        cluster: Cluster,
        profiled: Callable[[str], Sequence[PastRun]] = lambda name: (),
    ) -> None:
        self.user, self._profiled = user, profiled
        self._cluster = cluster
        self._pools = [pool.name for pool in cluster.pools if pool.kind] or [""]
        self._introduced: set[str] = set()
        self._kinds: set[JobSignature] = set()
        self._count: Counter[tuple[Key, str]] = Counter()  # kinds, by what they have in common and device
        self._unsure: defaultdict[Key, dict[int, None]] = defaultdict(dict)
        self._tried: defaultdict[Program, dict[Pair, TriedRatio]] = defaultdict(dict)
        self._waiting: defaultdict[Program, dict[int, None]] = defaultdict(dict)  # jobs that have not begun
        self.predictions = 0
        self.history = History()
        for entry in entries:
            self._introduce(entry.spec)  # before the run, because later runs count more
            self.ended(entry)

    def watch(self, entry: Entry) -> None:
        """Watch a job that has not begun, so that it is named when it may be predicted better."""
        self._recall(entry)
        if entry.attempt:
            return
        if self._pools != [""]:
            self._waiting[self.program(entry.spec)][entry.id] = None
        if says_itself(entry.spec):
            return
        level = self._level(entry.predicted)
        for basis, key in enumerate(_keys(asked_of(entry.spec, self.user))):
            if key is not None and level < basis:
                self._unsure[key][entry.id] = None
            elif key is not None and key in self._unsure:
                self._unsure[key].pop(entry.id, None)

    def forget(self, entry: Entry) -> None:
        """Drop a job that is over."""
        for key in _keys(asked_of(entry.spec, self.user)):
            if key is not None and key in self._unsure:
                self._unsure[key].pop(entry.id, None)
                if not self._unsure[key]:
                    del self._unsure[key]
        program = self.program(entry.spec)
        if program in self._waiting:
            self._waiting[program].pop(entry.id, None)
            if not self._waiting[program]:
                del self._waiting[program]

    def ended(self, entry: Entry) -> list[int]:
        """Learn from a job that has ended; return the numbers of jobs that may be predicted better now.

        These are jobs of the same program, or with the same arguments, if the ended job is the first of its
        kind; and all jobs of the user, if the rule by user becomes proved. Jobs that differ in numbers only
        are named for each new kind; if many wait, for the first, second, fourth, ... kind and one in so many,
        so that a sweep over a parameter takes no quadratic time.
        """
        self._recall(entry)
        if (run := run_of(entry, self.user)) is None:
            return []
        asked, proved = run.asked, self.history.proved(run.asked.user)
        self.history.add(run)
        by_user, *others = _keys(asked)
        keys: list[Key | None] = [by_user] if not proved and self.history.proved(asked.user) else []
        if asked not in self._kinds:
            self._kinds.add(asked)
            keys += [key for key in others if key is not None and self._tells(key, asked.pool)]
        groups = (self._unsure.get(key, {}) for key in keys if key is not None)
        return list(dict.fromkeys(job_id for group in groups for job_id in group))

    def _tells(self, key: Key, pool: str) -> bool:
        """Count one more kind of run on that device; true if the jobs of that key may be predicted better."""
        self._count[key, pool] += 1
        count = self._count[key, pool]
        if key[0] != "scaled":
            return count == 1
        alike = len(self._unsure.get(key, ()))
        return count.bit_count() == 1 or count % (alike // AT_ONCE + 1) == 0

    def _level(self, told: Told | None) -> int:
        """Return the place in ``ORDER`` that the prediction goes by on every device; -1: there is none."""
        if told is None:
            return -1
        levels = _levels(told)
        if not levels:
            return -1
        return min(levels) if len(levels) == len(self._pools) else 0

    def program(self, spec: JobSpec) -> Program:
        """Return what a trial of the job tells of: other arguments are no other program."""
        asked = asked_of(spec, self.user)
        return asked.program, asked.size

    def tried(self, spec: JobSpec, ratio: TriedRatio) -> list[int]:
        """Learn from a trial of a running job; return the numbers of waiting jobs that may be better known.

        Jobs that have begun are not among them: ``expect`` predicts these anew.
        """
        program = self.program(spec)
        known, classes = self._tried[program], pair(ratio.pool, ratio.over)
        if classes not in known or known[classes].at_s < ratio.at_s:
            known[classes] = ratio
        return list(self._waiting.get(program, ()))

    def wants_trial(self, spec: JobSpec, pool: Pool, over: str) -> bool:
        """Tell if neither the owner, earlier runs nor a trial say how fast a job is on a class."""
        if {"", pool.name, pool.kind} & spec.expect_s.keys():
            return False
        found = self.history.predict(asked_of(spec, self.user)._replace(pool=pool.name))
        if found is not None and found.basis != "user":
            return False
        return pair(pool.name, over) not in self._tried.get(self.program(spec), ())

    def _recall(self, entry: Entry) -> None:
        """Take up trials that an earlier coordinator has journalled with the job."""
        for one in (entry.predicted or {}).get("tried", ()):
            self.tried(entry.spec, TriedRatio(**one))

    def expect(self, specs: Sequence[JobSpec], so_far: Sequence[Told | None] = ()) -> list[Told | None]:
        """Predict each job, as ``Entry.predicted``; None: nothing is known beside what its owner states.

        With ``so_far``, the present predictions, None also stands for no better prediction.
        """
        found: dict[JobSignature, Told | None] = {}
        whole: dict[JobSignature, Told] = {}
        told: list[Told | None] = []
        for place, spec in enumerate(specs):
            if says_itself(spec):
                stated = self._from_stated(spec)
                told.append(None if so_far and stated and not better(stated, so_far[place]) else stated)
                continue
            self._introduce(spec)
            self.predictions += 1
            asked = asked_of(spec, self.user)
            if asked not in found:
                found[asked] = self._run_times(asked)
            new = found[asked]
            if new is None or (so_far and not better(new, so_far[place])):
                told.append(None)
                continue
            if asked not in whole:
                whole[asked] = new | self._needs(asked)
            told.append(whole[asked])
        return told

    def unproved(self, entry: Entry) -> Told | None:
        """Predict the run time by unrelated jobs of the same user, to be told and not planned with."""
        if says_itself(entry.spec) or (entry.predicted or {}).get("run_s"):
            return None
        found = self.history.predict(asked_of(entry.spec, self.user)._replace(pool=self._pools[0]))
        return None if found is None or found.proved else vars(found)

    def _introduce(self, spec: JobSpec) -> None:
        name = spec.job_profile
        if name and name not in self._introduced:
            self._introduced.add(name)
            for run in self._profiled(name):
                self.history.add(run)

    def _run_times(self, asked: JobSignature) -> Told | None:
        runs = {pool: self.history.predict(asked._replace(pool=pool)) for pool in self._pools}
        known = {pool: vars(found) for pool, found in runs.items() if found is not None and found.proved}
        of_program = {pool: found for pool, found in known.items() if found["basis"] != "user"}
        trials = self._tried.get((asked.program, asked.size), {})
        return _told(of_program | self._elsewhere(of_program, trials) if of_program else known, trials)

    def _from_stated(self, spec: JobSpec) -> Told | None:
        """Predict the run time on devices for which the owner states none, by those for which he does."""
        stated, trials = spec.expect_s, self._tried.get(self.program(spec), {})
        if not (trials or self._cluster.ratios):
            return None
        known = {}
        for pool in self._cluster.pools if "" not in stated else ():
            seconds = stated.get(pool.name, stated.get(pool.kind))
            if seconds is not None:
                known[pool.name] = vars(HistoryPrediction(seconds, seconds, seconds, 1, ELSEWHERE, STATED))
        wanted = {p.name for p in self._cluster.pools if spec.device in ("any", p.kind, p.name)}
        found = {pool: told for pool, told in self._elsewhere(known, trials).items() if pool in wanted}
        return _told(found, trials)

    def _elsewhere(self, known: Mapping[str, Told], trials: TriedRatios) -> dict[str, Told]:
        """Predict the run time on devices where no such job ran: by a trial, else by the devices' figures."""
        known_s = {pool: found["middle"] for pool, found in known.items()}
        predicted = {}
        for pool in (pool for pool in self._pools if pool not in known):
            basis: Basis = ELSEWHERE
            if (by_trial := run_time_tried(pool, known_s, trials)) is not None:
                basis, (told, ratio) = TRIED, by_trial
                words = tried_words(ratio)
            elif (by_figures := run_time_on(pool, known_s, self._cluster.ratios)) is not None:
                told = by_figures
                words = (
                    f"{pool} is {told.ratio.low:.3g} to {told.ratio.high:.3g} times as fast by memory and "
                    "arithmetic"
                )
            else:
                continue
            rule = f"{known_s[told.of]:.3g} s on {told.of}, {known[told.of]['rule']}; {words}"
            found = HistoryPrediction(
                told.low_s, told.middle_s, told.high_s, known[told.of]["n"], basis, rule
            )
            predicted[pool] = vars(found)
        return predicted

    def _needs(self, asked: JobSignature) -> Told:
        needs = {name: self.history.predict(asked._replace(pool=self._pools[0]), name) for name in NEEDS}
        return {name: vars(found) for name, found in needs.items() if found is not None}


def _told(run_s: dict[str, Told], trials: TriedRatios) -> Told | None:
    """Make a prediction of run times, with the trials for the journal and for who asks about the job."""
    tried = {"tried": [asdict(one) for one in trials.values()]} if trials else {}
    return {"run_s": run_s} | tried if run_s or tried else None


def says_itself(spec: JobSpec) -> bool:
    """Tell if the job's owner says how long the job runs."""
    return spec.time_s is not None or bool(spec.expect_s)


@lru_cache(maxsize=1024)
def _keys(asked: JobSignature) -> tuple[Key | None, ...]:
    """List what the job has in common with jobs that can be predicted from it, by the places of ``ORDER``."""
    program, arguments, user, size, _ = asked
    shape = shape_of(arguments)
    scaled = None if shape is None else ("scaled", program, size, shape)
    return ("user", user), ("name", program), scaled, ("arguments", program, size, arguments)


def asked_of(spec: JobSpec, user: str) -> JobSignature:
    """Describe the job in the terms of the history."""
    program, arguments = program_of(spec.command)
    name = spec.job_profile or spec.name or program
    return JobSignature(name, arguments, spec.owner(user), (spec.tasks * spec.cores, spec.nodes or 0))


def run_of(entry: Entry, user: str) -> PastRun | None:
    """Make a run of a job that has ended; None if it did not run from beginning to end in one place."""
    used = entry.usage
    if entry.stage is not Stage.DONE or entry.attempt != 1 or entry.migrations:
        return None
    if used is None or used["running_s"] <= 0:
        return None
    pool = entry.placement.pool if entry.devices and entry.placement is not None else ""
    return PastRun(
        asked_of(entry.spec, user)._replace(pool=pool),
        used.get("reference_s", used["running_s"]),
        used.get("peak_memory_mb") or None,  # 0: not measured
        used.get("registered_mb"),
        used.get("compile_s"),
    )


def better(new: Told, old: Told | None) -> bool:
    """Tell if the new prediction goes by something better than the old one."""
    return old is None or _rank(new) > _rank(old)


def _rank(told: Told) -> tuple[bool, int, int, float]:
    places = _levels(told)
    last_trial_s = max((one["at_s"] for one in told.get("tried", ())), default=0.0)
    return min(places, default=0) > 0, len(places), max(places, default=-1), last_trial_s


def _levels(told: Told) -> list[int]:
    """Return the place in ``ORDER`` of each device on which jobs have run; others follow from these."""
    return [ORDER.index(found["basis"]) for found in told["run_s"].values() if found["basis"] in ORDER]
