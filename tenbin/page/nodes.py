"""The nodes of the coordinator: what is free, which jobs are there, and what was measured of each."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.attempts.folder import Attempt
from agent.node_profile.identity import node_kind
from profiles.card import card
from profiles.errors import BadInput, UserError
from profiles.files.store import JobStore, Store, load, load_job
from profiles.jobs import JobProfile
from profiles.records import Profile
from scheduler.engines.common.job_folders import JobFolders
from scheduler.policies.sharing.pairing import directions
from tenbin.page.explainer import Explainer
from tenbin.page.mirror import BEGUN, Mirror, Row
from tenbin.text import bounded, headline, limits, subject

MOST_NODES, MOST_JOBS = 400, 50
LOOKED_AT = 3  # jobs of a node whose samples are looked at for a sign of life
MOST_PROGRAMS = 12  # of the table of pairs


class NodeView:
    """The Node view of a mirror; profiles are read again when they change.

    Args:
        store: the stored profiles; None: the default place.
    """

    def __init__(self, mirror: Mirror, explainer: Explainer, store: Store | None = None) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._store = store or Store()
        self._folders = JobFolders(mirror.store)
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
            caps = [row.cap_w for row in jobs if row.cap_w is not None and row.stage != "suspended"]
            more = {"capped_jobs": len(caps), "caps_w": sum(caps), "sign_of_life": self._sign_of_life(jobs)}
            nodes.append({**node, "jobs": shown, "job_count": len(jobs), **more})
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

    def _sign_of_life(self, jobs: list[Row]) -> dict[str, Any] | None:
        """Return which of the newest jobs took a sample last, and when; None: no job has one."""
        signs = []
        for row in jobs[-LOOKED_AT:]:
            path = self._folders.folder(row.id) / f"attempt-{row.attempt}"
            with suppress(OSError):
                signs.append((Attempt(path).samples.stat().st_mtime, row.label))
        at_s, label = max(signs, default=(None, ""))
        return None if at_s is None else {"at_s": at_s, "job": label}

    def _profile(self, node: str) -> dict[str, Any] | None:
        """Describe the newest profile of a node; None: it has none that can be read."""
        paths = self._store.of_node(node)
        if not paths:
            return None
        jobs = JobStore(self._store.root)
        path = f"{paths[0]} {jobs.paths()[:1]}"
        if self._profiles.get(node, ("",))[0] != path:
            try:
                self._profiles[node] = path, _description(paths[0], jobs)
            except UserError:
                self._profiles[node] = path, None
        return self._profiles[node][1]


def _description(path: Path, jobs: JobStore) -> dict[str, Any]:
    """Describe a profile: its card, the coefficients of its models, and how much programs slow each other."""
    profile = load(path)
    summary = card(profile)
    figures = [
        {
            "name": figure.name,
            "value": f"{bounded(figure.value, figure.low, figure.high)} {figure.unit}",
            "interval": limits(figure.low, figure.high),
            "meaning": figure.meaning,
            "emulated": figure.emulated,
        }
        for figure in summary.figures
    ]
    coefficients = [
        {
            "probe": model.probe,
            "quantity": f"{model.quantity} {subject(model)}".strip(),
            "name": coefficient.name,
            "value": f"{bounded(coefficient.value, coefficient.low, coefficient.high)} {coefficient.unit}",
            "interval": limits(coefficient.low, coefficient.high),
            "quality": str(coefficient.quality.value),
            "emulated": model.emulated,
        }
        for model in profile.models
        for coefficient in model.coefficients
    ]
    return {
        "headline": headline(profile),
        "figures": figures,
        "unusual": summary.unusual,
        "coefficients": coefficients,
        "pairs": _pairs(profile, jobs),
    }


def _pairs(profile: Profile, store: JobStore) -> dict[str, Any] | None:
    """Predict how many times longer each profiled program takes beside each other; None: there is none."""
    programs: list[JobProfile] = []
    for path in list(store.newest(node_kind(profile.inventory).key).values())[:MOST_PROGRAMS]:
        with suppress(BadInput):
            programs.append(load_job(path))
    if not programs:
        return None
    cells = [
        None
        if direction.predicted is None
        else {
            "ratio": direction.predicted.value,
            "interval": limits(direction.predicted.low, direction.predicted.high)
            if math.isfinite(direction.predicted.high)
            else "",
        }
        for direction in directions(programs)
    ]
    names, count = [job.name for job in programs], len(programs)
    return {"programs": names, "cells": [cells[at : at + count] for at in range(0, count * count, count)]}


# -- the pictures of a node's report, drawn in a process of its own ----------------------------------------
#
# That process has pandas, which would cost the page memory and hold up its other answers.


DRAW_S = 120.0
KEPT = 8  # nodes whose pictures are kept


class Measured:
    """The view of what is measured; pictures are drawn again when there is a new profile.

    Args:
        store: the stored profiles; None: the default place.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Store()
        self._kept: OrderedDict[tuple[Path, ...], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, node: str) -> dict[str, Any] | None:
        """Return headline and sections of a node's newest profile; None: nothing was measured.

        Raises:
            BadInput: the pictures cannot be drawn.
        """
        paths = [] if node.startswith(".") or "/" in node else self._store.of_node(node)
        if not paths:
            return None
        key = paths[0], *JobStore(self._store.root).paths()[:1]
        with self._lock:  # one at a time: each takes a processor
            if key not in self._kept:
                self._kept[key] = _drawn(paths[0])
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return self._kept[key]


def _drawn(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "tenbin.report.page", str(path)]
    remedy = f"see what it says by itself: tenbin profile report {path.parent.name} -o report.html"
    try:
        done = subprocess.run(command, capture_output=True, timeout=DRAW_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"{path}: its pictures are not drawn after {DRAW_S:g} s", remedy) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["its process was killed"]
        raise BadInput(f"{path}: {said[-1]}", remedy)
    pictures: dict[str, Any] = json.loads(done.stdout)
    return pictures
