"""The nodes of the coordinator: what is free, which jobs are there, and what was measured of each."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from profiles.card import card
from profiles.errors import UserError
from profiles.store import Store, load
from tenbin.page.explainer import Explainer
from tenbin.page.mirror import Mirror
from tenbin.page.rows import BEGUN
from tenbin.text import bounded, headline, limits, subject

MOST_NODES, MOST_JOBS = 400, 50


class NodeView:
    """The Node view of a mirror; profiles are read again when they change.

    Args:
        store: the stored profiles; None: the default place.
    """

    def __init__(self, mirror: Mirror, explainer: Explainer, store: Store | None = None) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._store = store or Store()
        self._profiles: dict[str, tuple[str, dict[str, Any] | None]] = {}  # by node, with the path

    def find(self) -> dict[str, Any]:
        """Return the nodes as the coordinator said last, each with its jobs and its newest profile.

        The profile of this machine stands with its first pool; a pool of other nodes has none.
        """
        status = self._explainer.status
        table = status["nodes"] if status else []
        begun = [row for row in list(self._mirror.rows.values()) if row.stage in BEGUN]
        of_here = all("units" in node for node in table)  # cores or devices of this machine
        nodes = []
        for node in table[:MOST_NODES]:
            jobs = [row for row in begun if node["name"] in row.lane]
            shown = [{"id": row.id, "label": row.label, "name": row.name} for row in jobs[:MOST_JOBS]]
            nodes.append({**node, "jobs": shown, "job_count": len(jobs)})
            if "units" not in node:
                nodes[-1]["profile"] = self._profile(node["name"])
            elif of_here and len(nodes) == 1:
                nodes[-1]["profile"] = self._profile(socket.gethostname())
        return {"nodes": nodes, "left_out": max(len(table) - MOST_NODES, 0), "known": status is not None}

    def measured_as(self, name: str) -> str:
        """Return the node under whose name a node, or a pool of this machine, was measured."""
        table = self._explainer.status["nodes"] if self._explainer.status else []
        pools = {node["name"] for node in table if "units" in node}
        return socket.gethostname() if name in pools and len(pools) == len(table) else name

    def _profile(self, node: str) -> dict[str, Any] | None:
        """Describe the newest profile of a node; None: it has none that can be read."""
        paths = self._store.of_node(node)
        if not paths:
            return None
        path = str(paths[0])
        if self._profiles.get(node, ("",))[0] != path:
            try:
                self._profiles[node] = path, _told(paths[0])
            except UserError:
                self._profiles[node] = path, None
        return self._profiles[node][1]


def _told(path: Path) -> dict[str, Any]:
    """Describe a profile: its card, and the coefficients of its models."""
    profile = load(path)
    found = card(profile)
    figures = [
        {
            "name": figure.name,
            "value": f"{bounded(figure.value, figure.low, figure.high)} {figure.unit}",
            "interval": limits(figure.low, figure.high),
            "meaning": figure.meaning,
            "emulated": figure.emulated,
        }
        for figure in found.figures
    ]
    coefficients = [
        {
            "probe": model.probe,
            "quantity": f"{model.quantity} {subject(model)}".strip(),
            "name": one.name,
            "value": f"{bounded(one.value, one.low, one.high)} {one.unit}",
            "interval": limits(one.low, one.high),
            "quality": str(one.quality.value),
            "emulated": model.emulated,
        }
        for model in profile.models
        for one in model.coefficients
    ]
    return {
        "headline": headline(profile),
        "figures": figures,
        "unusual": found.unusual,
        "coefficients": coefficients,
    }
