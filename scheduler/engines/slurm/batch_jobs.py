"""Batch jobs for attempts: order and script, reuse of allocations, the layer below programs on devices."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import sys
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.attempts import checked
from agent.attempts.begin import LOG
from agent.attempts.checked import Broken
from agent.attempts.folder import Attempt
from agent.attempts.records import Order, Result, RunState
from agent.multi_node import lease
from agent.opencl_layer import build, requests
from agent.supervisor import allocation_reuse, batch_process
from probes.power_load import MARK as LOAD
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.engines.common.supervisor_orders import Files, Orders
from scheduler.engines.protocol import (
    LAYER_COMPILING,
    NOT_BEGUN,
    DeviceMoves,
    where_parked,
    why_without_layer,
)
from scheduler.engines.slurm.attempt_step import SlurmAttempt
from scheduler.engines.slurm.node_inventory import Devices, Site, Slot
from scheduler.engines.slurm.slurm_commands import MIB, Batch, SlurmNode, run_on_node
from scheduler.jobs.entry import Entry
from scheduler.jobs.gpus import VARIABLES
from scheduler.jobs.specs import JobSpec

# -- order and script --------------------------------------------------------------------------------------


OWN = "SLURM_"  # variables that tell a job about its own Slurm job, not about whoever submitted it
GPUS = (*(name for name, _ in VARIABLES.values()), "GPU_DEVICE_ORDINAL")  # Slurm sets them by gres.conf


class BatchWriter:
    """Writer of supervisor orders and batch scripts."""

    def __init__(self, site: Site, orders: Orders, layers: NodeLayers | None = None) -> None:
        self.site, self.orders, self.layers = site, orders, layers
        self.inventory, self.devices = site.inventory, site.devices

    def write(self, job: Entry, environment: dict[str, str], attempt: SlurmAttempt, files: Files) -> Batch:
        """Place the order in the attempt's folder, and return the batch job for it.

        Raises:
            Unavailable, OSError: as ``Orders.order`` and ``Attempt.place``.
        """
        clean = {name: value for name, value in environment.items() if not name.startswith(OWN)}
        power = self.site.power
        if power is not None and power.emulated:
            clean[LOAD] = job.spec.load
        shares = self.inventory.shares(job.cores)
        order = self.orders.order(job, clean, attempt.files, attempt.comment, files=files, shares=shares)
        if self.devices is not None:
            order.environment["TENBIN_DEVICE"] = self.devices.opened_as(job.devices)
        inherit: tuple[str, ...] = (OWN,)
        if self.site.gres:
            for name in GPUS:
                order.environment.pop(name, None)
            if job.way.gpus_asked:
                inherit += GPUS
            else:
                order.environment.update(VARIABLES.values())
        order = replace(order, inherit=inherit, lease_s=self.site.lease_s, places=self.places(job))
        if power is not None:
            order = replace(
                order,
                sysfs=power.sysfs,
                capped_nodes=tuple(attempt.cpus),
                states=str(power.states),
                emulated=bool(power.emulated),
            )
        if self.layers is not None and job.parks:
            order = self.layers.below(order, job)
        attempt.files.place(order)
        lease.prepare(attempt.files, attempt.cpus)
        return self._batch(job, attempt, order.memory_limit_mb)

    def places(self, job: Entry) -> tuple[int, ...]:
        """Return the cores that the job is bound to, where Slurm does not see to that."""
        bound = self.site.shared and len(self.inventory.shares(job.cores)) == 1
        return self.inventory.places(job.cores) if bound else ()

    def _batch(self, job: Entry, attempt: SlurmAttempt, memory_mb: float | None) -> Batch:
        """Describe the batch job; Slurm holds as many cores of each node as of the one that gives most."""
        folder: Path = attempt.files.path
        most = max(attempt.cpus.values())
        of_task = job.way.cores * self.site.threads
        of_task = of_task if most % of_task == 0 else most
        words = [sys.executable, "-I", "-S", batch_process.__file__, str(folder)]
        # A request may come before there is a supervisor: the signal must not kill the shell.
        script = f"#!/bin/sh\ntrap '' USR1\nexec {shlex.join(words)}\n"
        return Batch(
            script=script,
            name=job.spec.name or f"tenbin-{job.id}",
            comment=attempt.comment,
            partition=attempt.partition,
            nodes=tuple(attempt.cpus),
            tasks=most // of_task * len(attempt.cpus),
            cpus=of_task,
            memory_mb=self._memory_mb(job, memory_mb),
            time_s=None if job.way.time_s is None else job.way.time_s + job.spec.grace_s,
            output=folder / LOG,
            gres=self._gres(job) if self.devices is None else self.devices.gres(job.devices),
        )

    def _gres(self, job: Entry) -> str:
        """Name the GPUs that Slurm is asked for on each node."""
        if not self.orders.unit.gpus or job.placement is None:
            return ""
        most = max(units for _, units in job.placement.nodes)
        counts = (most * count for count in job.job.way(job.placement).demand[2:])
        numbers = zip(self.orders.unit.gpus, counts, strict=False)
        return ",".join(f"{self.site.gres[kind.resource]}:{number:.0f}" for kind, number in numbers if number)

    def _memory_mb(self, job: Entry, total_mb: float | None) -> float | None:
        """Return the memory on each node, by the one that gives most cores.

        A job without a memory request on shared nodes gets memory in proportion to its cores.
        """
        most = max(self.inventory.shares(job.cores).values())
        if total_mb is None and self.site.shared:
            host = self.inventory.hosts[0]
            return most / host.cores * host.memory_mb - MIB
        return None if total_mb is None else total_mb * most / len(job.cores)


# -- allocations used again --------------------------------------------------------------------------------
#
# The next job of the same size on the same node runs in the Slurm job of the last one, if its time is enough.
# ``agent.supervisor.allocation_reuse`` waits there for it. Such an attempt has no Slurm job of its own.
# Before it is passed on, the comment of the other Slurm job is written into its folder.


BY = "relay"  # file in the folder of an attempt: the comment of the Slurm job that it was passed on to
OLDEST_S = 45.0  # of a Slurm job without a limit, which its partition may have
SPARE_S = 15.0  # of the time that Slurm gives


class AllocationReuse:
    """The allocations that may still wait for a job."""

    def __init__(self) -> None:
        self._open: list[tuple[SlurmAttempt, float]] = []

    def offer(self, attempt: SlurmAttempt, result: Result) -> None:
        """Keep the allocation of an attempt that has ended, unless a call for it may still be under way."""
        plain = attempt.request == 0 and not attempt.calling and not attempt.cancelled
        if (
            plain
            and len(attempt.cpus) == 1
            and attempt.slurm is not None
            and attempt.batch is not None
            and allocation_reuse.suits(result.how, result.usage.wall_s)
        ):
            self._open.append((attempt, time.monotonic() + allocation_reuse.STAYS_S))

    def take(self, attempt: SlurmAttempt) -> SlurmAttempt | None:
        """Pass an attempt on, whose order is written; None: it takes a Slurm job of its own.

        Raises:
            OSError: its folder cannot be written.
        """
        now, file = time.monotonic(), attempt.files.path / BY
        self._open = [(before, until) for before, until in self._open if until > now]
        for before, _ in self._open:
            if follows(before, attempt, now):
                self._open = [offer for offer in self._open if offer[0] is not before]
                file.write_text(before.comment)
                if allocation_reuse.pass_on(before.files.path, attempt.files.path):
                    return replace(
                        attempt,
                        passed_on=True,
                        comment=before.comment,
                        slurm=before.slurm,
                        since=before.since,
                        batch=before.batch,
                    )
                file.unlink()
                return self.take(attempt)
        return None

    def comments(self) -> set[str]:
        """List the comments of their Slurm jobs."""
        return {before.comment for before, _ in self._open}

    def dismiss(self, nodes: Collection[str]) -> None:
        """End those on these nodes at once: their place is needed."""
        for before, _ in self._open:
            if not before.cpus.keys().isdisjoint(nodes):
                with suppress(OSError):  # then it leaves a moment later
                    allocation_reuse.pass_on(before.files.path, "")
        self._open = [offer for offer in self._open if offer[0].cpus.keys().isdisjoint(nodes)]


def passed_on_to(attempt: Attempt, mark: str) -> str:
    """Read after a restart the comment of the Slurm job that was reused; "" if the attempt has its own.

    Args:
        mark: how it begins.
    """
    with suppress(Broken):
        said = checked.text(attempt.path / BY) or ""
        return said if re.fullmatch(re.escape(mark) + r"\d+:\d+", said) else ""
    return ""


def follows(before: SlurmAttempt, attempt: SlurmAttempt, now: float) -> bool:
    """Say whether an attempt may run in the Slurm job of one that has ended: its size, and time enough."""
    old, new = before.batch, attempt.batch
    if old is None or new is None or _size(old) != _size(new):
        return False
    age_s = now - before.since
    if old.minutes is None or new.time_s is None:
        return old.minutes is None and new.time_s is None and age_s < OLDEST_S
    return age_s + new.time_s + SPARE_S <= old.minutes * 60


def _size(batch: Batch) -> Batch:
    """Return what Slurm holds for a batch job, however long."""
    return replace(batch, script="", name="", comment="", output=Path(), time_s=None)


# -- the layer below programs on devices -------------------------------------------------------------------
#
# A parked program goes on on its own device of its node. Each node has the layer's library from a short job
# that compiles it there, because a library of another node may not fit.


PROGRAM = [sys.executable, "-P", "-m", "agent.opencl_layer.build"]
LIMIT_S = 300.0
MEMORY_MB = 1000
AT_ONCE = 16
AGAIN_S = 30.0  # until a node that was busy, or did not answer, is asked again
log = logging.getLogger("tenbin")


class NodeLayers(DeviceMoves):
    """The layer's library on each node with devices, by a thread of its own, and the jobs above it.

    Args:
        store: folder of the coordinator; keeps what the nodes have said.
    """

    able = True

    def __init__(self, site: Site, devices: Devices, store: Path) -> None:
        self._site, self._devices, self._file = site, devices, store / "layers.json"
        self._sources = build.of_sources()
        self._libraries, self._asked = self._said_before(), set[str]()
        self._troubles: dict[str, str] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    # -- jobs -----------------------------------------------------------------------------------------

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        """Say as a clause why the layer is not below a job that starts now; "" if it is, or may be."""
        if why := why_without_layer(spec):
            return why
        slots = self._devices.slots
        among = [slots[number] for number in devices if number < len(slots)] or slots
        whys = [self._why_not_on(slot) for slot in among]
        return "" if "" in whys else whys[0]

    def _why_not_on(self, slot: Slot) -> str:
        if slot.gres:
            return f"Slurm keeps {slot.gres} for a suspended job"
        node = self._name(slot)
        if node in self._libraries:
            return ""
        if node in self._troubles:
            return f"{node} has no layer: {self._troubles[node]}"
        return LAYER_COMPILING.format(where=f" on {node}")

    def below(self, order: Order, job: Entry) -> Order:
        """Return the order by which the supervisor on the node puts the layer below the program."""
        slot = self._devices.slots[job.devices[0]]
        library = self._libraries.get(self._name(slot))
        if library is None:
            return order
        # On the node's own disk, because it is for sockets; the name cannot be guessed.
        folder = f"/tmp/tenbin-{hashlib.sha256(order.mark.encode()).hexdigest()[:16]}"
        return replace(order, layer=folder, library=library, device=slot.key)

    def readiness(self, job: Entry, state: RunState | None) -> str:
        """Say whether the programs of a job that runs can be parked now, or why not."""
        if state is None:
            return NOT_BEGUN
        if state.paused:
            return where_parked(job, state)
        if state.moves == requests.MOVABLE:
            return f"can be parked; it stays on its device of {', '.join(job.hosts or ())}"
        return state.moves or "cannot be moved yet: nothing is known of its program"

    def close(self) -> None:
        """Let go; compilers go on."""
        self._ended.set()

    def _name(self, slot: Slot) -> str:
        return self._devices.inventory.hosts[slot.node].name

    # -- libraries, in the thread ---------------------------------------------------------------------

    def _said_before(self) -> dict[str, str]:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            kept = json.loads(self._file.read_text())
            if kept["sources"] == self._sources:
                return {str(name): str(path) for name, path in kept["libraries"].items()}
        return {}

    def _work(self) -> None:
        """Ask the nodes, until each has answered."""
        with_devices = {self._name(slot) for slot in self._devices.slots if not slot.gres}
        while not self._ended.is_set() and (left := with_devices - self._asked):
            with suppress(Unavailable):
                nodes = [node for node in self._site.slurm.nodes() if node.name in left and node.usable]
                # The first one compiles for all that share its user's home folder.
                for group in filter(None, (nodes[:1], nodes[1:])):
                    self._ask(group)
            if with_devices - self._asked:
                self._ended.wait(AGAIN_S)

    def _ask(self, nodes: Sequence[SlurmNode]) -> None:
        for first in range(0, len(nodes), AT_ONCE):
            group = nodes[first : first + AT_ONCE]
            # Nobody waits for these threads when the coordinator ends.
            threads = [threading.Thread(target=self._ask_one, args=(node,), daemon=True) for node in group]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        content = {"sources": self._sources, "libraries": self._libraries}
        with suppress(OSError):
            write_whole(self._file, json.dumps(content))

    def _ask_one(self, node: SlurmNode) -> None:
        try:
            done = run_on_node(
                node,
                PROGRAM,
                LIMIT_S,
                partition=self._site.partition,
                memory_mb=MEMORY_MB,
                minutes=int(LIMIT_S // 60),
            )
        except Unavailable:
            return
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("srun:")]
        if done.returncode == 0 and done.stdout.strip():
            self._libraries[node.name] = done.stdout.strip().splitlines()[-1]
            self._asked.add(node.name)
        elif said:
            self._libraries.pop(node.name, None)
            self._troubles[node.name] = said[-1]
            self._asked.add(node.name)
            log.warning("jobs on devices of %s cannot be parked: %s", node.name, said[-1])
