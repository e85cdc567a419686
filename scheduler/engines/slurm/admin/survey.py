"""Measurement of a cluster: nodes side by side, then the network between them.

A failure costs its own part only. A node that cannot be measured is named with the reason.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pandas as pd

from agent.node_profile.profiler import plan
from probes.run import Event
from profiles.clusters import Refused, Survey
from profiles.errors import Unavailable
from profiles.files.store import id_at
from profiles.fits import fit_samples
from profiles.records import Absent, Profile, Settings
from scheduler.engines.slurm.admin.allocation import Allocation, allocate
from scheduler.engines.slurm.admin.node_network import NodeNetwork, expected_s
from scheduler.engines.slurm.admin.node_selection import Partitions, group_by_partition, split_free
from scheduler.engines.slurm.client.node_programs import clean_environment, step_failure
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.tools import Slurm

END_S = 30.0  # that nodes may take to end early
Tell = Callable[[str], None]


class ClusterMeasurement:
    """One measurement of a cluster, with its results so far.

    Args:
        settings: those of one node's profile.
        machine: emulated hardware of which each node measures the power; empty for the real hardware.
        tell: is called with a line of progress.

    Attributes:
        profiles, samples: results of the nodes by name; samples by probe.
        network_samples: rows of the all-to-alls between nodes.
    """

    def __init__(self, slurm: Slurm, settings: Settings, *, machine: str, tell: Tell) -> None:
        self.slurm, self.settings, self.machine, self.tell = slurm, settings, machine, tell
        self.profiles: dict[str, Profile] = {}
        self.samples: dict[str, dict[str, pd.DataFrame]] = {}
        self.network_samples: list[dict[str, Any]] = []
        self._refused: list[Refused] = []
        self._absent: list[Absent] = []
        self._tried: set[str] = set()  # names of nodes that were measured or refused
        self._interrupted = False

    def measure(self, nodes: Sequence[SlurmNode], partitions: Partitions) -> Survey:
        """Measure the nodes; Ctrl-C ends the measurement early with the results so far.

        Raises:
            Unavailable: Slurm does not answer.
        """
        created, start_s = datetime.now(UTC), time.monotonic()
        free, self._refused = split_free(nodes)
        cluster = self.slurm.config()["ClusterName"]
        for partition, group in group_by_partition(free, partitions):
            if self._interrupted:
                break
            self.tell(f"{len(group)} node{'s' * (len(group) != 1)} of partition {partition}")
            self._measure_group(partition, group)
        why = "interrupted before it was measured" if self._interrupted else "no partition that is up has it"
        self._refuse(free, Unavailable(why))
        rows = self.network_samples
        return Survey(
            id=id_at(created),
            cluster=cluster,
            created=created,
            duration_s=round(time.monotonic() - start_s, 1),
            tenbin_version=version("tenbin"),
            nodes={name: self.profiles[name].id for name in sorted(self.profiles)},
            refused=tuple(sorted(self._refused, key=lambda refused: refused.node)),
            models=tuple(fit_samples("network", pd.DataFrame(rows)) if rows else ()),
            absent=tuple(self._absent),
            interrupted=self._interrupted,
            emulated=bool(self.machine),
        )

    def _measure_group(self, partition: str, nodes: list[SlurmNode]) -> None:
        """Measure the nodes of one partition, in one allocation."""
        only = self.settings.only
        network = len(nodes) > 1 and not self.machine and (not only or "network" in only)
        limit_s = sum(step.limit_s for step in plan(self.settings))
        allocation_s = limit_s + 4 * expected_s(len(nodes), self.settings.quick) + 120
        try:
            with allocate(self.slurm, nodes, partition, allocation_s) as allocation:
                running = [
                    NodeMeasurement(allocation, node, self.settings, machine=self.machine, tell=self.tell)
                    for node in nodes
                ]
                self._wait([one.thread for one in running], allocation, limit_s)
                for one in running:
                    self._collect(one)
                known = {name: profile.inventory.mpi for name, profile in self.profiles.items()}
                with_mpi = [node for node in nodes if known.get(node.name)]
                if network and len(with_mpi) > 1 and not self._interrupted:
                    self._measure_network(allocation, with_mpi)
        except Unavailable as error:
            self._refuse(nodes, error)

    def _measure_network(self, allocation: Allocation, nodes: list[SlurmNode]) -> None:
        mpi = self.profiles[nodes[0].name].inventory.mpi
        assert mpi
        duration_s = expected_s(len(nodes), self.settings.quick)
        self.tell(f"all-to-all between {len(nodes)} nodes (about {duration_s:.0f} s)")
        network = NodeNetwork(
            allocation, mpi.library, self.settings, emit=self._hear, stopped=lambda: self._interrupted
        )
        thread = threading.Thread(target=network.measure, args=[nodes], daemon=True)
        thread.start()
        self._wait([thread], allocation, 4 * duration_s + 120)

    def _hear(self, event: Event) -> None:
        """Keep the samples of the network and what is absent; called by several threads."""
        if event["event"] == "sample":
            self.network_samples.append(event["row"])
        elif event["event"] == "absent":
            self._absent.append(Absent(**event["absent"]))

    def _wait(self, threads: list[threading.Thread], allocation: Allocation, limit_s: float) -> None:
        """Wait for threads; Ctrl-C interrupts their steps, and a second Ctrl-C ends the wait."""
        deadline = time.monotonic() + limit_s
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            try:
                for thread in threads:
                    thread.join(timeout=0.1)
            except KeyboardInterrupt:
                if self._interrupted:
                    return
                self._interrupted = True
                allocation.interrupt()
                deadline = min(deadline, time.monotonic() + END_S)

    def _collect(self, measured: NodeMeasurement) -> None:
        """Keep the results of a node, and end its measurement if that still runs."""
        late = measured.end()
        profile, node = measured.profile, measured.node
        if profile is None or not profile.samples:
            failure = measured.failure or Unavailable("nothing could be measured there")
            self._refuse([node], Unavailable("it did not end in time", failure.remedy) if late else failure)
            return
        self._tried.add(node.name)
        emulated = profile.settings.emulated
        name = node.name + (f"+emulated-{emulated}" if emulated else "")
        self.profiles[name] = profile.model_copy(update={"node": name})
        self.samples[name] = measured.samples

    def _refuse(self, nodes: Sequence[SlurmNode], failure: Unavailable) -> None:
        """Name the nodes that were not tried yet, with the reason."""
        names = [node.name for node in nodes if node.name not in self._tried]
        self._tried.update(names)
        self._refused += [Refused(node=name, reason=failure.what, remedy=failure.remedy) for name in names]


class NodeMeasurement:
    """The measurement of one node, by ``agent.node_profile.remote`` on that node."""

    def __init__(
        self, allocation: Allocation, node: SlurmNode, settings: Settings, *, machine: str, tell: Tell
    ) -> None:
        self.node, self.tell = node, tell
        self.profile: Profile | None = None
        self.samples: dict[str, pd.DataFrame] = {}
        self.failure: Unavailable | None = None
        self._started: set[str] = set()  # probes
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the thread)
        module = ["-m", "agent.node_profile.remote", settings.model_dump_json(), machine]
        self._process = subprocess.Popen(
            allocation.step([node], [sys.executable, "-P", *module]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            env=clean_environment(),
            start_new_session=True,  # because Ctrl-C reaches the node through Slurm
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith('{"event": ') and line.endswith("\n"):
                self._hear(json.loads(line))
        code = self._process.wait()
        with self._errors as file:
            file.seek(0)
            errors = file.read().decode(errors="replace").splitlines()[-60:]
        if self.profile is None and self.failure is None:
            self.failure = step_failure(errors, code)

    def _hear(self, event: Event) -> None:
        match event["event"]:
            case "progress" if event["probe"] not in self._started:
                self._started.add(event["probe"])
                self.tell(f"{self.node.name}: {event['probe']} ({event['left_s']:.0f} s left)")
            case "samples":
                packed = io.BytesIO(base64.b64decode(event["parquet"]))
                self.samples[event["probe"]] = pd.read_parquet(packed)
            case "profile":
                self.profile = Profile.model_validate(event["profile"])
            case "error":
                self.failure = Unavailable(event["what"], event["remedy"])

    def end(self) -> bool:
        """Kill the measurement if it still runs; return if it did."""
        late = self.thread.is_alive()
        if late:
            self._process.kill()
            self.thread.join(timeout=5.0)
        return late
