"""Measures the nodes of a cluster: every node by itself, side by side, then how they reach each other.

Whatever breaks costs its own part only: a node that refuses is named with its reason, and the others go on.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import IO, Any

import pandas as pd

from agent.node_profile.profiler import plan
from probes.run import Event
from profiles.clusters import Refused, Survey
from profiles.errors import Unavailable
from profiles.fits import fit_samples
from profiles.records import Absent, Profile, Settings
from scheduler.engines.slurm.admin import node_network
from scheduler.engines.slurm.admin.allocation import Allocation, held
from scheduler.engines.slurm.admin.node_selection import Partitions, groups, sorted_out
from scheduler.engines.slurm.client.node_programs import clean_environment, step_failure
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.tools import Slurm

END_S = 30.0  # that nodes may take to end early
Tell = Callable[[str], None]


@dataclass
class Found:
    """All results so far; several threads write to them."""

    profiles: dict[str, Profile] = field(default_factory=dict)
    samples: dict[str, dict[str, pd.DataFrame]] = field(default_factory=dict)  # by node and probe
    refused: list[Refused] = field(default_factory=list)
    exchanged: list[dict[str, Any]] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)  # names of nodes that were held
    interrupted: bool = False

    def hear(self, event: Event) -> None:
        """Note an event of an exchange between nodes."""
        if event["event"] == "sample":
            self.exchanged.append(event["row"])
        elif event["event"] == "absent":
            self.absent.append(Absent(**event["absent"]))

    def survey(self, cluster: str, created: datetime, duration_s: float, emulated: bool) -> Survey:
        """Make the record of all of it."""
        models = fit_samples("network", pd.DataFrame(self.exchanged)) if self.exchanged else []
        return Survey(
            id=created.strftime("%Y%m%dT%H%M%SZ"),
            cluster=cluster,
            created=created,
            duration_s=round(duration_s, 1),
            tenbin_version=version("tenbin"),
            nodes={name: self.profiles[name].id for name in sorted(self.profiles)},
            refused=tuple(sorted(self.refused, key=lambda one: one.node)),
            models=tuple(models),
            absent=tuple(self.absent),
            interrupted=self.interrupted,
            emulated=emulated,
        )


def measure(
    slurm: Slurm,
    nodes: Sequence[SlurmNode],
    partitions: Partitions,
    settings: Settings,
    *,
    machine: str,
    tell: Tell,
) -> tuple[Survey, Found]:
    """Measure ``nodes``; Ctrl-C ends it early with what was measured so far (``survey.interrupted``).

    Args:
        settings: as of one node's profile.
        machine: emulated hardware, of which each node measures the power; empty: the real one.
        tell: is called with what is being done, a line at a time.

    Raises:
        Unavailable: Slurm does not answer.
    """
    created, began = datetime.now(UTC), time.monotonic()
    found = Found()
    free, refused = sorted_out(nodes)
    found.refused += refused
    cluster = slurm.config()["ClusterName"]
    for partition, group in groups(free, partitions):
        if found.interrupted:
            break
        tell(f"{len(group)} node{'s' * (len(group) != 1)} of partition {partition}")
        _group(slurm, partition, group, settings, machine=machine, found=found, tell=tell)
    why = "interrupted before it was measured" if found.interrupted else "no partition that is up has it"
    found.refused += [Refused(node=node.name, reason=why) for node in free if node.name not in found.asked]
    return found.survey(cluster, created, time.monotonic() - began, bool(machine)), found


def _group(
    slurm: Slurm,
    partition: str,
    nodes: list[SlurmNode],
    settings: Settings,
    *,
    machine: str,
    found: Found,
    tell: Tell,
) -> None:
    """Measure the nodes of one partition, in one allocation."""
    steps = plan(settings)
    limit_s = sum(step.limit_s for step in steps)
    exchanges = not machine and (not settings.only or "network" in settings.only) and len(nodes) > 1
    most_s = limit_s + 4 * node_network.expected_s(len(nodes), settings.quick) + 120
    try:
        with held(slurm, nodes, partition, most_s) as allocation:
            visits = [Visit(allocation, node, settings, machine=machine, tell=tell) for node in nodes]
            _watched([visit.thread for visit in visits], allocation, found, limit_s)
            for visit in visits:
                visit.into(found)
            able = [node for node in nodes if _speaks_mpi(found, node.name)]
            if exchanges and len(able) > 1 and not found.interrupted:
                _exchange(allocation, able, settings, found=found, tell=tell)
    except Unavailable as error:
        found.refused += [
            Refused(node=node.name, reason=error.what, remedy=error.remedy)
            for node in nodes
            if node.name not in found.asked
        ]
        found.asked |= {node.name for node in nodes}


def _speaks_mpi(found: Found, node: str) -> bool:
    return node in found.profiles and found.profiles[node].inventory.mpi is not None


def _exchange(
    allocation: Allocation, nodes: list[SlurmNode], settings: Settings, *, found: Found, tell: Tell
) -> None:
    mpi = found.profiles[nodes[0].name].inventory.mpi
    assert mpi
    expected_s = node_network.expected_s(len(nodes), settings.quick)
    tell(f"all-to-all between {len(nodes)} nodes (about {expected_s:.0f} s)")

    everyone = node_network.Exchange(allocation, mpi.library, settings, found.hear, lambda: found.interrupted)
    thread = threading.Thread(target=everyone.measure, args=[nodes], daemon=True)
    thread.start()
    _watched([thread], allocation, found, 4 * expected_s + 120)


def _watched(threads: list[threading.Thread], allocation: Allocation, found: Found, limit_s: float) -> None:
    """Wait for threads; Ctrl-C asks their steps to end, and a second one ends them."""
    deadline = time.monotonic() + limit_s
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        try:
            for thread in threads:
                thread.join(timeout=0.1)
        except KeyboardInterrupt:
            if found.interrupted:
                return
            found.interrupted = True
            allocation.interrupt()
            deadline = min(deadline, time.monotonic() + END_S)


class Visit:
    """One node's profile, made there."""

    def __init__(
        self, allocation: Allocation, node: SlurmNode, settings: Settings, *, machine: str, tell: Tell
    ) -> None:
        self.node, self.tell = node, tell
        self.profile: Profile | None = None
        self.samples: dict[str, pd.DataFrame] = {}
        self.trouble, self.remedy = "", ""
        self._seen: set[str] = set()
        program = [
            sys.executable,
            "-P",
            "-m",
            "agent.node_profile.remote",
            settings.model_dump_json(),
            machine,
        ]
        self._process = subprocess.Popen(
            allocation.step([node], program),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=clean_environment(),
            start_new_session=True,  # Ctrl-C goes to it through Slurm
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self._process.stdout and self._process.stderr
        errors: list[str] = []
        reader = threading.Thread(target=_drain, args=(self._process.stderr, errors), daemon=True)
        reader.start()
        for line in self._process.stdout:
            if line.startswith('{"event": ') and line.endswith("\n"):
                self._hear(json.loads(line))
        code = self._process.wait()
        reader.join(timeout=1.0)
        if self.profile is None and not self.trouble:
            failure = step_failure(errors, code)
            self.trouble, self.remedy = failure.what, failure.remedy

    def _hear(self, event: Event) -> None:
        match event["event"]:
            case "progress" if event["probe"] not in self._seen:
                self._seen.add(event["probe"])
                self.tell(f"{self.node.name}: {event['probe']} ({event['left_s']:.0f} s left)")
            case "samples":
                packed = io.BytesIO(base64.b64decode(event["parquet"]))
                self.samples[event["probe"]] = pd.read_parquet(packed)
            case "profile":
                self.profile = Profile.model_validate(event["profile"])
            case "error":
                self.trouble, self.remedy = event["what"], event["remedy"]

    def into(self, found: Found) -> None:
        """Put down what came of it, ending it if it has not ended."""
        late = self.thread.is_alive()
        if late:
            self._process.kill()
            self.thread.join(timeout=5.0)
        name = self.node.name
        found.asked.add(name)
        if self.profile is not None and self.profile.samples:
            emulated = self.profile.settings.emulated
            known_as = name + (f"+emulated-{emulated}" if emulated else "")
            found.profiles[known_as] = self.profile.model_copy(update={"node": known_as})
            found.samples[known_as] = self.samples
            return
        why = "it did not end in time" if late else self.trouble or "nothing could be measured there"
        found.refused.append(Refused(node=name, reason=why, remedy=self.remedy))


def _drain(stream: IO[str], into: list[str]) -> None:
    for line in stream:
        into.append(line.rstrip())
        del into[:-60]
