"""The layer below the OpenCL programs of jobs on the nodes, which parks those that know nothing of tenbin.

A parked program goes on on its own device of its node. Each node has the layer's library from a short job
that compiles it there, because a library of another node may not fit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.attempts.records import Order, RunState
from agent.opencl_layer import build
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.engines.common import layer_words
from scheduler.engines.slurm.client.node_programs import run_on_node
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.nodes.devices import Devices, Slot
from scheduler.engines.slurm.site import Site
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec

PROGRAM = [sys.executable, "-P", "-m", "agent.opencl_layer.build"]
LIMIT_S = 300.0
MEMORY_MB = 1000
AT_ONCE = 16
AGAIN_S = 30.0  # until a node that was busy, or did not answer, is asked again
log = logging.getLogger("tenbin")


class NodeLayers:
    """The layer's library on each node with devices, by a thread of its own, and the jobs above it.

    Args:
        store: folder of the coordinator; keeps what the nodes have said.
    """

    trials = None

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
        if why := layer_words.left_out(spec):
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
        return layer_words.COMPILING.format(where=f" on {node}")

    def below(self, order: Order, job: Entry) -> Order:
        """Return the order by which the supervisor on the node puts the layer below the program."""
        slot = self._devices.slots[job.devices[0]]
        library = self._libraries.get(self._name(slot))
        if library is None:
            return order
        # On the node's own disk, because it is for sockets; the name cannot be guessed.
        folder = f"/tmp/tenbin-{hashlib.sha256(order.mark.encode()).hexdigest()[:16]}"
        return replace(order, layer=folder, library=library, device=slot.key)

    def told(self, job: Entry, state: RunState | None) -> str:
        """Say whether the programs of a job that runs can be parked now, or why not."""
        if state is None:
            return layer_words.UNBEGUN
        if state.paused:
            return layer_words.paused(job, state)
        if state.moves == "can be moved":
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
            found = json.loads(self._file.read_text())
            if found["sources"] == self._sources:
                return {str(name): str(path) for name, path in found["libraries"].items()}
        return {}

    def _work(self) -> None:
        """Ask the nodes, until each has answered."""
        wanted = {self._name(slot) for slot in self._devices.slots if not slot.gres}
        while not self._ended.is_set() and (left := wanted - self._asked):
            with suppress(Unavailable):
                nodes = [node for node in self._site.slurm.nodes() if node.name in left and node.usable]
                # The first one compiles for all that share its user's home folder.
                for group in filter(None, (nodes[:1], nodes[1:])):
                    self._ask(group)
            if wanted - self._asked:
                self._ended.wait(AGAIN_S)

    def _ask(self, nodes: Sequence[SlurmNode]) -> None:
        for first in range(0, len(nodes), AT_ONCE):
            group = nodes[first : first + AT_ONCE]
            # Nobody waits for these threads when the coordinator ends.
            asked = [threading.Thread(target=self._ask_one, args=(node,), daemon=True) for node in group]
            for thread in asked:
                thread.start()
            for thread in asked:
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
