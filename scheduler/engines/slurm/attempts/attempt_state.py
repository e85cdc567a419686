"""What has become of an attempt, from its folder and from what Slurm says of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.attempts.records import How, Result
from agent.multi_node.lease import MARGIN_S
from scheduler.engines.common import spoiled
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.client.parse import SlurmJob
from scheduler.engines.slurm.nodes import node_failures

if TYPE_CHECKING:
    from scheduler.engines.slurm.engine import SlurmEngine

SETTLES_S = 2.0  # until what a node has written is seen on others
SKEW_S = 1.0  # of the clocks of a node and of slurmctld
VERDICT_S = 0.1  # between looks at who ended a job
ENDS: Mapping[str, How] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "OUT_OF_MEMORY": "memory-limit",
}
DOWN = ("end", "pause", "checkpoint")  # of what has not begun all the same
NODE = frozenset({"NODE_FAIL", "BOOT_FAIL"})


def look(engine: SlurmEngine, watched: SlurmAttempt) -> None:
    """What its folder says."""
    if watched.key not in engine.watched:
        return
    attempt = watched.attempt
    result = attempt.result()
    if result is not None:
        _ended(engine, watched, result)
        return
    state = attempt.state()
    if state is not None:
        if not watched.started:
            watched.started = True
            engine.reports.append(Report(*watched.key, "started", state.started_s))
        if state.done > watched.done:
            watched.done = state.done
            engine.reports.append(Report(*watched.key, "obeyed", time.time(), done=state.done))
    if watched.fenced_at is not None:
        waited_s = time.monotonic() - watched.fenced_at
        unbegun = not watched.started and attempt.claim()
        if unbegun or watched.over or waited_s >= engine.site.lease_s + MARGIN_S:
            _lost(engine, watched)
    elif state is not None:
        engine.steering.steer(watched, state.done)
    elif not watched.started and watched.want in DOWN and attempt.claim():
        engine.revoke(watched, Report(*watched.key, "never", time.time()))  # it has not begun
    elif watched.started or watched.want == "end":  # its files were removed, or it cannot tell
        engine.steering.steer(watched, -1)


def _ended(engine: SlurmEngine, watched: SlurmAttempt, result: Result) -> None:
    """There is a result. Of one that ended badly Slurm may know why, or a look at its nodes tell."""
    if result.how == "interrupted" and watched.want == "end":
        result = replace(result, how="cancelled")  # Slurm was told to end it, because it did not answer
    unexplained = result.how == "interrupted" and not result.trouble
    by_signal = unexplained or result.signal in (signal.SIGTERM, signal.SIGKILL)
    if by_signal and not watched.cancelled and watched.slurm is not None and watched.fenced_at is None:
        seen = watched.seen
        if seen is not None and seen.final:
            if not _forgotten(watched, seen):
                result = replace(result, how=ENDS.get(seen.state, result.how))
        elif _verdict_comes(engine, watched):
            _await_picture(engine, watched, VERDICT_S)
            return
    failed = result.how in ("exited", "signalled") and result.code != 0
    if watched.fenced_at is not None and failed:
        # Slurm was told to cancel it, and mpiexec, which is told as well, ends by some code of its own.
        engine.end(watched, Report(*watched.key, "lost", result.ended_s, trouble=watched.trouble))
        return
    of_node = result.trouble if result.how == "interrupted" else ""  # its supervisor saw that one is lost
    if of_node or (failed and len(watched.cpus) > 1):  # ranks may have died of it, or Slurm have ended them
        if watched.verdict_wanted < 0:  # it begins anew when it is known which
            _await_picture(engine, watched)
        if watched.verdict_wanted == watched.snapshots:
            return
        if trouble := of_node or _loss(engine, watched):
            engine.end(watched, Report(*watched.key, "lost", result.ended_s, trouble=trouble))
            return
    engine.end(watched, Report(*watched.key, "ended", result.ended_s, result=result))


def _await_picture(engine: SlurmEngine, watched: SlurmAttempt, after_s: float = 0.0) -> None:
    """What became of it the next snapshot tells, and whether its nodes answer."""
    if watched.verdict_wanted != watched.snapshots:
        watched.verdict_wanted = watched.snapshots
        engine.poller.heartbeats.doubt(watched.cpus)
        engine.poller.look(after_s)


def _loss(engine: SlurmEngine, watched: SlurmAttempt) -> str:
    """Which of its nodes is lost, and why; empty: none, as far as the last snapshot tells."""
    seen = watched.seen
    if (trouble := node_failures.of(engine, watched)) or seen is None or seen.state not in NODE:
        return trouble
    return f"{watched.where}: lost ({seen.state})"


def _verdict_comes(engine: SlurmEngine, watched: SlurmAttempt) -> bool:
    """Whether Slurm will say why it ended: not while a node does not answer, nor if it waits there again."""
    seen = watched.seen
    if seen is None:
        return watched.snapshots == 0
    return seen.state != "PENDING" and engine.gone.isdisjoint(watched.cpus)


def _forgotten(watched: SlurmAttempt, seen: SlurmJob) -> bool:
    """Whether slurmctld was killed, and had forgotten that it had started the job.

    It starts it anew then, which the node refuses, and cancels it because of that: nobody else has.
    """
    state = watched.attempt.state()
    return state is not None and seen.start_s > state.started_s + SKEW_S


def _lost(engine: SlurmEngine, watched: SlurmAttempt) -> None:
    result = watched.attempt.unpublished_result()
    if result is not None:
        engine.end(watched, Report(*watched.key, "ended", result.ended_s, result=result))
    else:
        said = spoiled.trouble(watched.attempt) or "its supervisor was killed"
        trouble = watched.trouble or f"{watched.where}: {said}"
        engine.end(watched, Report(*watched.key, "lost", time.time(), trouble=trouble))


def should_run(seen: SlurmJob | None, paused: bool) -> bool | None:
    """Whether an attempt should give Signs of life; None: as before.

    Slurm says also of jobs of a node that it does not reach that they are over: the silence there goes on.
    """
    if seen is not None and seen.final:
        return None
    return seen is not None and seen.state in ("RUNNING", "COMPLETING") and not paused


def see(engine: SlurmEngine, watched: SlurmAttempt, seen: SlurmJob | None) -> None:
    """What Slurm says."""
    before, watched.seen = watched.seen, seen
    ends = seen is None or seen.final or seen.state == "COMPLETING"
    if watched.fenced_at is None:
        if (runs := should_run(seen, watched.want == "pause")) is not None:
            engine.poller.heartbeats.expect(watched.key, runs)
    elif seen is not None and not ends:  # slurmctld was told before, and may have forgotten it
        engine.steering.cancel(watched.key, seen.id, watched.comment)
    if (
        watched.key not in engine.watched
        or watched.attempt.result() is not None
        or watched.fenced_at is not None
    ):
        return
    if seen is None:
        _unknown(engine, watched, before)
        return
    watched.slurm = seen.id
    if not watched.calling:
        watched.suspended = seen.state == "SUSPENDED"
    if seen.final:
        now = time.monotonic()
        watched.final_since = watched.final_since or now
        with suppress(OSError):
            list(watched.attempt.path.iterdir())  # over NFS this has the folder looked at anew
        if watched.attempt.result() is None and now >= watched.final_since + SETTLES_S:
            _vanished(engine, watched, seen)


def _unknown(engine: SlurmEngine, watched: SlurmAttempt, before: SlurmJob | None) -> None:
    """Slurm has no such job: it never came there, or Slurm has lost or forgotten it."""
    if not watched.started and spoiled.revoked(watched.attempt):
        engine.end(watched, Report(*watched.key, "never", time.time()))
    elif before is not None and before.final:
        _vanished(engine, watched, before)
    else:
        engine.give_up(watched, "Slurm does not know it any more")


def _vanished(engine: SlurmEngine, watched: SlurmAttempt, seen: SlurmJob) -> None:
    """Slurm says that it has ended, and there is no result: its supervisor never began, or was killed."""
    began = watched.started or not spoiled.revoked(watched.attempt)
    if began:
        engine.put_back(watched)
    if watched.passed_on and not began:
        engine.end(watched, Report(*watched.key, "never", time.time()))  # that had left: one of its own, now
        return
    # What a node refuses Slurm cancels itself: after a restart for instance a number that was used before.
    refused = not began and seen.state == "CANCELLED" and bool(seen.nodes)
    how = None if refused or _forgotten(watched, seen) else ENDS.get(seen.state)
    said = watched.attempt.broken_result() or watched.attempt.last_log_line()
    if began and (seen.state in NODE or any(name in engine.lost for name in watched.cpus)):
        engine.give_up(watched, f"{watched.where}: lost ({seen.state})")
    elif how is not None and not watched.cancelled:
        result = watched.attempt.unpublished_result() or Result(how, time.time(), trouble=said)
        engine.end(watched, Report(*watched.key, "ended", result.ended_s, result=result))
    elif began or refused or seen.state in NODE or seen.state == "PREEMPTED" or watched.cancelled:
        reason = f": {said}" if said else ""
        ended = "ended without a result" if began else "did not begin"
        watched.trouble = f"its supervisor on {watched.where} {ended} ({seen.state}){reason}"
        _lost(engine, watched)
    else:
        reason = said or f"are {engine.store} and its Python there under the same paths?"
        trouble = f"{watched.where} could not start it ({seen.state}): {reason}"
        engine.end(watched, Report(*watched.key, "never", time.time(), trouble=trouble))
