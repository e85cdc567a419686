"""``tenbin nodes``: the nodes of the cluster, their jobs and regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenbin.commands.options import HomeOption, JsonOption


def nodes(home: HomeOption = None, json: JsonOption = False) -> None:
    """List the nodes: resources of each, how much is free, its jobs, and its region."""
    from json import dumps

    from tenbin.client.client import Client
    from tenbin.text import say

    found = Client(home).call("GET", "/nodes")
    say(dumps(found, indent=1) if json else "\n".join(node_lines(found)))


def node_lines(found: list[dict[str, Any]]) -> list[str]:
    """Write a line for each pool, region and node."""
    shared = {node["name"] for node in found if "up" in node and len(node.get("regions", ())) > 1}
    return [line for node in found for line in (_pool(node, shared) if "units" in node else [_node(node)])]


def _pool(pool: dict[str, Any], shared: set[str]) -> Iterator[str]:
    """Yield the line of a pool of units, then one line for each region of the pool."""
    yield f"{pool['name']}: {pool['free']} of {pool['units']} free"
    for region in pool["regions"]:
        low, high = region["job_units"]
        sizes = f"{low} to {high}" if low < high else f"{high}"
        where = (f"{name} ({n})" if name in shared else name for name, n in region["places"].items())
        held = f"{region['used']} of {region['units']} used"
        yield f"  region {region['name']}, jobs of {sizes}: {held}; {', '.join(where)}"


def _node(node: dict[str, Any]) -> str:
    free = ", ".join(f"{node['free'][k]:g} of {v:g} {k}" for k, v in node.get("capacity", {}).items())
    jobs = ", ".join(map(str, node["jobs"])) or "none"
    regions = ", ".join(node.get("regions", ()))
    inside = f"; region {regions}" if regions else ""
    down = "" if node["up"] else f"; DOWN{node['trouble'] and ': '}{node['trouble']}"
    return f"{node['name']}: {free and f'{free} free; '}jobs: {jobs}{inside}{down}"
