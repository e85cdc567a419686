"""Short programs on single nodes: jobs of a second, which say what the node has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from profiles.errors import Unavailable
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.tools import step_command


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables of a Slurm job around it."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    conf = os.environ.get("SLURM_CONF")
    return outside | ({"SLURM_CONF": conf} if conf else {}) | {"LC_ALL": "C.UTF-8"}


def run_on_node(
    node: SlurmNode,
    program: Sequence[str],
    limit_s: float,
    *,
    partition: str = "",
    memory_mb: int = 64,
    gres: str = "",
    minutes: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run a program on a node.

    Args:
        partition: empty for the node's first one.
        gres: generic resources of the job, as ``--gres`` takes them.
        minutes: Slurm's limit on it.

    Raises:
        Unavailable: the program did not end within ``limit_s``.
    """
    where = partition or node.partitions[0]
    command = step_command([node.name], where, program, memory_mb=memory_mb, gres=gres, minutes=minutes)
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=clean_environment(),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"it did not answer within {limit_s:g} s"
        raise Unavailable(what, f"see: scontrol show node {node.name}") from None


def ask_nodes(
    nodes: Sequence[SlurmNode],
    python: Sequence[str],
    prefix: str,
    *,
    limit_s: float,
    partition: str = "",
    at_once: int = 8,
) -> list[str | Unavailable]:
    """Run a Python program on each of the nodes, side by side.

    Args:
        python: arguments of the interpreter, which is at the same path on every node.
        prefix: the beginning of the line that is the program's answer.

    Returns:
        For each node the answer with its prefix, or why there is none.
    """

    def ask(node: SlurmNode) -> str | Unavailable:
        try:
            done = run_on_node(node, [sys.executable, "-P", *python], limit_s, partition=partition)
        except Unavailable as error:
            return error
        answers = (line for line in done.stdout.splitlines() if line.startswith(prefix))
        return next(answers, None) or step_failure(done.stderr.splitlines(), done.returncode)

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, nodes))


def step_failure(errors: Sequence[str], code: int) -> Unavailable:
    """Explain why a program failed on a node, from the lines that srun and Python wrote."""
    said = "\n".join(errors)
    words = [line for line in errors if line.strip()]
    last = words[-1].removeprefix("srun: error: ") if words else f"exit code {code}"
    same = f"install the same tenbin there, at the same path as here ({sys.prefix})"
    for sign, what, remedy in (
        ("No module named", "it has no tenbin in {python}", same),
        ("No such file or directory", "it has no {python}", same),
        ("Permission denied", "this user may not run {python} there", same),
        ("Unable to confirm allocation", "its slurmd does not know the job", "see its slurmd's log"),
        ("onnection", "its slurmd does not answer", "restart slurmd there"),
        ("Node failure", "it was lost while it was measured", "see: sinfo -R"),
    ):
        if sign in said:
            return Unavailable(f"{what.format(python=sys.executable)} ({last})", remedy)
    return Unavailable(f"it refused the probe ({last})", "try there by hand: tenbin profile --quick")
