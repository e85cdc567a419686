"""Whether nodes can run what tenbin starts there: the same tenbin, and a folder that they all share.

Found out by a job of a second on each node, all at the same time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from agent.doctor.finding import Finding, limited, ok
from scheduler.engines.slurm.admin import asking
from scheduler.engines.slurm.admin.allocation import explained
from scheduler.engines.slurm.client.parse import SlurmNode

MOST = 64  # nodes that are asked
SIDE_BY_SIDE = 8
LIMIT_S = 30.0
ASK = (
    "import sys, pathlib, importlib.metadata as m; f = pathlib.Path(sys.argv[1]); "
    "print('tenbin-node', m.version('tenbin'), f.read_text() if f.exists() else '-')"
)


def check(nodes: Sequence[SlurmNode], folder: Path) -> Iterator[Finding]:
    """Ask those of the nodes that have a CPU free; ``folder`` is where the coordinator keeps its jobs."""
    asked = [node for node in nodes if node.usable and node.cpus_used < node.cpus and node.partitions][:MOST]
    if not asked:
        yield limited(
            "nodes", "none has a CPU free to be asked whether tenbin is there", "", "ask again later"
        )
        return
    places = (path for path in (folder, *folder.parents) if path.is_dir() and os.access(path, os.W_OK))
    place = next(places, None)
    if place is None:
        yield limited("nodes", f"{folder} cannot be made here", "", "name another folder in TENBIN_HOME")
        return
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=".tenbin-", suffix=".seen") as file:
        file.write("seen")
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            answers = list(pool.map(lambda node: ask(node, Path(file.name)), asked))
    mine = version("tenbin")
    able = [node.name for node, (found, _, _) in zip(asked, answers, strict=True) if found == mine]
    if able:
        yield ok("nodes", f"{len(able)} of {len(asked)} that were asked have this tenbin ({mine})")
    for node, (found, seen, trouble) in zip(asked, answers, strict=True):
        if not found:
            yield limited("nodes", f"{node.name} cannot run tenbin: {trouble[0]}", "", trouble[1])
        elif found != mine:
            yield limited(
                "nodes", f"{node.name} has tenbin {found}", f"this one is {mine}", "update it there"
            )
        elif not seen:
            yield limited(
                "nodes",
                f"{node.name} does not see {place}",
                "jobs' files go through a folder that all nodes share",
                "share it (NFS), or name a shared one in TENBIN_HOME; measuring needs none",
            )
    if able and all(seen for found, seen, _ in answers if found):
        yield ok("nodes", f"they all see {place}")


def ask(node: SlurmNode, file: Path) -> tuple[str, bool, tuple[str, str]]:
    """Its tenbin's version, whether it sees the file; else why it could not be asked, and the remedy."""
    done = asking.ask(node, [sys.executable, "-P", "-c", ASK, str(file)], LIMIT_S)
    if done is None:
        return "", False, (f"it did not answer within {LIMIT_S:g} s", f"see: scontrol show node {node.name}")
    for line in done.stdout.splitlines():
        if line.startswith("tenbin-node "):
            return line.split()[1], line.endswith("seen"), ("", "")
    return "", False, explained(done.stderr.splitlines(), done.returncode)
