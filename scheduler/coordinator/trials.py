"""Trials of running programs on idle devices, so that their speed there is known before they are moved.

A program is tried once in an attempt on each class, in vain or not, and not where its run time is known: by
its owner, by earlier runs, or by an earlier trial of the same program. One trial is under way at a time. It
is given up when its job is to leave, when the idle device gets a job, and after ``LIMIT_S``.

A trial is no effect, and may begin before the journal is committed: nothing durable rests on it until it is
told, and it ends with the coordinator.
"""

from __future__ import annotations

import math

from scheduler.coordinator import events as ev
from scheduler.coordinator.machine_state import MachineState, TrialKey
from scheduler.jobs.entry import Entry, Phase
from scheduler.model.jobs import JobState
from scheduler.prediction.run_times import ratio_of, tried_words

AFTER_S = 5.0  # since the program began or went on
AGAIN_S = 10.0  # until another look at a program for which there was no trial, or none that launched anything
LIMIT_S = 30.0  # of a trial
TOO_FEW = "too few of its launches could be tried"


def look(m: MachineState) -> None:
    """Begin a trial where it tells something new, or give up the one that is in the way now."""
    trials = m.engine.device_moves.trials
    if not trials.able:
        return
    if trials.busy:
        if why := _hindrance(m):
            trials.give_up(why)
        return
    for state in m.cluster.running.values():
        entry = m.jobs.entries[state.job.id]
        if _may_be_tried(m, state, entry) and _begin(m, state, entry):
            return


def _hindrance(m: MachineState) -> str:
    """Say why the trial under way must end; "": nothing is in its way."""
    state = m.cluster.running.get(m.trials.present.job_id)
    entry = m.jobs.entries.get(m.trials.present.job_id)
    if state is None or entry is None or not _runs(entry):
        return "its job leaves"
    if not _idle(m, m.trials.present.pool):
        return f"{m.trials.present.pool} has a job now"
    return f"it took {LIMIT_S:g} s" if m.now >= m.trials.began_s + LIMIT_S else ""


def _runs(entry: Entry) -> bool:
    return entry.phase is Phase.RUNNING and entry.parks


def _may_be_tried(m: MachineState, state: JobState, entry: Entry) -> bool:
    return _runs(entry) and m.now >= state.since_s + AFTER_S


def _idle(m: MachineState, pool: str) -> bool:
    return m.cluster.free[pool] == m.cluster.cluster[pool].units


def _begin(m: MachineState, state: JobState, entry: Entry) -> bool:
    """Begin a trial of a job on the first class that is idle and on which its speed is not known."""
    now, here = m.now, state.place.pool
    for pool in m.cluster.cluster.pools:
        key = TrialKey(entry.id, entry.attempt, pool.name)
        if pool.name == here or now < m.trials.not_before_s.get(key, 0.0):
            continue
        if not (state.job.runs_on(pool.name) and _idle(m, pool.name)):
            continue
        # Looked at rarely, because each turn of the coordinator comes here.
        began = m.run_times.wants_trial(entry.spec, pool, here) and _start(m, entry, pool.name)
        entries, known = m.jobs.entries, m.trials.not_before_s
        m.trials.not_before_s = {of: at_s for of, at_s in known.items() if of.job_id in entries}
        m.trials.not_before_s[key] = math.inf if began else now + AGAIN_S
        if began:
            m.trials.present, m.trials.began_s = key, now
            return True
    return False


def _start(m: MachineState, entry: Entry, pool: str) -> bool:
    run = m.folders.state(entry)
    if run is None or run.paused:
        return False
    return m.engine.device_moves.trials.begin(entry, run, pool)


# -- what a trial tells --------------------------------------------------------------------------------------


def tried(m: MachineState, event: ev.Tried) -> None:
    """Learn from a trial, or note why it failed."""
    ratio = ratio_of(event.trial) if event.trial is not None else None
    if ratio is None and event.for_now:
        m.trials.not_before_s[m.trials.present] = m.now + AGAIN_S
        return
    if ratio is None:
        why = f"on {m.trials.present.pool}: {event.trouble or TOO_FEW}"
        m.jobs.record_later(event.entry, m.now, "not tried", why)
        return
    m.jobs.record_later(event.entry, m.now, "tried", tried_words(ratio))
    m.unsure.update(dict.fromkeys(m.run_times.tried(event.entry.spec, ratio)))
    _predict_begun(m, event.entry)


def _predict_begun(m: MachineState, tried: Entry) -> None:
    """Predict the jobs anew that have begun to run the same program, and journal the trial with them."""
    program = m.run_times.program(tried.spec)
    begun = [
        entry
        for entry in m.jobs.entries.values()
        if entry.attempt and m.run_times.program(entry.spec) == program
    ]
    predictions = m.run_times.expect([entry.spec for entry in begun], [entry.predicted for entry in begun])
    for entry, new in zip(begun, predictions, strict=True):
        if new is None:
            continue
        by_hand = {"moved_by_hand": True} if (entry.predicted or {}).get("moved_by_hand") else {}
        entry.predicted = new | by_hand
        job = m.jobs.renewed(entry)
        if any(entry.id in those for those in (m.cluster.running, m.cluster.suspended, m.cluster.waiting)):
            m.cluster.reconsider(job)
            m.stale = True
