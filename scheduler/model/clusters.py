"""Descriptions of clusters: a count, a short text, or a file.

- ``100``: 100 units of one class, called "node".
- ``512xgpu+512xcpu``: classes, best first.
- ``256xnode[cpu=1,memory=0.5]``: nodes with a capacity for each resource.
- a TOML or JSON file: ``budget_w``, and a list ``pool`` of tables with fields of ``model.Pool``; ``units``
  may be called ``nodes``, and ``capacity`` is a table of resources.
- a CSV file: the list of nodes of Alibaba's GPU trace of 2023 (columns cpu_milli, memory_mib and gpu), as one
  pool "node" with cores, memory_mb and GPUs; models of GPU are not told apart.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import unknown

PART = re.compile(r"(?P<units>\d+)x(?P<name>[A-Za-z_][\w.-]*?)(?:\[(?P<resources>[^\]]*)\])?")
FIELDS = ("name", "units", "nodes", "rank", "capacity", "capacities", "base_w", "peak_w", "idle_w", "caps_w")
REMEDY = "write a count, 512xgpu+512xcpu, 256xnode[cpu=1,memory=1], or name a TOML, JSON or CSV file"
NODE_LIST = {"cpu_milli": ("cpu", 1e-3), "memory_mib": ("memory_mb", 2**20 / 1e6), "gpu": ("gpu", 1.0)}


def parse_cluster(text: str) -> Cluster:
    """Read the cluster that ``text`` describes.

    Raises:
        BadInput: it describes none, or contradicts itself.
    """
    text = text.strip()
    if text.isdecimal():
        return checked((Pool("node", int(text)),), None, text)
    if Path(text).suffix in (".toml", ".json"):
        return _from_file(Path(text))
    if Path(text).suffix == ".csv":
        return _from_node_list(Path(text))
    pools = []
    for rank, part in enumerate(text.split("+")):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise BadInput(f"cluster {text!r}: {part!r} is not understood", REMEDY)
        given = {"name": match["name"], "units": int(match["units"]), "rank": rank}
        if match["resources"] is not None:
            given["capacity"] = _capacity(match["resources"], text)
        pools.append(_pool(given, rank, text))
    return checked(tuple(pools), None, text)


def _capacity(text: str, where: str) -> dict[str, float]:
    capacity: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise BadInput(
                f"cluster {where!r}: {part!r} is not of the form resource=number", REMEDY
            ) from None
        if name.strip() in capacity:
            raise BadInput(f"cluster {where!r}: resource {name.strip()} is given twice", "give it once")
        capacity[name.strip()] = number
    return capacity


def _from_file(path: Path) -> Cluster:
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise BadInput(f"cluster {path}: {error.strerror}", REMEDY) from error
    except ValueError as error:  # of TOML, JSON and UTF-8
        raise BadInput(f"cluster {path}: {error}", f"write valid {path.suffix[1:].upper()}") from error
    if not isinstance(content, dict) or not isinstance(content.get("pool"), list) or not content["pool"]:
        raise BadInput(
            f"cluster {path}: there is no list of pools", 'write [[pool]] name = "gpu", units = 512'
        )
    for key in content:
        if key not in ("pool", "budget_w"):
            raise unknown(f"field of cluster {path}:", key, ("pool", "budget_w"))
    if not all(isinstance(given, dict) for given in content["pool"]):
        raise BadInput(f"cluster {path}: a pool is not a table", 'write [[pool]] name = "gpu", units = 512')
    pools = tuple(_pool(given, rank, str(path)) for rank, given in enumerate(content["pool"]))
    budget = content.get("budget_w")
    return checked(pools, None if budget is None else _number(budget, "budget_w", str(path)), str(path))


def _from_node_list(path: Path) -> Cluster:
    rows = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            table = csv.DictReader(lines)
            for column in NODE_LIST:
                if column not in (table.fieldnames or ()):
                    raise BadInput(f"cluster {path}, line 1: no column {column}", "name a list of nodes")
            for row in table:
                rows.append(
                    {
                        name: _scaled(row, c, by, path, line=table.line_num)
                        for c, (name, by) in NODE_LIST.items()
                    }
                )
    except OSError as error:
        raise BadInput(f"cluster {path}: {error.strerror}", REMEDY) from error
    except ValueError as error:  # of UTF-8
        raise BadInput(f"cluster {path}: {error}", "write valid CSV") from error
    if not rows:
        raise BadInput(f"cluster {path}: no nodes", "list at least one")
    return checked(
        (_pool({"name": "node", "nodes": len(rows), "capacities": rows}, 0, str(path)),), None, str(path)
    )


def _scaled(row: Mapping[str, str | None], column: str, by: float, path: Path, *, line: int) -> float:
    try:
        value = float(row[column] or "")
    except ValueError as error:
        raise BadInput(f"cluster {path}, line {line}: {column} is no number", "mend the line") from error
    if not 0 <= value < math.inf:
        raise BadInput(f"cluster {path}, line {line}: {column} is negative or infinite", "mend the line")
    return value * by


def _pool(given: Mapping[str, Any], rank: int, where: str) -> Pool:
    for key in given:
        if key not in FIELDS:
            raise unknown(f"field of a pool in cluster {where}:", key, FIELDS)
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise BadInput(f"cluster {where}: pool {rank + 1} has no name", 'add name = "gpu"')
    at = f"cluster {where}: pool {name}"
    if ("units" in given) == ("nodes" in given):
        raise BadInput(f"{at} needs either units or nodes", "give one of them")
    units = given.get("units", given.get("nodes"))
    if not isinstance(units, int) or isinstance(units, bool) or units < 1:
        raise BadInput(f"{at}: {units!r} units", "give a whole number, at least 1")
    position = given.get("rank", rank)
    if not isinstance(position, int):
        raise BadInput(f"{at}: rank {position!r}", "give a whole number, 0 for the best class")
    resources, capacity, capacities = _resources(given, units, at)
    caps = given.get("caps_w", [])
    if not isinstance(caps, list):
        raise BadInput(f"{at}: caps_w is not a list", "write caps_w = [30, 35, 40]")
    values = tuple(_number(cap, "caps_w", at) for cap in caps)
    if list(values) != sorted(set(values)) or any(cap <= 0 for cap in values):
        raise BadInput(f"{at}: caps_w is not ascending from above 0", "sort it, each cap once")
    powers: dict[str, Any] = {
        key: _number(given.get(key, 0.0), key, at) for key in ("base_w", "peak_w", "idle_w")
    }
    if values and "peak_w" not in given:
        powers["peak_w"] = values[-1]
    if powers["idle_w"] > powers["base_w"] + powers["peak_w"] > 0:
        raise BadInput(f"{at}: an idle unit draws more than one in use", "check base_w, peak_w and idle_w")
    return Pool(name, units, position, resources, capacity, capacities, **powers, caps_w=values)


def _resources(
    given: Mapping[str, Any], units: int, at: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Read resource names, the common capacity, and the capacity of each node where nodes differ."""
    rows = given.get("capacities", [])
    if "capacity" in given and rows:
        raise BadInput(f"{at} has both capacity and capacities", "give one of them")
    if "nodes" in given and not rows and "capacity" not in given:
        raise BadInput(f"{at} has nodes without a capacity", "add capacity = { cores = 16 }, or write units")
    tables = rows or ([given["capacity"]] if "capacity" in given else [])
    if not tables:
        return (), (), ()
    if not all(isinstance(row, dict) and row.keys() == tables[0].keys() and row for row in tables):
        raise BadInput(
            f"{at}: a capacity is not a table of the same resources", "write { cores = 16, memory_mb = 64e3 }"
        )
    if rows and len(rows) != units:
        raise BadInput(f"{at}: {len(rows)} capacities for {units} nodes", "give one for each node")
    names = tuple(tables[0])
    values = tuple(tuple(_number(row[name], f"capacity of {name}", at) for name in names) for row in tables)
    for name, column in zip(names, zip(*values, strict=True), strict=True):
        if not any(column):
            raise BadInput(f"{at}: no node has any {name}", "give a capacity above 0")
    return names, () if rows else values[0], values if rows else ()


def _number(value: Any, name: str, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadInput(f"{at}: {name} = {value!r}", "give a number, at least 0")
    return float(value)


def checked(pools: tuple[Pool, ...], budget_w: float | None, where: str) -> Cluster:
    """Make a cluster of these pools.

    Raises:
        BadInput: it contradicts itself; ``where`` says who described it.
    """
    names = [pool.name for pool in pools]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadInput(
            f"cluster {where}: pool {twice.pop()} is described twice", "give each class its own name"
        )
    if any(pool.units < 1 for pool in pools):
        raise BadInput(f"cluster {where}: a pool without units", "give at least 1")
    least = min(pool.power_w(1, pool.caps_w[0] if pool.caps_w else None) for pool in pools)
    if budget_w is not None and budget_w < least:
        raise BadInput(
            f"cluster {where}: a budget of {budget_w:g} W is not enough for one unit ({least:g} W)",
            "raise budget_w",
        )
    return Cluster(tuple(sorted(pools, key=lambda pool: pool.rank)), budget_w)
