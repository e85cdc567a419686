"""Checks that nodes can run what tenbin starts there: the same tenbin, and a folder that all nodes share.

Each node is asked by a job of a second.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from agent.doctor.finding import Finding, limited, ok
from profiles.errors import Unavailable
from scheduler.engines.slurm.client.node_programs import ask_nodes
from scheduler.engines.slurm.client.parse import SlurmNode

MOST = 64  # nodes that are asked
LIMIT_S = 30.0
PREFIX = "tenbin-node "
PRINT_VERSION = (
    "import sys, pathlib, importlib.metadata as m; f = pathlib.Path(sys.argv[1]); "
    f"print('{PREFIX}' + m.version('tenbin'), f.read_text() if f.exists() else '-')"
)


def check(nodes: Sequence[SlurmNode], folder: Path) -> Iterator[Finding]:
    """Ask the nodes with a free CPU; ``folder`` is where the coordinator keeps its jobs."""
    asked = [node for node in nodes if node.usable and node.cpus_used < node.cpus and node.partitions][:MOST]
    if not asked:
        what = "none has a CPU free to be asked whether tenbin is there"
        yield limited("nodes", what, "", "ask again later")
        return
    existing = (path for path in (folder, *folder.parents) if path.is_dir() and os.access(path, os.W_OK))
    place = next(existing, None)
    if place is None:
        yield limited("nodes", f"{folder} cannot be made here", "", "name another folder in TENBIN_HOME")
        return
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=".tenbin-", suffix=".seen") as file:
        file.write("seen")
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        answers = ask_nodes(asked, ["-c", PRINT_VERSION, file.name], PREFIX, limit_s=LIMIT_S)
    mine = version("tenbin")
    able = sum(isinstance(answer, str) and answer.split()[1] == mine for answer in answers)
    if able:
        yield ok("nodes", f"{able} of {len(asked)} that were asked have this tenbin ({mine})")
    for node, answer in zip(asked, answers, strict=True):
        yield from _node(node.name, answer, mine, place)
    if able and all(answer.endswith("seen") for answer in answers if isinstance(answer, str)):
        yield ok("nodes", f"they all see {place}")


def _node(name: str, answer: str | Unavailable, mine: str, place: Path) -> Iterator[Finding]:
    """Tell what keeps a node from running tenbin."""
    if isinstance(answer, Unavailable):
        yield limited("nodes", f"{name} cannot run tenbin: {answer.what}", "", answer.remedy)
    elif (theirs := answer.split()[1]) != mine:
        yield limited("nodes", f"{name} has tenbin {theirs}", f"this one is {mine}", "update it there")
    elif not answer.endswith("seen"):
        yield limited(
            "nodes",
            f"{name} does not see {place}",
            "jobs' files go through a folder that all nodes share",
            "share it (NFS), or name a shared one in TENBIN_HOME; measuring needs none",
        )
