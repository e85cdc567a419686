"""Nodes and partitions as Slurm has them: which nodes can be used, and which partition is of which region."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from profiles.checks.check import UNFIT, Fitness
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.engines.slurm.node_inventory import NodeInventory
from scheduler.engines.slurm.poller import NOBODY, SET_DOWN, Answers, ClusterSnapshot, Outcome, SlurmPoller
from scheduler.engines.slurm.slurm_commands import (
    Batch,
    Slurm,
    SlurmError,
    SlurmForbidden,
    SlurmNode,
    SlurmNoPartition,
    SlurmPartitionInUse,
    SlurmSilent,
    parse_hosts,
)
from scheduler.policies.regions.regions import number_of

# -- nodes -------------------------------------------------------------------------------------------------


class NodeStates:
    """The nodes of the inventory in the last snapshot.

    Args:
        set_down: have Slurm set dead nodes down, and resume those that are back.
        fitness: have Slurm drain nodes that failed their last check, and resume those that pass again.

    Attributes:
        away: why nodes cannot be used, by name.
        lost: why nodes are given up by Slurm.
        mute: nodes that do not answer.
    """

    def __init__(
        self,
        inventory: NodeInventory,
        poller: SlurmPoller,
        *,
        set_down: bool,
        fitness: Fitness | None = None,
    ) -> None:
        self.inventory, self.poller, self.set_down, self.fitness = inventory, poller, set_down, fitness
        self.away: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.mute: frozenset[str] = frozenset()

    def see(self, snapshot: ClusterSnapshot) -> None:
        """Take a snapshot into account; the inventory knows then which nodes are away."""
        nodes = {node.name: node for node in snapshot.nodes}
        self.mute, self.away, self.lost = snapshot.answers.mute, {}, {}
        for host in self.inventory.hosts:
            node = nodes.get(host.name)
            if node is None:
                self.away[host.name] = self.lost[host.name] = "not in Slurm any more"
            elif not node.usable:
                self.away[host.name] = f"{node.state.replace('+', ' ')}: {node.reason}".rstrip(": ")
                if node.lost:
                    self.lost[host.name] = self.away[host.name]
            elif host.name in self.mute:
                self.away[host.name] = "no sign of life; its slurmd does not answer"
            elif node.cpus < host.cores:
                had = f"has {node.cpus} CPUs, had {host.cores}"
                self.away[host.name] = f"{had}; start tenbin up again when it is idle"
        self.inventory.away = {self.inventory.number[name]: why for name, why in self.away.items()}
        if self.fitness is not None:
            self._drain(snapshot.nodes, self.fitness)

    def set_dead_down(self, nodes: Sequence[SlurmNode], answers: Answers) -> None:
        """Set nodes down, or resume them, once it is known what should run there."""
        slurm, heartbeats = self.poller.slurm, self.poller.heartbeats
        for node in nodes if self.set_down else ():
            name = node.name
            if name not in self.inventory.number:
                continue
            if name in answers.mute and not node.lost and heartbeats.still(name):
                down = partial(slurm.set_node, name, "DOWN", SET_DOWN)
                self.poller.do(NOBODY, f"set {name} down", down)
            elif name in answers.back:
                self.poller.do(NOBODY, f"resume {name}", partial(slurm.set_node, name, "RESUME"))

    def _drain(self, nodes: Sequence[SlurmNode], fitness: Fitness) -> None:
        """Drain nodes that failed their last check; resume those that passed and were drained for that."""
        slurm = self.poller.slurm
        for node in nodes:
            if node.name not in self.inventory.number:
                continue
            why = fitness.why_unfit(node.name)
            if why and node.usable:
                drain = partial(slurm.set_node, node.name, "DRAIN", why)
                self.poller.do(NOBODY, f"drain {node.name}", drain)
            elif why == "" and "DRAIN" in node.states and node.reason.startswith(UNFIT.strip()):
                self.poller.do(NOBODY, f"resume {node.name}", partial(slurm.set_node, node.name, "RESUME"))


# -- partitions of regions ---------------------------------------------------------------------------------
#
# Regions as partitions of Slurm: made, changed when regions move, and taken away again.
#
# Region number 2 is ``PREFIX-2``. A partition has whole nodes: one that two regions share is in both. Which
# partitions are this coordinator's is in its folder, written down before they are made: after a crash they
# are found again, and those of others are left alone. Slurm deletes none in which a job waits or runs: and
# it is tried again.


FILE = "partitions.json"
WHAT = "partitions"  # the call, as the poller's outcome names it
AGAIN_S = 10.0
# What they take over from the partition that is scheduled: who may run how much there, for how long.
LIKE = (
    *("AllowGroups", "AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "AllocNodes", "QoS"),
    *("DefaultTime", "MaxTime", "MaxNodes", "MinNodes", "MaxCPUsPerNode", "OverSubscribe", "ExclusiveUser"),
    *("DefMemPerCPU", "DefMemPerNode", "MaxMemPerCPU", "MaxMemPerNode", "PriorityTier", "PriorityJobFactor"),
    *("DisableRootJobs", "RootOnly", "ReqResv", "LLN", "Hidden", "PreemptMode", "GraceTime"),
)
Sent = tuple[str, Iterable[str]]  # partition and nodes of an attempt
Wanted = Mapping[str, frozenset[str]]  # name of a partition -> its nodes
log = logging.getLogger("tenbin")


class Partitions:
    """The partitions of one coordinator.

    Args:
        store: its folder. base: the partition that it schedules.
        prefix: of their names; "": there are to be none (what an earlier one has left is taken away).
    """

    def __init__(self, store: Path, prefix: str, base: str, poller: SlurmPoller) -> None:
        self.prefix, self.base = prefix, base
        self._file, self._poller = store / FILE, poller
        self._own = own_names(store)
        self._wanted: Wanted = {}
        self._calls = 0
        self._again_at = 0.0
        self._known: frozenset[str] = frozenset()  # nodes that Slurm has; empty: it has not been seen yet
        self._refused: frozenset[str] = frozenset()  # set in the poller's thread, which submits as well

    def name_of(self, region: str) -> str:
        """Name the partition of a region."""
        number = number_of(region)
        return f"{self.prefix}-{number}" if self.prefix and number else self.base

    def follow(self, regions: Mapping[str, Mapping[str, int]], sent: Iterable[Sent]) -> None:
        """Give each its region's nodes, and those with jobs that were sent there before.

        The poller does this before any later call.

        Args:
            regions: of each node, how many of its units belong to which region.
            sent: the partition and the nodes of each attempt.
        """
        if not self.prefix:
            return
        known = self._known or frozenset(regions)
        nodes: dict[str, set[str]] = {}
        for node, shares in regions.items():
            for region in shares if node in known else ():
                nodes.setdefault(self.name_of(region), set()).add(node)
        for partition, names in sent:
            if partition in nodes:
                nodes[partition].update(known.intersection(names))
        regions_nodes = {name: frozenset(names) for name, names in nodes.items()}
        if regions_nodes == self._wanted:
            return
        try:
            self._know({*self._own, *regions_nodes})
        except OSError as error:  # none is made before it is known whose it is; tried again with the next job
            log.error("%s: %s", self._file, error.strerror)
            return
        self._wanted = regions_nodes
        self._set_out()

    def see(
        self,
        nodes: Sequence[SlurmNode],
        regions: Mapping[str, Mapping[str, int]],
        sent: Iterable[Sent],
    ) -> None:
        """Compare with Slurm: regions may have moved, or somebody else has changed partitions."""
        self._known = frozenset(node.name for node in nodes)
        self.follow(regions, sent)
        if not self._own or self._calls or time.monotonic() < self._again_at:
            return
        there: dict[str, set[str]] = {}
        for node in nodes:
            for name in node.partitions:
                there.setdefault(name, set()).add(node.name)
        wrong = any(there.get(name, set()) ^ nodes for name, nodes in self._wanted.items())
        if wrong or any(name in there for name in self._own - self._wanted.keys()):
            self._set_out()

    def settle(self, outcome: Outcome) -> bool:
        """Note the outcome of a call; return whether it was one of these."""
        if outcome.what != WHAT:
            return False
        self._calls -= 1
        if isinstance(outcome.error, SlurmSilent):
            self._again_at = 0.0
        elif outcome.error is not None:
            log.error("partitions of regions: %s", outcome.error)
        elif isinstance(outcome.value, frozenset) and not self._calls:
            try:
                self._know((self._own & outcome.value) | self._wanted.keys())
            except OSError as error:
                log.error("%s: %s", self._file, error.strerror)
        return True

    def submit(self, batch: Batch) -> int:
        """Hand a job to Slurm, in the poller's thread; if it refuses it, the partition is made anew first.

        Raises:
            SlurmError: as ``Slurm.submit``.
        """
        slurm = self._poller.slurm
        try:
            return slurm.submit(self._open(batch))
        except SlurmSilent:
            raise
        except SlurmError:  # it may say no more than that no node will do
            if batch.partition not in self._wanted:
                raise
        with suppress(SlurmForbidden):
            self._bring_about(self._wanted, self._own)
        return slurm.submit(self._open(batch))

    def _open(self, batch: Batch) -> Batch:
        """Choose the partition that is scheduled, if those of regions cannot be made."""
        return replace(batch, partition=self.base) if batch.partition in self._refused else batch

    def close(self) -> None:
        """Delete those without jobs; the next ``tenbin up`` has the others again."""
        if not self._own:
            return
        try:
            self._know(bring_about(self._poller.slurm, self.base, {}, self._own))
        except (Unavailable, OSError) as error:
            log.warning("partitions of regions are left as they are: %s", error)

    def _know(self, names: Collection[str]) -> None:
        if self._own != set(names):
            write_whole(self._file, json.dumps(sorted(names)))
            self._own = frozenset(names)

    def _set_out(self) -> None:
        self._calls += 1
        self._again_at = time.monotonic() + AGAIN_S
        self._poller.do(NOBODY, WHAT, partial(self._bring_about, self._wanted, self._own))

    def _bring_about(self, partitions: Wanted, own: Collection[str]) -> frozenset[str]:
        """In the poller's thread."""
        try:
            left = bring_about(self._poller.slurm, self.base, partitions, own)
        except SlurmSilent:
            raise  # jobs cannot be submitted now either
        except SlurmError:
            self._refused = frozenset(partitions)
            raise
        self._refused = frozenset()
        return left


def own_names(store: Path) -> frozenset[str]:
    """Read the partitions that the coordinator of this folder has made, or was about to make."""
    try:
        return frozenset(map(str, json.loads((store / FILE).read_text())))
    except (OSError, ValueError, TypeError):
        return frozenset()


def bring_about(slurm: Slurm, base: str, partitions: Wanted, own: Collection[str]) -> frozenset[str]:
    """Make these partitions, like ``base`` but for their nodes, and delete our others that have no jobs.

    Returns:
        The partitions of ours that are there then.

    Raises:
        SlurmError: of the class that says why.
    """
    there = slurm.partitions()
    for name, nodes in partitions.items():
        line = f"Nodes={','.join(sorted(nodes))}"
        if name not in there:
            slurm.call("scontrol", "create", f"PartitionName={name}", line, *_like(there.get(base, {})))
        elif frozenset(parse_hosts(there[name]["Nodes"])) != nodes:
            slurm.call("scontrol", "update", f"PartitionName={name}", line)
    left = set(partitions)
    for name in sorted(set(own) - partitions.keys()):
        if name in there and not _deleted(slurm, name):
            left.add(name)
    return frozenset(left)


def _like(words: Mapping[str, str]) -> Sequence[str]:
    """Copy limits; Slurm does not take UNLIMITED for memory."""
    said = {word: words[word] for word in LIKE if words.get(word) not in (None, "", "NONE")}
    return [f"{word}={value}" for word, value in said.items() if "Mem" not in word or value != "UNLIMITED"]


def _deleted(slurm: Slurm, name: str) -> bool:
    """Delete a partition if there are no jobs in it; return whether it is gone."""
    try:
        with suppress(SlurmNoPartition):
            slurm.call("scontrol", "delete", f"PartitionName={name}")
    except SlurmPartitionInUse:
        return False
    return True
