"""Nodes of a Slurm cluster under power caps and one budget: their ranges of caps, and power at rest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from agent.paths import node_states
from agent.power.node_power import NodePower
from profiles.errors import BadInput, Unavailable
from profiles.files.whole_files import write_whole
from profiles.records import Profile
from scheduler.engines.common.machine import cap_lines, scaling_of
from scheduler.engines.slurm.client.node_programs import ask_nodes
from scheduler.engines.slurm.discovery.slurm_machine import SlurmMachine
from scheduler.engines.slurm.site import Site, SitePower
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import policy_class
from scheduler.prediction.profiles import CAP_STEP_W, with_power

SIDE_BY_SIDE = 32
LIMIT_S = 40.0
REAL = "/sys"
LEAST_W = 1.0  # that a node in use is charged beyond its rest
HINT = "caps take root on the nodes, and processors with RAPL; to try it on emulated ones see docs/slurm.md"


def capped_nodes(
    machine: SlurmMachine,
    home: Path,
    policy: str,
    *,
    budget_w: float,
    profile: Profile | None,
    emulated: str,
) -> SlurmMachine:
    """Put the cluster's nodes under caps: a job has whole nodes, all of them under the same cap.

    Args:
        machine: the cluster, whole nodes as units.
        budget_w: what all nodes may draw together, those without a job at rest among them.
        profile: of one of the nodes; says what a node draws and how caps and sizes change the speed.
        emulated: folder with the emulated tree of each node, by name; empty: they are real.

    Raises:
        BadInput: the policy chooses no caps, or the budget does not carry the nodes at rest and one in use.
        Unavailable: no node can be capped.
    """
    if "power" not in policy_class(policy).suits:
        raise BadInput(f"--power-budget: policy {policy} chooses no power caps", "choose parm or fifo-mid")
    site = machine.site
    if emulated and not Path(emulated).is_dir():
        raise BadInput(f"--emulate {emulated}: there is no such folder", "see: docs/slurm.md")
    sysfs = f"{Path(emulated).absolute()}/%N" if emulated else REAL
    found = _of_nodes(site, sysfs, home / f"power-{site.partition}.json")
    names = {one.emulated for one in found.values()}
    if bool(emulated) != bool(names - {""}) or len(names) > 1:
        what = f"the nodes are not alike: {', '.join(name or 'real' for name in sorted(names))}"
        raise BadInput(what, "emulate all of them, or none")
    known = [found.get(host.name) or _likely(list(found.values())) for host in site.inventory.hosts]
    pool, rest_w = _power(machine.cluster.pools[0], known, profile, names.pop())
    free_w = budget_w - rest_w
    if free_w < pool.power_w(1, pool.caps_w[0]):
        least_w = rest_w + pool.power_w(1, pool.caps_w[0])
        what = f"--power-budget {budget_w:g}: {pool.units} nodes draw {rest_w:.4g} W at rest"
        raise BadInput(f"{what}, {least_w:.4g} W with one at its lowest cap", "give at least that")
    unit = machine.unit
    if profile is not None:
        unit = replace(unit, scaling=scaling_of(profile), caps=cap_lines(profile, pool, 1))
    power = SitePower(sysfs, node_states(), rest_w, known[0].emulated)
    return replace(machine, cluster=Cluster((pool,), free_w), unit=unit, site=replace(site, power=power))


def _power(
    pool: Pool, nodes: Sequence[NodePower], profile: Profile | None, emulated: str
) -> tuple[Pool, float]:
    """Return the pool, and the power of all nodes at rest. A node in use is charged what it draws beyond."""
    lowest, highest = max(node.lowest_w for node in nodes), min(node.highest_w for node in nodes)
    rests, beside_w = [node.rest_w for node in nodes], max(node.beside_w for node in nodes)
    if profile is None:
        steps = range(math.floor(lowest / CAP_STEP_W) + 1, math.ceil(highest / CAP_STEP_W))
        caps = (lowest, *(CAP_STEP_W * step for step in steps), highest) if highest > lowest else (highest,)
    else:
        if profile.settings.emulated != emulated:
            other = profile.settings.emulated or "a real machine"
            what = f"--profile: it was measured on {other}, not on {emulated or 'real nodes'}"
            raise BadInput(what, "see: tenbin list")
        whole, note = with_power(pool, profile)
        if not whole.caps_w:
            raise BadInput(f"--profile: {note}", "measure it: tenbin profile --only power")
        caps = tuple(cap for cap in whole.caps_w if cap <= highest) or (highest,)
        rests, beside_w = [whole.idle_w] * len(nodes), whole.base_w
    base_w = max(beside_w - min(rests), LEAST_W - caps[0])
    return replace(pool, base_w=base_w, peak_w=highest, caps_w=caps), sum(rests)


def _of_nodes(site: Site, sysfs: str, file: Path) -> dict[str, NodePower]:
    """Ask free nodes for their caps, take the last answers of the others, and write them down.

    Raises:
        Unavailable: nothing is known of any.
    """
    hosts = {host.name for host in site.inventory.hosts}
    known = {name: one for name, one in _read(file).items() if bool(one.emulated) == (sysfs != REAL)}
    asked = [n for n in site.slurm.nodes() if n.name in hosts and n.usable and not n.cpus_used]
    found = {name: power for name, power in known.items() if name in hosts}
    program = ["-m", "agent.power.node_power", sysfs, str(node_states())]
    answers = ask_nodes(asked, program, "{", limit_s=LIMIT_S, partition=site.partition, at_once=SIDE_BY_SIDE)
    for node, answer in zip(asked, map(_node_power, answers), strict=True):
        if isinstance(answer, NodePower):
            found[node.name] = answer
        elif node.name not in found:  # a node with an earlier answer may have been taken by a job just now
            raise Unavailable(f"--power-budget: {node.name}: {answer.what}", answer.remedy)
    if not found:
        raise Unavailable("--power-budget: no node is free to be asked for its caps", "start it when one is")
    write_whole(file, json.dumps({name: asdict(power) for name, power in sorted(found.items())}))
    return found


def _read(file: Path) -> dict[str, NodePower]:
    try:
        return {name: NodePower(**one) for name, one in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError):
        return {}


def _likely(known: Sequence[NodePower]) -> NodePower:
    """Guess for a node that could not be asked: it draws as much as any, and can do what all can."""
    return NodePower(
        max(one.lowest_w for one in known),
        min(one.highest_w for one in known),
        max(one.rest_w for one in known),
        max(one.beside_w for one in known),
        known[0].emulated,
    )


def _node_power(answer: str | Unavailable) -> NodePower | Unavailable:
    """Read the answer of ``agent.power.node_power``."""
    if isinstance(answer, Unavailable):
        return answer
    said: Mapping[str, object] = json.loads(answer)
    if "trouble" in said:
        return Unavailable(str(said["trouble"]), str(said["remedy"]) or HINT)
    return NodePower(**said)  # type: ignore[arg-type]
