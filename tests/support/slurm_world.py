"""The world of the Slurm engine: its driver in virtual time, above a simulated slurmctld and its nodes.

Engine, driver, ``step``, poller and coordinator are the real ones, and so are the files of attempts.
Simulated is what they cannot have in virtual time: the commands of Slurm (``SimulatedSlurm.call``, by the
text that they print), queue and nodes, batch processes with their supervisors, and clocks. The poller works
where its thread would, one call after the other.

Besides what may happen to a coordinator (``tests.support.world``): nodes lose power or network, daemons die,
slurmctld forgets what it had not saved, does not answer, or answers late; nodes are drained, jobs cancelled,
requeued and suspended by an administrator.

    .venv/bin/python -m tests.support.slurm_world 0-500
    .venv/bin/python -m tests.support.slurm_world 17 --policy fcfs --machine units
"""

from __future__ import annotations

import copy
import math
import os
import random
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from agent.attempts import begin
from agent.attempts.folder import Attempt as Folder
from agent.attempts.records import Result, Want
from agent.multi_node.lease import MARGIN_S, WIDTH, beat_file
from agent.power.caps import CapInForce, confirm_cap, requested_cap
from agent.supervisor import allocation_reuse
from profiles.files.safe_files import overwrite
from scheduler.coordinator.ends import DEADLINE
from scheduler.engines.protocol import Report
from scheduler.engines.slurm import engine as engine_module
from scheduler.engines.slurm import poller
from scheduler.engines.slurm.attempt_step import SlurmAttempt
from scheduler.engines.slurm.engine import SlurmEngine
from scheduler.engines.slurm.node_inventory import ClusterNode, NodeInventory, Site, SitePower
from scheduler.engines.slurm.poller import SlurmPoller
from scheduler.engines.slurm.sbatch_queue import SbatchQueue
from scheduler.engines.slurm.slurm_commands import FINAL, MIB, Slurm, SlurmSilent, error_of
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tests.support import world
from tests.support.world import BEGIN_S, TURNS, Attempt, Broken, History, Machine, Setting, Step

NODES, CPUS, MEMORY_MB = ("node1", "node2", "node3"), 2, 1000
LEASES_S, SLURMD_TIMEOUTS_S = (6.0, 6.0, 20.0), (60.0, 10.0)
SILENT = 0.5  # of SlurmdTimeout: until slurmctld notes that a node does not answer
KILL_WAIT_S = 5.0
HEARD_S = 15.0  # in which a request is heard
NOTICED_S = MARGIN_S + 8.0  # after the end of its lease: who was lost with its node is known to be
STARTS_S = 30.0  # beside leases and SlurmdTimeout: until what is to run runs
KNOCKS_S = 12.0  # between knocks at a node, and two looks
MIN_AGE_S = 60.0  # slurmctld forgets a job so long after its end
SAVED_S = 5.0  # and has on disk what is older
QUIET_S = 8000.0  # in which all jobs of a history end
GPUS = dict(zip(NODES, (2, 1, 0), strict=True))
PLACE = "scheduler.engines.slurm."
HOSTS = tuple(ClusterNode(name, CPUS, MEMORY_MB * MIB) for name in NODES)
MEMORY = {"memory_mb": (None, None, 100.0, 300.0)}
SETTINGS = {
    "units": Setting(
        "counted",
        Cluster((Pool("unit", 6, names=NODES),)),
        Unit(node=True, cores=1, hosts=((2, MEMORY_MB * MIB),)),
        {"tasks": (1, 1, 1, 2, 3, 4), **MEMORY},
    ),
    "whole": Setting(
        "counted",
        Cluster((Pool("node", 3, names=NODES),)),
        Unit(node=True, cores=2, hosts=((1, MEMORY_MB * MIB),)),
        {"tasks": (1, 1, 2, 4)},
    ),
    "nodes": Setting(
        "nodes",
        Cluster(
            (
                Pool(
                    "node",
                    3,
                    resources=("cores", "memory_mb"),
                    capacities=((2.0, MEMORY_MB * MIB),) * 3,
                    names=NODES,
                ),
            )
        ),
        Unit(node=True, cores=2),
        {"tasks": (1, 1, 2), "cores": (1, 1, 2), **MEMORY},
    ),
    "gpus": Setting(
        "nodes",
        Cluster(
            (
                Pool(
                    "node",
                    3,
                    resources=("cores", "memory_mb", "gpu"),
                    capacities=tuple((2.0, MEMORY_MB * MIB, float(GPUS[name])) for name in NODES),
                    names=NODES,
                ),
            )
        ),
        Unit(node=True, cores=2, gpus=(GpuKind("gpu", "a100", 0.0, 3, 2),)),
        {"tasks": (1, 1, 2), "gpus": (None, None, 1, 1, 2), **MEMORY},
    ),
    "capped": Setting(
        "power",
        Cluster((Pool("node", 3, peak_w=60.0, caps_w=(30.0, 40.0, 60.0), names=NODES),), budget_w=130.0),
        Unit(node=True, cores=2, hosts=((1, MEMORY_MB * MIB),)),
        {"tasks": (1, 1, 2, 3), "max_tasks": (None, None, 3)},
    ),
}


# -- nodes, queue, and what runs ----------------------------------------------------------------------------


@dataclass
class Node:
    """A node as it is, and as slurmctld believes that it is.

    Attributes:
        power, network, daemon, disk: it has them; without network it sees neither slurmctld nor the disk.
        silent_since: since when it has not answered slurmctld. down, drain: reasons, if it is.
        answers_since: since when it has answered whoever asks.
    """

    name: str
    power: bool = True
    network: bool = True
    daemon: bool = True
    disk: bool = True
    silent_since: float = math.inf
    down: str = ""
    drain: str = ""
    answers_since: float = 0.0

    @property
    def sees_disk(self) -> bool:
        return self.power and self.network and self.disk

    @property
    def answers(self) -> bool:
        return self.power and self.network and self.daemon


@dataclass
class BatchJob:
    """A job as slurmctld knows it.

    Attributes:
        starts_s: it starts then at the earliest. limit_s, memory_mb, gpus: as it was submitted.
    """

    id: int
    comment: str
    nodes: tuple[str, ...]
    cpus: int
    folder: Path
    starts_s: float
    limit_s: float = math.inf
    memory_mb: float = math.inf
    gpus: int = 0
    state: str = "PENDING"
    reason: str = "None"
    start_s: float = 0.0
    ended_s: float = math.inf

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def holds(self) -> bool:
        return self.state in ("RUNNING", "COMPLETING")


@dataclass(eq=False)
class Process:
    """The batch process of a job on the first of its nodes, with a supervisor for each of its attempts.

    Attributes:
        key: of the attempt that it runs; None: between two. folder: of that attempt, or of the last one.
        waits: for the disk, to begin. until_s: so long it waits for another. stopped: by SIGSTOP.
        dark_since: since when it sees no disk. kill_s: SIGKILL comes then. unpublished: a result for which it
            saw no disk. cap_w: each of its nodes is under this cap, by request number cap_number.
        ends_s: Slurm ends it then. memory_mb: it has so much of each node. gpus: likewise.
    """

    slurm: int
    nodes: tuple[str, ...]
    cpus: int
    folder: Path
    key: tuple[int, int] | None = None
    waits: bool = False
    until_s: float = math.inf
    stopped: bool = False
    dark_since: float = math.inf
    kill_s: float = math.inf
    interrupted: bool = False
    unpublished: Result | None = None
    beats: int = 0
    cap_w: float | None = None
    cap_number: int = 0
    ends_s: float = math.inf
    memory_mb: float = math.inf
    gpus: int = 0

    @property
    def node(self) -> str:
        return self.nodes[0]


@dataclass
class Loss:
    """An attempt has died with its node: that must be known in time.

    Attributes:
        fenced: the attempt is given up for the time of a lease. slurmctld has seen by itself that the node
            does not answer, which then is not asked again, or has lost the job; or it had other nodes too,
            and no beats tell that it is over there.
    """

    node: str
    by_s: float
    fenced: bool = False


class SlurmCluster(Machine):
    """slurmctld, its nodes, and what runs there.

    Attributes:
        orders: jobs as they were when the orders of their attempts were written, by attempt. ran_in: the
            Slurm jobs of attempts.
        disturbed: attempts that something has happened to. broke_s: when a node last broke, or was mended.
        repairs: when what is mended.
        followed: attempts that the coordinator has not called lost. done: jobs of which one of these has
            written down a success, visible or not.
        losses: attempts that have died with their node.
        dead: slurmctld does not run. unheard: so many of the next calls get no answer; heard: they are made
            nevertheless. delay_s: how long a call takes.
    """

    def __init__(self, seed: int, setting: Setting, story: Any) -> None:
        super().__init__(seed, setting, story)
        self.nodes = {name: Node(name) for name in NODES}
        self.queue: dict[int, BatchJob] = {}
        self.orders: dict[tuple[int, int], SimpleNamespace] = {}
        self.processes: list[Process] = []
        self.ran_in: dict[tuple[int, int], int] = {}
        self.disturbed: set[tuple[int, int]] = set()
        self.broke_s: dict[str, float] = {}
        self.done: set[int] = set()
        self.followed: Mapping[tuple[int, int], object] = {}
        self.losses: dict[tuple[int, int], Loss] = {}
        self.repairs: list[tuple[float, Callable[[], object]]] = []
        self.lease_s = LEASES_S[seed % len(LEASES_S)]
        self.timeout_s = SLURMD_TIMEOUTS_S[seed // 2 % len(SLURMD_TIMEOUTS_S)]
        self.dead = self.heard = False
        self.unheard, self.delay_s = 0, 0.02
        self.number, self.changed_s = 0, math.inf
        self.saved: tuple[int, dict[int, BatchJob]] = 0, {}

    @property
    def clock_there(self) -> float:
        return self.now  # nobody sets the clocks of the nodes

    # -- what runs on the nodes ------------------------------------------------------------------------

    def running(self) -> Iterator[tuple[Process, Attempt]]:
        """Go through the processes with an attempt that is not over."""
        for process in list(self.processes):
            if process.key is not None and not self.attempts[process.key].over:
                yield process, self.attempts[process.key]

    def process_of(self, attempt: Attempt) -> Process:
        return next(p for p in self.processes if p.key == (attempt.job, attempt.number))

    def disturb(self, node: str = "") -> None:
        """Note that something happens to what runs on a node; "": on all."""
        self.disturbed |= {p.key for p in self.processes if p.key and (not node or node in p.nodes)}

    def later(self, seconds: float, repair: Callable[[], object]) -> None:
        """Have something happen then, such as a repair."""
        self.repairs.append((self.now + seconds, repair))

    def batch(self, job: BatchJob) -> None:
        """Start a batch process."""
        has = {"memory_mb": job.memory_mb, "gpus": job.gpus}
        process = Process(job.id, job.nodes, job.cpus, job.folder, waits=True, **has)
        self.processes.append(process)
        self._begin(process)

    def _begin(self, process: Process) -> None:
        """Run the first attempt of a batch process, once there is its disk."""
        if process.waits and not process.stopped and self.nodes[process.node].sees_disk:
            job = self.queue.get(process.slurm)
            if job is None:  # slurmctld has forgotten it, and has its node end what it does not know
                self.leave(process, 137)
            else:
                process.waits, process.ends_s = False, self.now + job.limit_s
                self.supervise(process, process.folder)

    def supervise(self, process: Process, folder: Path) -> None:
        """Run an attempt, as ``agent.attempts.begin`` does, unless it is somebody else's."""
        process.folder, process.key, process.until_s = folder, None, math.inf
        try:
            (folder / "alive").touch()
            claimed = begin.claim(str(folder))
            order = SimpleNamespace(**vars(Folder(folder).order())) if claimed else None
        except OSError:
            return self.leave(process, 1)
        if order is None:
            return self.leave(process, allocation_reuse.ELSEWHERE)
        key = order.job_id, order.attempt
        if key in self.attempts:
            raise Broken("an attempt starts once", f"attempt {key[1]} of job {key[0]}")
        if key[0] in self.done:
            raise Broken("what is done is not begun anew", f"attempt {key[1]} of job {key[0]}")
        for other, attempt in self.running():
            if attempt.job == key[0] and not other.stopped:  # who is stopped is ended when its node is back
                raise Broken("a job runs once at a time", f"attempts {attempt.number}, {key[1]} of {key[0]}")
            assert other is not process
        if begin.fenced(str(folder)):
            given_up = Result("interrupted", self.now, trouble="it was given up before it had begun")
            return self.publish(process, given_up)
        process.key = key
        self.ran_in[key] = process.slurm
        if any(not (self.nodes[name].answers and self.nodes[name].sees_disk) for name in process.nodes):
            self.disturbed.add(key)
        self._check_place(process, self.orders[key])
        self.start(self.orders[key])  # type: ignore[arg-type]
        self.hold_cap(process)
        draw = random.Random(f"{self.seed} {key} long")
        self.attempts[key].left_s *= draw.choice([1, 1, 4])
        return None

    def _check_place(self, process: Process, order: SimpleNamespace) -> None:
        """Compare what Slurm has given a process with what its attempt is to have."""
        spec, key = order.spec, f"attempt {order.attempt} of job {order.id}"
        shares = Counter(NODES[core // CPUS] for core in order.cores)
        if set(process.nodes) != set(shares) or process.cpus != max(shares.values()):
            given = f"{process.cpus} CPUs of {', '.join(process.nodes)}"
            raise Broken("who runs has what it was given", f"{key}: {given}, is to have {dict(shares)}")
        if process.gpus != spec.gpus_asked:
            raise Broken("who runs has its GPUs", f"{key}: {process.gpus} in place of {spec.gpus_asked}")
        if spec.memory_mb and process.memory_mb * len(process.nodes) < spec.memory_mb * spec.tasks - 1e-6:
            raise Broken("who runs has its memory", f"{key}: {process.memory_mb:g} MB of each node")
        if order.way.time_s and process.ends_s < self.now + order.way.time_s:
            raise Broken("who runs has its time", f"{key}: Slurm ends it at {process.ends_s - BEGIN_S:g}")

    # -- power caps, as ``agent.power.caps`` has them ----------------------------------------------------

    def hold_cap(self, process: Process) -> None:
        """Put the nodes under the cap that is requested, if one is."""
        requested = requested_cap(Folder(process.folder))
        if requested is not None and requested.cap_w is not None:
            process.cap_w, process.cap_number = requested.cap_w, requested.number
            confirm_cap(Folder(process.folder), CapInForce(requested.number, requested.cap_w))
        self._check_power()

    def follow_cap(self, process: Process) -> None:
        """Hold a cap that was requested since."""
        requested = requested_cap(Folder(process.folder))
        if process.cap_w is not None and requested is not None and requested.number > process.cap_number:
            self.story(f"caps: {', '.join(process.nodes)} at {requested.cap_w:g} W")
            self.hold_cap(process)

    def release_cap(self, process: Process) -> None:
        if process.cap_w is not None:
            process.cap_w = None
            confirm_cap(Folder(process.folder), CapInForce(process.cap_number, None))

    def _check_power(self) -> None:
        cluster = self.setting.cluster
        if cluster.budget_w is None:
            return
        power = {process.key: (len(process.nodes), process.cap_w) for process, _ in self.running()}
        if sum(cluster.pools[0].power_w(nodes, cap_w) for nodes, cap_w in power.values() if cap_w) > (
            cluster.budget_w + 1e-6
        ):
            raise Broken("the power is within its budget", f"{power} of {cluster.budget_w:g} W")

    def report(self, attempt: Attempt, what: Any, **more: Any) -> None:
        """Write down what the supervisor of an attempt has to tell."""
        process = self.process_of(attempt)
        if what == "ended":
            self.story(f"ends: attempt {attempt.number} of job {attempt.job}: {more['result'].how}")
            self.publish(process, more["result"])
        elif what == "lost":
            self.story(f"the supervisor dies: attempt {attempt.number} of job {attempt.job}")
            self.leave(process, 137)
        elif self.nodes[process.node].sees_disk and attempt.state is not None:
            if attempt.state.paused:
                self.release_cap(process)
            elif process.cap_w is None and what == "obeyed":
                self.hold_cap(process)
            Folder(process.folder).write_state(attempt.state)

    def publish(self, process: Process, result: Result) -> None:
        """Make a result visible, as soon as the disk is; then another attempt may be passed on."""
        process.unpublished = result
        if self.nodes[process.node].sees_disk:
            folder, process.unpublished = Folder(process.folder), None
            if process.key is not None and process.key not in self.followed:
                self.attempts[process.key].lost = True  # that comes too late
                self.attempts[process.key].result = None
            reserved = folder.reserve()
            folder.note(reserved, result)
            draw = random.Random(f"{self.seed} {process.key} dies")
            dies = process.key is not None and draw.random() < 0.08
            if not dies:
                folder.publish(reserved)
            os.close(reserved)
            if result.how == "exited" and result.code == 0 and process.key in self.followed:
                self.done.add(process.key[0])
            if dies:
                self.story(f"its supervisor dies before that is visible: attempt of job {process.key}")
                self.leave(process, 137)
            elif allocation_reuse.suits(result.how, result.usage.wall_s):
                process.until_s = self.now + allocation_reuse.STAYS_S
            else:
                self.leave(process, result.code or (0 if result.how == "exited" else 125))

    def await_next(self, process: Process) -> None:
        """Wait for an attempt that is passed on, or leave."""
        file = process.folder / allocation_reuse.NEXT
        if not file.exists():
            if self.now < process.until_s - 1e-6:
                return
            allocation_reuse.pass_on(process.folder, "")
        process.until_s = math.inf
        if folder := file.read_text():
            self.supervise(process, Path(folder))
        else:
            self.leave(process, 0)

    def leave(self, process: Process, code: int) -> None:
        """Let a batch process end; its slurmd tells slurmctld."""
        self.processes.remove(process)
        job = self.queue.get(process.slurm)
        if job is not None and not job.final and job.state != "PENDING":
            cancelled = job.state == "COMPLETING"
            self.end(job, "CANCELLED" if cancelled else "FAILED" if code else "COMPLETED")

    def kill(self, process: Process) -> None:
        """SIGKILL for a batch process and all below."""
        self.lose(process)
        self.leave(process, 137)

    def lose(self, process: Process) -> None:
        """Let what it runs be lost, with a result that is not written down."""
        if process.key is not None:
            attempt = self.attempts[process.key]
            if process.unpublished is not None:
                attempt.result = None
            attempt.lost, attempt.works = attempt.result is None, False

    def terminate(self, process: Process) -> None:
        """SIGTERM, and SIGKILL later."""
        process.stopped, process.kill_s = False, min(process.kill_s, self.now + KILL_WAIT_S)
        attempt = self.attempts[process.key] if process.key is not None else None
        if attempt is None or attempt.over:
            if process.unpublished is None:
                self.leave(process, 143)
            return
        if attempt.fate.obeys != "refuses":
            self._work(attempt)
            process.interrupted = True
            attempt.works, attempt.due_s = True, min(attempt.due_s, self.now + attempt.fate.leaves_s)

    def signal(self, process: Process) -> None:
        """SIGUSR1, or SIGCONT: the supervisor looks for a request."""
        attempt = self.attempts[process.key] if process.key is not None else None
        if attempt is None or attempt.over or process.stopped or not self.nodes[process.node].sees_disk:
            return
        self.follow_cap(process)
        request = Folder(process.folder).request()
        if request is not None:
            self.story(f"obeys: job {attempt.job}, {request.want}")
            self.limit(attempt, request.time_limit_s or math.inf)
            self.ask(attempt, request.number, request.want, "")
            if attempt.state is not None and request.want in ("end", "checkpoint"):
                attempt.state = replace(attempt.state, done=request.number)
                self.report(attempt, "obeyed")

    def stop(self, process: Process) -> None:
        """SIGSTOP."""
        if process.key is not None:
            self._work(self.attempts[process.key])
        process.stopped = True

    def go_on(self, process: Process) -> None:
        """SIGCONT, for the program as well."""
        process.stopped = False
        if process.key is not None and not (attempt := self.attempts[process.key]).over:
            attempt.since_s, attempt.works = self.now, True
            self.signal(process)

    def _end(self, attempt: Attempt) -> Result | None:
        process = self.process_of(attempt)
        result = super()._end(attempt)
        if process.interrupted and attempt.left_s > 1e-6 and attempt.limit_s > 1e-6:
            result = Result("interrupted", self.now, signal=15, usage=world.USAGE)
        if result is None:
            return None
        began_s = attempt.state.started_s if attempt.state is not None else self.now
        return replace(result, usage=replace(result.usage, wall_s=self.now - began_s))

    def beat(self) -> None:
        """Leave the heartbeats that are due."""
        for process, _ in self.running():
            if not process.stopped and self.nodes[process.node].sees_disk:
                process.beats += 1
                overwrite(beat_file(process.folder, process.node), str(process.beats), WIDTH)

    def _watch_leases(self) -> None:
        for process, attempt in self.running():
            sees_disk = self.nodes[process.node].sees_disk
            fenced = sees_disk and begin.fenced(str(process.folder))
            late = not sees_disk and self.now >= process.dark_since + self.lease_s - 1e-6
            if fenced and process.key not in self.disturbed:
                what = f"attempt {attempt.number} of job {attempt.job}"
                raise Broken("who runs undisturbed is not given up", what)
            if not process.stopped and (fenced or late):
                self.story(f"its lease is over: attempt {attempt.number} of job {attempt.job}")
                self._work(attempt)
                self._over(attempt, Result("interrupted", self.now, signal=9, usage=world.USAGE))

    # -- what slurmctld does ---------------------------------------------------------------------------

    def end(self, job: BatchJob, state: str) -> None:
        self.story(f"Slurm job {job.id} ({job.comment.partition(':')[2]}) ends: {state}")
        job.state, job.ended_s = state, self.now

    def room(self, name: str) -> int:
        """Count the CPUs of a node that no job has."""
        return CPUS - sum(job.cpus for job in self.queue.values() if self._holds(job, name))

    def gpus_left(self, name: str) -> int:
        """Count the GPUs of a node that no job has; who is suspended keeps them."""
        has = [job for job in self.queue.values() if name in job.nodes]
        return GPUS[name] - sum(job.gpus for job in has if self._holds(job, name) or job.state == "SUSPENDED")

    def _holds(self, job: BatchJob, name: str) -> bool:
        """Tell if a job has its part of a node: if it is over, until its processes or the node are gone."""
        there = [process for process in self.processes if process.slurm == job.id]
        if job.final:
            return not self.nodes[name].down and any(process.node == name for process in there)
        leaves = any(process.kill_s < math.inf for process in there)  # also who is requeued
        return name in job.nodes and (job.holds or leaves)

    def _may_start(self, job: BatchJob) -> bool:
        if job.state != "PENDING" or any(p.slurm == job.id and p.kill_s < math.inf for p in self.processes):
            return False
        nodes = [self.nodes[name] for name in job.nodes]
        return all(
            self._usable(node)
            and self.room(node.name) >= job.cpus
            and (not job.gpus or self.gpus_left(node.name) >= job.gpus)
            for node in nodes
        )

    def _usable(self, node: Node) -> bool:
        return not (node.down or node.drain) and self.now < node.silent_since

    def _schedule(self) -> None:
        for job in list(self.queue.values()):
            if self._may_start(job) and self.now >= job.starts_s - 1e-6:
                job.state, job.start_s = "RUNNING", self.now
                there = next((p for p in self.processes if p.slurm == job.id), None)
                node = self.nodes[job.nodes[0]]
                if there is not None:  # the start was forgotten, the node refuses
                    self.kill(there)
                    self.end(job, "CANCELLED")
                elif node.answers:
                    self.story(f"Slurm starts job {job.id} on {', '.join(job.nodes)}")
                    self.batch(job)
        for job in [job for job in self.queue.values() if self.now > job.ended_s + MIN_AGE_S]:
            del self.queue[job.id]

    def _watch_nodes(self) -> None:
        """Note who answers; jobs of who has not for long are over, and killed when it is back."""
        for node in self.nodes.values():
            if not node.answers:
                if node.silent_since == math.inf:
                    node.silent_since = self.now + SILENT * self.timeout_s
                if self.now >= node.silent_since + (1 - SILENT) * self.timeout_s - 1e-6 and not node.down:
                    node.down = "Not responding"
                if node.down == "Not responding":
                    self._fail(node)
            elif node.silent_since < math.inf:
                node.silent_since = math.inf
                node.down = "" if node.down == "Not responding" else node.down
        for node in self.nodes.values():  # what is over by now is killed before anything starts in its place
            if node.answers:
                self._register(node)

    def _fail(self, node: Node) -> None:
        for job in self.queue.values():
            if node.name in job.nodes and not job.final and job.state != "PENDING":
                self.end(job, "NODE_FAIL")

    def _register(self, node: Node) -> None:
        """Compare what runs on a node with what should run there."""
        for process in [p for p in self.processes if p.node == node.name]:
            job = self.queue.get(process.slurm)
            if job is None or job.final:
                self.kill(process)
            elif job.state == "COMPLETING" and process.kill_s == math.inf:
                self.terminate(process)
            elif process.stopped != (job.state == "SUSPENDED"):
                (self.go_on if process.stopped else self.stop)(process)
        for job in self.queue.values():
            runs = job.state in ("RUNNING", "SUSPENDED", "COMPLETING")
            if runs and job.nodes[0] == node.name and not self.is_there(job):
                self.end(job, "CANCELLED" if job.state == "COMPLETING" else "NODE_FAIL")

    def is_there(self, job: BatchJob) -> bool:
        """Tell if the processes of a job are on its nodes."""
        return any(process.slurm == job.id for process in self.processes)

    def _save(self) -> None:
        """Write down what is known of jobs, some time after it has changed."""
        if self.saved == (self.number, self.queue):
            self.changed_s = math.inf
        elif self.now >= min(self.changed_s, self.now) + SAVED_S:
            self.saved = self.number, copy.deepcopy(self.queue)
        else:
            self.changed_s = min(self.changed_s, self.now)

    def check_down(self, node: Node) -> None:
        """Look whether a node that is set down answers, or has jobs that live."""
        if self.now > node.answers_since + KNOCKS_S + 4 * self.delay_s:
            raise Broken("who answers is not set down", node.name)
        for process, attempt in self.running():
            if process.node == node.name and node.sees_disk and not process.stopped and process.beats > 1:
                what = f"attempt {attempt.number} of job {attempt.job} lives on {node.name}"
                raise Broken("where jobs live is not set down", what)

    def check_cancel(self, number: int) -> None:
        """Look whether a Slurm job that tenbin cancels runs something that is to run."""
        for process, attempt in self.running():
            request = Folder(process.folder).request()
            ends = request is not None and request.want == "end"
            if process.slurm == number and process.key not in self.disturbed and not ends:
                what = f"attempt {attempt.number} of job {attempt.job}, Slurm job {number}"
                raise Broken("who runs undisturbed is not cancelled", what)

    def forget(self) -> None:
        """Slurmctld is killed: when it comes back it knows what it had saved."""
        self.number, self.queue = copy.deepcopy(self.saved)

    def look(self) -> None:
        """Let all happen that is due by now, on nodes and in slurmctld."""
        self.note_time()
        for repair in [repair for repair in self.repairs if repair[0] <= self.now + 1e-6]:
            self.repairs.remove(repair)
            repair[1]()
        for node in self.nodes.values():
            node.answers_since = min(node.answers_since, self.now) if node.answers else math.inf
        for process in list(self.processes):
            node = self.nodes[process.node]
            process.dark_since = math.inf if node.sees_disk else min(process.dark_since, self.now)
            if self.now >= process.kill_s - 1e-6 and node.answers:
                self.kill(process)
            elif process.waits:
                self._begin(process)
            elif process.unpublished is not None and node.sees_disk:
                self.publish(process, process.unpublished)
            elif process.until_s < math.inf and node.sees_disk and not process.stopped:
                self.await_next(process)
        self._watch_leases()
        for process, attempt in self.running():
            if not process.stopped and attempt.next_s <= self.now + 1e-6:
                self._work(attempt)
                self._over(attempt, self._end(attempt))
        if not self.dead:
            self._watch_nodes()
            self._schedule()
            self._save()

    @property
    def next_s(self) -> float:
        """The time at which something happens by itself."""
        times = [math.inf, *(at_s for at_s, _ in self.repairs)]
        for process in self.processes:
            node = self.nodes[process.node]
            times += [process.kill_s] if node.answers else []
            if process.stopped:
                continue
            if process.until_s < math.inf and node.sees_disk:
                waits = not (process.folder / allocation_reuse.NEXT).exists()
                times.append(process.until_s if waits else self.now)
            if process.key is not None and not self.attempts[process.key].over:
                times += [self.attempts[process.key].next_s, process.dark_since + self.lease_s]
        if not self.dead:
            times += [job.starts_s for job in self.queue.values() if self._may_start(job)]
            for node in self.nodes.values():
                if node.silent_since < math.inf and not node.down:
                    times.append(node.silent_since + (1 - SILENT) * self.timeout_s)
        return min(times)


# -- Slurm's commands ---------------------------------------------------------------------------------------


class SimulatedSlurm(Slurm):
    """The commands of Slurm, by what they print."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__()
        self.cluster = cluster

    def call(self, *command: str, given: str = "") -> str:
        cluster = self.cluster
        cluster.may_be_killed()
        unheard = cluster.unheard > 0
        cluster.unheard -= unheard
        if cluster.dead or (unheard and not cluster.heard):
            raise SlurmSilent(f"{command[0]}: Unable to contact slurm controller (connect failure)")
        cluster.look()
        if command[0] == "scancel" and "--signal=USR1" not in command:
            cluster.check_cancel(int(command[-1]))
        late = unheard and command[0] == "sbatch" and cluster.unheard % 2
        if late:
            cluster.later(2.0, lambda: str(self._sbatch(command[1:], given)))
        said = "" if late else getattr(self, f"_{command[0]}")(command[1:], given)
        cluster.look()
        cluster.may_be_killed()
        if unheard:
            raise SlurmSilent(f"{command[0]} did not answer within 20 s")
        return str(said)

    def _sbatch(self, options: Sequence[str], script: str) -> int:
        named = dict(option[2:].partition("=")[::2] for option in options)
        cluster, nodes = self.cluster, tuple(named["nodelist"].split(","))
        cluster.number += 1
        folder = Path(shlex.split(script.splitlines()[-1])[-1])
        cpus = int(named["ntasks"]) * int(named["cpus-per-task"]) // len(nodes)
        delay_s = random.Random(f"{cluster.seed} {cluster.number}").choice([0.0, 0.3, 1.0])
        job = BatchJob(cluster.number, named["comment"], nodes, cpus, folder, cluster.now + delay_s)
        job.limit_s = 60.0 * float(named.get("time", math.inf))
        job.memory_mb = float(named["mem"].removesuffix("M")) * MIB if "mem" in named else math.inf
        job.gpus = int(named.get("gres", "gpu:a100:0").removeprefix("gpu:a100:"))
        if "mem" in named and job.memory_mb > MEMORY_MB * MIB:
            raise Broken("a job fits its nodes", f"Slurm job {job.id}: {named['mem']} of {MEMORY_MB}M")
        cluster.queue[job.id] = job
        cluster.story(f"sbatch: Slurm job {job.id} for {folder.parent.name}, {folder.name}")
        return job.id

    def _squeue(self, options: Sequence[str], _: str) -> str:
        named = dict(option[2:].partition("=")[::2] for option in options)
        if "jobs" in named:
            return f"{self._job(named['jobs'], 'slurm_load_jobs').comment}\n"
        found = re.match(r"%i(.*?)%T", named["format"])
        assert found is not None
        rows = [
            (job.id, job.state, job.reason, ",".join(job.nodes) if job.start_s else "", job.start_s)
            for job in self.cluster.queue.values()
        ]
        comments = [job.comment for job in self.cluster.queue.values()]
        return "".join(
            "".join(f"{word}{found[1]}" for word in (*row[:4], f"{row[4]:.0f}" if row[4] else "N/A", comment))
            + "\n"
            for row, comment in zip(rows, comments, strict=True)
        )

    def _scontrol(self, words: Sequence[str], _: str) -> str:
        cluster, words = self.cluster, [word for word in words if not word.startswith("--")]
        if words[:2] == ["show", "node"]:
            return "".join(self._line(node) for node in cluster.nodes.values())
        if words[0] in ("suspend", "resume"):
            job, wanted = self._job(words[1]), "RUNNING" if words[0] == "suspend" else "SUSPENDED"
            if job.state != wanted:
                why = "Job is not suspended" if words[0] == "resume" else "Job is pending execution"
                raise error_of(("scontrol",), f"slurm_{words[0]} error: {why}", 1)
            self._suspend(job, words[0] == "suspend")
            return ""
        assert words[0] == "update", words
        node = cluster.nodes[words[1].partition("=")[2]]
        state, reason = words[2].partition("=")[2], "".join(words[3:]).partition("=")[2]
        cluster.story(f"scontrol: {node.name} {state.lower()}: {reason}")
        if state == "DOWN":
            cluster.check_down(node)
            node.down = reason
            cluster._fail(node)
        elif state == "DRAIN":
            node.drain = reason
        else:
            node.down = node.drain = ""
        return ""

    def _suspend(self, job: BatchJob, stops: bool) -> None:
        cluster = self.cluster
        cluster.story(f"scontrol {'suspend' if stops else 'resume'}: Slurm job {job.id}")
        job.state = "SUSPENDED" if stops else "RUNNING"
        for process in cluster.processes:
            if process.slurm == job.id and cluster.nodes[process.node].answers:
                (cluster.stop if stops else cluster.go_on)(process)

    def _scancel(self, words: Sequence[str], _: str) -> str:
        cluster, job = self.cluster, self._job(words[-1])
        process = next((p for p in cluster.processes if p.slurm == job.id), None)
        there = process is not None and cluster.nodes[process.node].answers
        if "--signal=USR1" in words:
            if job.state == "PENDING":
                raise SlurmSilent("scancel did not answer within 20 s")  # it tries that again for minutes
            if cluster.lost_mail:
                cluster.lost_mail -= 1
                cluster.story(f"a signal is lost: of Slurm job {job.id}")
            elif process is not None and there:
                cluster.signal(process)
            return ""
        if job.final:
            raise error_of(("scancel",), "scancel: error: Job/step already completing or completed", 1)
        cluster.story(f"scancel: Slurm job {job.id} ({job.state})")
        if job.state == "PENDING":
            cluster.end(job, "CANCELLED")
        else:
            job.state = "COMPLETING"
            if process is not None and there:
                cluster.terminate(process)
        return ""

    def _job(self, number: str, what: str = "scontrol") -> BatchJob:
        job = self.cluster.queue.get(int(number))
        if job is None:
            raise error_of((what,), f"{what} error: Invalid job id specified", 1)
        return job

    def _srun(self, words: Sequence[str], _: str) -> str:
        """Run a short program on nodes, at once or not at all."""
        names = next(word for word in words if word.startswith("--nodelist=")).partition("=")[2].split(",")
        if any(self.cluster.room(name) < 1 or not self.cluster.nodes[name].answers for name in names):
            raise error_of(("srun",), "srun: error: Unable to allocate resources", 1)
        return ""

    def _line(self, node: Node) -> str:
        used = CPUS - self.cluster.room(node.name)
        silent = self.cluster.now >= node.silent_since
        state = ("DOWN" if node.down else "ALLOCATED" if used else "IDLE") + ("*" if silent else "")
        state += "+DRAIN" if node.drain else ""
        words = f"NodeName={node.name} NodeAddr={node.name} Port=6818 State={state}"
        words += f" CPUTot={CPUS} CPUAlloc={used} RealMemory={MEMORY_MB} Partitions=main"
        reason = node.drain or node.down
        return words + (f" Reason={reason}\n" if reason else "\n")


# -- the engine, and its thread -----------------------------------------------------------------------------


class WorldPoller(SlurmPoller):
    """The poller without a thread: ``work`` does what is due."""

    cluster: ClassVar[SlurmCluster]
    rung, busy_until = False, 0.0

    def begin(self) -> None: ...

    def close(self) -> None:
        os.close(self._bell)

    def _ring(self) -> None:
        self.rung = True
        super()._ring()

    def heard(self) -> None:
        self.rung = False
        super().heard()

    @property
    def next_s(self) -> float:
        """The time at which there is something to do; folders are looked at whenever anything happens."""
        self._look_at = math.inf
        due = -math.inf if not self._tasks.empty() else self._due()
        return max(due, self.busy_until)

    def work(self) -> None:
        """Do what is due, unless a call is under way."""
        now = self.cluster.now
        self._look_at = 0.0
        if now < self.busy_until - 1e-6:
            return
        self.cluster.beat()
        task = None if self._tasks.empty() else self._tasks.get()
        if task is not None:
            self.busy_until = now + self.cluster.delay_s
            task()
        self._look_where_due()


class WorldEngine(SlurmEngine):
    """The real engine, which may be killed, and may find no room, at what it writes."""

    cluster_of_world: ClassVar[SlurmCluster]

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        self.cluster_of_world.may_be_killed()
        for job, _ in jobs:
            if job.stage.final:
                raise Broken("what has ended does not start", f"job {job.id} is {job.stage}")
        super().start(jobs)
        self.cluster_of_world.may_be_killed()

    def _write_order(self, job: Entry, environment: dict[str, str], attempt: SlurmAttempt) -> SlurmAttempt:
        cluster = self.cluster_of_world
        cluster.write()
        cluster.orders[attempt.key] = SimpleNamespace(
            id=job.id,
            attempt=job.attempt,
            spec=job.spec,
            way=job.way,
            placement=job.placement,
            cores=job.cores,
        )
        written = super()._write_order(job, environment, attempt)
        cluster.may_be_killed()
        return written

    def poll(self) -> list[Report]:
        self.cluster_of_world.note_time()
        return super().poll()

    def ask(self, job: Entry, want: Want) -> None:
        self.cluster_of_world.may_be_killed()
        self.cluster_of_world.write()
        super().ask(job, want)
        self.cluster_of_world.may_be_killed()


class VirtualTime(SimpleNamespace):
    """``time`` for the modules of the engine."""

    def __init__(self, cluster: SlurmCluster) -> None:
        super().__init__(time=lambda: cluster.clock, monotonic=lambda: cluster.now)


@contextmanager
def virtual_time(cluster: SlurmCluster) -> Iterator[None]:
    """Give the modules of the engine the time of the cluster, and its sockets."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith(PLACE) and getattr(module, "time", None) is time:
                patch.setattr(module, "time", VirtualTime(cluster))
        patch.setattr(poller, "knock", lambda asked: {n for n in asked if cluster.nodes[n].answers})
        patch.setattr(engine_module, "SlurmPoller", WorldPoller)
        yield


# -- histories ----------------------------------------------------------------------------------------------

WEIGHTS = world.WEIGHTS | {
    "submit": 14,
    "advance": 20,
    "kill": 4,
    "lost mail": 3,
    "power": 3,
    "link": 3,
    "disk": 2,
    "slurmd": 2,
    "slurmctld": 3,
    "drain": 1,
    "requeue": 2,
    "admin cancel": 1,
    "admin suspend": 2,
    "unheard": 4,
    "slow": 2,
}


class SlurmHistory(History):
    """A history on a cluster."""

    name, settings, weights = "slurm_world", SETTINGS, WEIGHTS
    slurm_of: ClassVar[type[SimulatedSlurm]] = SimulatedSlurm
    machine: SlurmCluster
    slurm: WorldEngine

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.quiet, self.suspended = False, set[int]()
        self.to_end: dict[int, int] = {}  # attempts that an administrator has ended, by job
        self.ended_in_slurm = set[int]()  # Slurm jobs that an administrator has cancelled
        self._asked: dict[tuple[int, int], float] = {}  # requests that are not heard yet, and since when
        self._waits: dict[tuple[int, int], float] = {}  # attempts that are to run and do not, and since when
        super().__init__(*arguments, **named)

    def new_machine(self, seed: int) -> Machine:
        return SlurmCluster(seed, self.setting, self.say)

    @property
    def poller(self) -> WorldPoller:
        assert isinstance(self.slurm.poller, WorldPoller)
        return self.slurm.poller

    def begin(self, home: Path) -> None:
        if hasattr(self, "slurm"):
            self.poller.close()
        store = self.folder / "store"
        store.mkdir(exist_ok=True)
        (store / "slurm.json").write_text('{"name": "world"}')
        WorldPoller.cluster = WorldEngine.cluster_of_world = self.machine
        pool = self.setting.cluster.pools[0]
        inventory = NodeInventory(HOSTS, self.setting.unit, whole=pool.name == "node" and pool.counted)
        power = None if self.setting.cluster.budget_w is None else SitePower("/sys", self.folder, 0.0)
        site = Site(
            self.slurm_of(self.machine),
            "main",
            inventory,
            self.machine.lease_s,
            power=power,
            set_down=self.machine.seed % 2 == 0,
            sbatch=self.new_sbatch(),
            gres={"gpu": "gpu:a100"} if self.setting.unit.gpus else {},
        )
        self._waits.clear()
        self._delay_notice()
        with virtual_time(self.machine):
            self.slurm = WorldEngine(store, self.setting.cluster, site, self.setting.unit)
            self.machine.followed = self.slurm.driver.attempts
            self.coordinate(home, self.slurm)

    def new_sbatch(self) -> SbatchQueue | None:
        """Make what takes over jobs of others; None: they are not taken over."""
        return None

    def run(self, steps: Sequence[Step]) -> None:
        with virtual_time(self.machine):
            super().run(steps)

    def check(self) -> None:
        super().check()
        if not self.slurm.external_jobs.able and (others := self.slurm.nodes.others()):
            raise Broken("a job of tenbin's own is none outside of it", str(others))

    # -- steps -------------------------------------------------------------------------------------------

    def _node(self, draw: random.Random) -> Node:
        """Choose a node, rather one on which something runs."""
        busy = [process.node for process, _ in self.machine.running()]
        return self.machine.nodes[draw.choice(busy if busy and draw.random() < 0.7 else NODES)]

    def _break(self, draw: random.Random, node: Node, *parts: str, story: str = "") -> None:
        """Take parts of a node away, until they are mended."""
        self.say(f"{node.name} {story}")
        self.to_end.clear()
        self.machine.disturb(node.name)
        self._set(node, *parts, there=False)
        self.machine.later(draw.choice([1.0, 10.0, 25.0, 60.0]), lambda: self._set(node, *parts, there=True))

    def _set(self, node: Node, *parts: str, there: bool) -> None:
        self.machine.broke_s[node.name] = self.machine.now
        for part in parts:
            setattr(node, part, there)
        if there:
            self.say(f"{node.name} has {' and '.join(parts)} again")

    def power(self, draw: random.Random) -> None:
        machine, node = self.machine, self._node(draw)
        self._break(draw, node, "power", "daemon", story="is off")
        for process in [p for p in machine.processes if p.node == node.name]:
            machine.processes.remove(process)
            if process.key is not None:
                attempt = machine.attempts[process.key]
                if not attempt.over and process.beats and not process.stopped:
                    by_s = machine.now + machine.lease_s + NOTICED_S
                    machine.losses[process.key] = Loss(node.name, by_s, fenced=len(process.nodes) > 1)
                machine.lose(process)
        machine.look()

    def link(self, draw: random.Random) -> None:
        self._break(draw, self._node(draw), "network", story="is cut off")
        self.machine.look()

    def disk(self, draw: random.Random) -> None:
        self._break(draw, self._node(draw), "disk", story="sees no disk")
        self.machine.look()

    def slurmd(self, draw: random.Random) -> None:
        self._break(draw, self._node(draw), "daemon", story="has no slurmd")
        self.machine.look()

    def slurmctld(self, draw: random.Random) -> None:
        """Kill slurmctld, and start it again."""
        forgets = draw.random() < 0.6
        self.say("slurmctld is dead" + ", and forgets" * forgets)
        if forgets:
            self.to_end.clear()
            self.machine.disturb()
            self.machine.forget()
        self.machine.dead = True
        self.machine.later(draw.choice([0.5, 4.0, 20.0]), self._mend_slurmctld)

    def _mend_slurmctld(self) -> None:
        self.machine.dead = False
        self.say("slurmctld runs")

    def drain(self, draw: random.Random) -> None:
        node = self._node(draw)
        node.drain = "" if node.drain else "an administrator"
        self.say(f"{node.name} is {'drained' if node.drain else 'resumed'}")

    def advance(self, draw: random.Random) -> None:
        self.pass_s(draw.choice([0.3, 1, 1, 3, 3, 10, 40]))

    def _slurm_job(self, draw: random.Random, *states: str) -> BatchJob | None:
        """Choose a Slurm job in one of the states that an administrator can reach."""
        nodes = self.machine.nodes
        there = [
            job
            for job in self.machine.queue.values()
            if job.comment and job.state in states and all(nodes[name].answers for name in job.nodes)
        ]
        return draw.choice(there) if there and not self.machine.dead else None

    def requeue(self, draw: random.Random) -> None:
        if (job := self._slurm_job(draw, "RUNNING")) is not None:
            self.say(f"Slurm job {job.id} is requeued")
            self.machine.disturb(job.nodes[0])
            job.state, job.start_s, job.starts_s = "PENDING", 0.0, self.machine.now + 3.0
            for process in [p for p in self.machine.processes if p.slurm == job.id]:
                self.machine.terminate(process)

    def admin_cancel(self, draw: random.Random) -> None:
        if (job := self._slurm_job(draw, "RUNNING", "PENDING")) is not None:
            self.say("an administrator:")
            for process, attempt in self.machine.running():
                if process.slurm == job.id and process.key not in self.machine.disturbed:
                    self.to_end[attempt.job] = attempt.number
            self.machine.disturb(job.nodes[0])
            self.ended_in_slurm.add(job.id)
            self.cancelled.add(int(job.comment.split(":")[2]))
            self.slurm_tool(job, "scancel", str(job.id))

    def admin_suspend(self, draw: random.Random) -> None:
        if (job := self._slurm_job(draw, "RUNNING")) is not None:
            self.say("an administrator:")
            self.suspended.add(job.id)
            self.machine.disturb(job.nodes[0])
            self.slurm_tool(job, "scontrol", "suspend", str(job.id))

    def slurm_tool(self, job: BatchJob, tool: str, *words: str) -> None:
        getattr(self.slurm_of(self.machine), f"_{tool}")(words, "")

    def unheard(self, draw: random.Random) -> None:
        """Let the next calls have no answer, whether they do something or not."""
        self.machine.unheard, self.machine.heard = draw.choice([1, 3]), draw.random() < 0.5
        done = "carried out without an answer" if self.machine.heard else "lost"
        self.say(f"calls of Slurm are {done}: {self.machine.unheard}")

    def slow(self, draw: random.Random) -> None:
        self.machine.delay_s = draw.choice([0.02, 1.0, 5.0])
        self.say(f"calls of Slurm take {self.machine.delay_s:g} s")

    def kill(self, draw: random.Random) -> None:
        self.machine.kill_in, self.machine.torn = draw.randrange(20), draw.random() < 0.3
        self.pass_s(draw.choice([1, 10]))

    def outage(self, draw: random.Random) -> None:
        until_s = self.machine.now + draw.choice([0, 1, 10, 30])
        self.stop()
        self.say(f"no coordinator until {until_s - BEGIN_S:g}")
        self.machine.look()
        while (next_s := self.machine.next_s) <= until_s:
            self.machine.now = max(self.machine.now, next_s)
            self.machine.look()
        self.machine.now = until_s
        self.machine.look()
        self.begin(self.home)
        self.coordinator.turn()

    def pass_s(self, seconds: float) -> None:
        machine = self.machine
        until_s = machine.now + seconds
        for _ in range(10 * TURNS):
            machine.look()
            self.poller.work()
            timer_s = self.coordinator.next_timer_s()
            timer_s = math.inf if timer_s is None else timer_s - machine.ahead_s
            if self.poller.rung or timer_s <= machine.now or self.slurm.urgent():
                self.coordinator.turn()
                self.check()
                continue
            if self.quiet and not self.jobs and not self.open():
                return
            next_s = max(machine.now, min(timer_s, machine.next_s, self.poller.next_s))
            if next_s > until_s:
                machine.now = until_s
                machine.look()
                self.coordinator.turn()
                return
            machine.now = next_s
        raise Broken("time passes", f"it is {machine.now - BEGIN_S:g}")

    def finish(self) -> None:
        machine = self.machine
        self.say("everything is mended")
        machine.dead, machine.unheard, machine.delay_s, self.quiet = False, 0, 0.02, True
        machine.repairs.clear()
        for node in machine.nodes.values():
            if not (node.power and node.network and node.daemon and node.disk):
                self.machine.broke_s[node.name] = self.machine.now
            node.power = node.network = node.daemon = node.disk = True
            node.drain = ""
        machine.look()
        for job in machine.queue.values():
            if job.id in self.suspended and job.state == "SUSPENDED":
                self.slurm_tool(job, "scontrol", "resume", str(job.id))
        node = machine.nodes[NODES[machine.seed % len(NODES)]]
        if (
            self.setting.suits == "counted"
            and machine.seed % 2
            and not any(node.name in job.nodes and job.start_s for job in self.open())
        ):
            node.drain = "an administrator, for good"  # there is room for every job on the others
        super().finish()
        down = [node.name for node in machine.nodes.values() if node.down]
        if down and not self.machine.dead:
            self.quiet = False
            self.pass_s(2 * KNOCKS_S)
            self.quiet = True
            if any(node.down for node in machine.nodes.values()):
                raise Broken("who is back is resumed", f"{down}")
        if left := self.open():
            raise Broken("no Slurm job is left", f"{left}")

    # -- rules -------------------------------------------------------------------------------------------

    def open(self) -> list[BatchJob]:
        """List the Slurm jobs that have not ended."""
        return [job for job in self.machine.queue.values() if not job.final]

    def _check_end(self, job_id: int) -> None:
        super()._check_end(job_id)
        entry, number = self.coordinator.job_table.entry(job_id), self.to_end.get(job_id)
        if number is None or entry is None or entry.stage is Stage.CANCELLED:
            return
        deadline_s = entry.spec.deadline_s or math.inf
        if entry.stage is Stage.KILLED and entry.trouble == DEADLINE and deadline_s <= self.machine.latest:
            return  # it passed before that was known
        result = self.machine.attempts[job_id, number].result
        if result is not None and result.how == "interrupted" and result.signal == 15:
            raise Broken("who was cancelled in Slurm is", f"job {job_id} is {entry.stage}, {entry.attempt}")

    def may_be_cancelled(self, entry: Entry) -> bool:
        by_admin = self.machine.ran_in.get((entry.id, entry.attempt)) in self.ended_in_slurm
        return by_admin or super().may_be_cancelled(entry)

    def may_be_lost(self, attempt: Attempt) -> bool:
        """On several nodes, ranks may have died with one; then the attempt is lost, and no failure."""
        machine = self.machine
        nodes = {NODES[core // CPUS] for core in machine.orders[attempt.job, attempt.number].cores}
        began_s = attempt.state.started_s if attempt.state is not None else 0.0
        return len(nodes) > 1 and any(machine.broke_s.get(name, -1.0) >= began_s for name in nodes)

    def may_happen(self, name: str, jobs: Sequence[int]) -> None:
        super().may_happen(name, jobs)
        self.to_end.clear()

    def _check_requests(self) -> None:
        """Look whether supervisors have heard what they are asked for, where nothing is in the way."""
        waits: dict[tuple[int, int], float] = {}
        for process, attempt in self.machine.running() if self.quiet else ():
            entry, node = self.jobs.get(attempt.job), self.machine.nodes[process.node]
            reached = node.answers and node.sees_disk and not process.stopped
            current = entry is not None and entry.attempt == attempt.number
            if entry is not None and current and reached and entry.want and entry.request > attempt.done:
                key = entry.id, entry.request
                waits[key] = self._asked.get(key, self.machine.now)
                if self.machine.now > waits[key] + HEARD_S:
                    raise Broken("a request is heard", f"job {entry.id} is to {entry.want}")
        self._asked = waits

    def _delay_notice(self) -> None:
        """Begin anew to wait until it is known who was lost."""
        for loss in self.machine.losses.values():
            loss.by_s = self.machine.now + self.machine.lease_s + NOTICED_S

    def _check_losses(self) -> None:
        """Look whether it is known in time who has died with its node."""
        machine = self.machine
        if machine.dead or machine.unheard or machine.delay_s > 0.1:
            self._delay_notice()
        for key, loss in list(machine.losses.items()):
            job = machine.queue.get(machine.ran_in[key])
            loss.fenced |= machine.now >= machine.nodes[loss.node].silent_since
            loss.fenced |= job is not None and job.final
            entry = self.jobs.get(key[0])
            if entry is None or entry.attempt != key[1] or not entry.alive:
                del machine.losses[key]
            elif entry.phase is not Phase.RUNNING or machine.ran_in[key] in self.suspended:
                loss.by_s = machine.now + machine.lease_s + NOTICED_S
            elif machine.now > loss.by_s + loss.fenced * (machine.lease_s + MARGIN_S):
                raise Broken("who is lost is known to be", f"attempt {key[1]} of job {key[0]}")

    def _check_starts(self) -> None:
        """Look whether what is to run runs, where nothing is in the way."""
        machine, waits = self.machine, dict[tuple[int, int], float]()
        run = self.attempts_that_run()
        # Slurm holds as many CPUs of each node as of the one that gives most: more than were given.
        crowded = {
            job.comment.split(":", 2)[2]
            for job in machine.queue.values()
            if job.comment
            and job.state == "PENDING"
            and any(machine.room(name) < job.cpus for name in job.nodes)
        }
        holders = {
            job.comment.split(":", 2)[2]: job for job in machine.queue.values() if job.holds and job.comment
        }
        for entry in self.jobs.values():
            job, runs = holders.get(f"{entry.id}:{entry.attempt}"), entry.phase is Phase.RUNNING
            if job and runs and entry.alive and entry.hosts and set(job.nodes) != set(entry.hosts):
                detail = f"job {entry.id} is on {job.nodes}, counted on {entry.hosts}"
                raise Broken("a job is counted where it is", detail)
        for entry in self.jobs.values() if self.quiet else ():
            key = entry.id, entry.attempt
            waits_for_room = f"{key[0]}:{key[1]}" in crowded
            if entry.alive and entry.phase is Phase.RUNNING and key not in run and not waits_for_room:
                waits[key] = self._waits.get(key, machine.now)
                most_s = 2 * (machine.lease_s + MARGIN_S) + machine.timeout_s + STARTS_S
                if machine.now > waits[key] + most_s:
                    raise Broken("what is to run runs", f"attempt {key[1]} of job {key[0]}")
        self._waits = waits

    def attempts_that_run(self) -> set[tuple[int, int]]:
        return {(attempt.job, attempt.number) for _, attempt in self.machine.running()}

    def cpus_in_use(self) -> Counter[str]:
        """Count the CPUs of each node that jobs of others use."""
        return Counter()

    def _check_attempts(self) -> None:
        self._check_requests()
        self._check_losses()
        self._check_starts()
        used = self.cpus_in_use()
        for process, attempt in self.machine.running():
            if process.stopped:  # and ended when its node is back
                continue
            # An administrator may do that, and who is to end goes on until it has.
            if process.slurm not in self.suspended and attempt.want != "end":
                used.update(dict.fromkeys(process.nodes, process.cpus))
            entry, key = self.jobs.get(attempt.job), f"attempt {attempt.number} of job {attempt.job}"
            if entry is None or entry.attempt != attempt.number or not entry.alive:
                raise Broken("nothing runs that nobody knows", key)
        if max(used.values(), default=0) > CPUS:
            raise Broken("no CPU is given twice", f"{dict(used)} of {CPUS}")
        self._check_sums([attempt for _, attempt in self.machine.running()], {})


if __name__ == "__main__":
    sys.exit(world.main(SlurmHistory))
