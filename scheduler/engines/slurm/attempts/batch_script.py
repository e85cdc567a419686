"""The order for an attempt's supervisor, and the batch job that Slurm holds."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from agent.attempts.begin import LOG
from agent.multi_node import lease
from agent.supervisor import batch_process
from probes.power_load import MARK as LOAD
from scheduler.engines.common.supervisor_orders import Files, Orders
from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.attempts.device_layer import NodeLayers
from scheduler.engines.slurm.client import parse
from scheduler.engines.slurm.client.tools import Batch
from scheduler.engines.slurm.site import Site
from scheduler.jobs.entry import Entry

OWN = "SLURM_"  # variables that tell a job about its own Slurm job, not about whoever submitted it


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
        order = replace(order, inherit=(OWN,), lease_s=self.site.lease_s, places=self.places(job))
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
        one = self.site.shared and len(self.inventory.shares(job.cores)) == 1
        return self.inventory.places(job.cores) if one else ()

    def _batch(self, job: Entry, attempt: SlurmAttempt, memory_mb: float | None) -> Batch:
        """Describe the batch job; Slurm holds as many cores of each node as of the one that gives most."""
        folder: Path = attempt.files.path
        most = max(attempt.cpus.values())
        each = job.spec.cores * self.site.threads
        each = each if most % each == 0 else most
        words = [sys.executable, "-I", "-S", batch_process.__file__, str(folder)]
        # A request may come before there is a supervisor: the signal must not kill the shell.
        script = f"#!/bin/sh\ntrap '' USR1\nexec {shlex.join(words)}\n"
        return Batch(
            script=script,
            name=job.spec.name or f"tenbin-{job.id}",
            comment=attempt.comment,
            partition=attempt.partition,
            nodes=tuple(attempt.cpus),
            tasks=most // each * len(attempt.cpus),
            cpus=each,
            memory_mb=self._memory_mb(job, memory_mb),
            time_s=None if job.spec.time_s is None else job.spec.time_s + job.spec.grace_s,
            output=folder / LOG,
            gres="" if self.devices is None else self.devices.gres(job.devices),
        )

    def _memory_mb(self, job: Entry, total_mb: float | None) -> float | None:
        """Return the memory on each node, by the one that gives most cores.

        A job without a memory request on shared nodes gets memory in proportion to its cores.
        """
        most = max(self.inventory.shares(job.cores).values())
        if total_mb is None and self.site.shared:
            host = self.inventory.hosts[0]
            return most / host.cores * host.memory_mb - parse.MIB
        return None if total_mb is None else total_mb * most / len(job.cores)
