"""Which nodes can be used, and what becomes of attempts on those that are lost.

A node is lost when Slurm says so, which takes it up to SlurmdTimeout; or, for an attempt that has left no
beat for the time of its lease, when nobody answers there (``scheduler.engines.slurm.client.heartbeats``).
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from agent.multi_node.remote_ranks import RankFiles
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.client.heartbeats import NOBODY, SET_DOWN
from scheduler.engines.slurm.client.poller import ClusterSnapshot

if TYPE_CHECKING:
    from scheduler.engines.slurm.engine import SlurmEngine

NO_SIGN = "no sign of life"


def see_nodes(engine: SlurmEngine, snapshot: ClusterSnapshot) -> None:
    """Which can be used."""
    inventory, nodes = engine.inventory, {node.name: node for node in snapshot.nodes}
    inventory.away = {}
    engine.lost = lost = {}
    for number, host in enumerate(inventory.hosts):
        node = nodes.get(host.name)
        if node is None:
            inventory.away[number] = lost[host.name] = "not in Slurm any more"
        elif not node.usable:
            inventory.away[number] = f"{node.state.replace('+', ' ')}: {node.reason}".rstrip(": ")
            if node.lost:
                lost[host.name] = inventory.away[number]
        elif host.name in snapshot.answers.mute:
            inventory.away[number] = f"{NO_SIGN}; its slurmd does not answer"
        elif node.cpus < host.cores:
            inventory.away[number] = (
                f"has {node.cpus} CPUs, had {host.cores}; start tenbin up again when it is idle"
            )
    engine.gone = snapshot.answers.mute.union(lost)
    if engine.site.set_down:
        _set_down(engine, snapshot)


def _set_down(engine: SlurmEngine, snapshot: ClusterSnapshot) -> None:
    """Have Slurm know of dead nodes what is known here; those that are back are resumed."""
    slurm, answers = engine.slurm, snapshot.answers
    for node in snapshot.nodes:
        name = node.name
        if name not in engine.inventory.number:
            continue
        if name in answers.mute and not node.lost and engine.poller.heartbeats.still(name):
            engine.poller.do(NOBODY, f"set {name} down", partial(slurm.set_node, name, "DOWN", SET_DOWN))
        elif name in answers.back:
            engine.poller.do(NOBODY, f"resume {name}", partial(slurm.set_node, name, "RESUME"))


def see_place(engine: SlurmEngine, watched: SlurmAttempt, snapshot: ClusterSnapshot) -> None:
    """An attempt whose node is lost is given up."""
    if watched.key not in engine.watched or watched.attempt.result() is not None:
        return
    if watched.fenced_at is None and not _taken_back(engine, watched, snapshot):
        _doubt(engine, watched, snapshot)
    if watched.fenced_at is not None:
        watched.over = watched.over or all(_over(engine, watched, name) for name in watched.cpus)


def of(engine: SlurmEngine, watched: SlurmAttempt) -> str:
    """Which node of an attempt is lost, and why; empty: none."""
    name = next((name for name in watched.cpus if name in engine.gone), "")
    return f"{name} is lost: {engine.lost.get(name, NO_SIGN)}" if name else ""


def _doubt(engine: SlurmEngine, watched: SlurmAttempt, snapshot: ClusterSnapshot) -> None:
    heartbeats, lost = engine.poller.heartbeats, engine.lost
    for name in watched.cpus:
        if name in lost:
            engine.give_up(watched, f"{name} is lost: {lost[name]}")
        elif not heartbeats.silent(watched.key, name):
            continue
        elif name in snapshot.answers.mute:
            engine.give_up(watched, f"{name} is lost: {NO_SIGN}")
        elif heartbeats.begun(watched.key, name):
            # Its node is there, but what keeps the job is not, or sees no disk.
            engine.give_up(watched, f"what runs on {name} gives {NO_SIGN}")


def _over(engine: SlurmEngine, watched: SlurmAttempt, name: str) -> bool:
    """Whether nothing of the attempt, which is fenced, can run on that node any more."""
    if RankFiles(watched.attempt).read_report(name).ended:
        return True
    heartbeats = engine.poller.heartbeats
    return (
        name in engine.gone and heartbeats.begun(watched.key, name) and heartbeats.silent(watched.key, name)
    )


def _taken_back(engine: SlurmEngine, watched: SlurmAttempt, snapshot: ClusterSnapshot) -> bool:
    """An attempt that has not begun, on a node that cannot be used now, never will."""
    inventory, seen = engine.inventory, watched.seen
    away = next((name for name in watched.cpus if inventory.number[name] in inventory.away), None)
    if away is None or seen is None:
        return False
    waits = seen.state == "PENDING" or (seen.state == "RUNNING" and away in snapshot.answers.mute)
    if not waits or watched.started or not watched.attempt.claim():
        return False
    trouble = f"{away} could not be used: {inventory.away[inventory.number[away]]}"
    engine.revoke(watched, Report(*watched.key, "lost", time.time(), trouble=trouble))
    return True
