"""Descriptions of clusters: a count, a short text, or a file.

- ``100``: 100 units of one class, called "node".
- ``512xgpu+512xcpu``: classes, best first.
- ``256xnode[cpu=1,memory=0.5]``: nodes with a capacity for each resource.
- ``8xgpu[cores=64,gpu=4]+64xcpu[cores=48]``: kinds of nodes; what one kind does not name it does not have.
- ``1xnode[cores=64,gpu.a100=2,gpu.t4=2]``: two kinds of GPUs in one node, each a resource of its own.
- a TOML or JSON file: ``budget_w``, and a list ``pool`` of tables with fields of ``Pool``; ``units``
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
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.parameters import unknown

PART = re.compile(r"(?P<units>\d+)x(?P<name>[A-Za-z_][\w.-]*?)(?:\[(?P<resources>[^\]]*)\])?")
REMEDY = "write a count, 512xgpu+512xcpu, 256xnode[cpu=1,memory=1], or name a TOML, JSON or CSV file"
NODE_LIST = {"cpu_milli": ("cpu", 1e-3), "memory_mib": ("memory_mb", 2**20 / 1e6), "gpu": ("gpu", 1.0)}
POOLS = 'write [[pool]] name = "gpu", units = 512'
REMEDIES = {  # of values that a field cannot have; of all others: "give a number, at least 0"
    "name": 'add name = "gpu"',
    "units": "give a whole number, at least 1",
    "nodes": "give a whole number, at least 1",
    "rank": "give a whole number, 0 for the best class",
    "capacity": "write { cores = 16, memory_mb = 64e3 }",
    "capacities": "write { cores = 16, memory_mb = 64e3 }",
    "caps_w": "write caps_w = [30, 35, 40]",
}

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PoolTable(BaseModel):
    """A pool as files describe it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    units: Annotated[int | None, Field(ge=1)] = None
    nodes: Annotated[int | None, Field(ge=1)] = None
    rank: int | None = None
    capacity: dict[str, Amount] | None = None
    capacities: list[dict[str, Amount]] = []
    base_w: Amount = 0.0
    peak_w: Amount | None = None
    idle_w: Amount = 0.0
    caps_w: list[Amount] = []


class ClusterTable(BaseModel):
    """A cluster as files describe it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    pool: Annotated[list[PoolTable], Field(min_length=1)]
    budget_w: Amount | None = None


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
    for part in text.split("+"):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise BadInput(f"cluster {text!r}: {part!r} is not understood", REMEDY)
        table: dict[str, Any] = {"name": match["name"], "units": int(match["units"])}
        if match["resources"] is not None:
            table["capacity"] = _capacity(match["resources"], text)
        pools.append(table)
    return _described({"pool": pools}, text)


def _capacity(text: str, where: str) -> dict[str, float]:
    capacity: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = map(str.strip, part.partition("="))
        try:
            number = float(value if name else "")
        except ValueError:
            raise BadInput(
                f"cluster {where!r}: {part!r} is not of the form resource=number", REMEDY
            ) from None
        if name in capacity:
            raise BadInput(f"cluster {where!r}: resource {name} is given twice", "give it once")
        capacity[name] = number
    return capacity


def _from_file(path: Path) -> Cluster:
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise BadInput(f"cluster {path}: {error.strerror}", REMEDY) from error
    except ValueError as error:  # of TOML, JSON and UTF-8
        raise BadInput(f"cluster {path}: {error}", f"write valid {path.suffix[1:].upper()}") from error
    return _described(content, str(path))


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
    return _described({"pool": [{"name": "node", "nodes": len(rows), "capacities": rows}]}, str(path))


def _scaled(row: Mapping[str, str | None], column: str, by: float, path: Path, *, line: int) -> float:
    try:
        value = float(row[column] or "")
    except ValueError as error:
        raise BadInput(f"cluster {path}, line {line}: {column} is no number", "mend the line") from error
    if not 0 <= value < math.inf:
        raise BadInput(f"cluster {path}, line {line}: {column} is negative or infinite", "mend the line")
    return value * by


def _described(content: Any, where: str) -> Cluster:
    """Make the cluster that tables describe."""
    try:
        table = ClusterTable.model_validate(content)
    except ValidationError as error:
        raise _refusal(error.errors()[0], content, where) from error
    pools = tuple(_pool(pool, rank, where) for rank, pool in enumerate(table.pool))
    return checked(_same_resources(pools), table.budget_w, where)


def _same_resources(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Give all pools with nodes the resources that any of them has: 0 of those that one does not name."""
    names = tuple(dict.fromkeys(name for pool in pools for name in pool.resources))

    def filled(pool: Pool, row: tuple[float, ...]) -> tuple[float, ...]:
        if not row:
            return ()
        has = dict(zip(pool.resources, row, strict=True))
        return tuple(has.get(name, 0.0) for name in names)

    return tuple(
        pool
        if pool.resources in ((), names)
        else replace(
            pool,
            resources=names,
            capacity=filled(pool, pool.capacity),
            capacities=tuple(filled(pool, row) for row in pool.capacities),
        )
        for pool in pools
    )


def _refusal(error: Mapping[str, Any], content: Any, where: str) -> BadInput:
    """Make the error for a table that pydantic refuses."""
    match error["loc"]:
        case ("pool", int(place), str(field), *inner):
            at = f"cluster {where}: pool {content['pool'][place].get('name', place + 1)}"
            fields: Mapping[str, object] = PoolTable.model_fields
        case ("pool", int(place)):
            return BadInput(f"cluster {where}: pool {place + 1} is not a table", POOLS)
        case () | ("pool",):
            return BadInput(f"cluster {where}: there is no list of pools", POOLS)
        case (field, *inner):
            at, fields = f"cluster {where}", ClusterTable.model_fields
    if error["type"] == "extra_forbidden":
        return unknown(f"field of {at}:", field, fields)
    remedy = REMEDIES.get(field, "give a number, at least 0")
    if error["type"] == "missing":
        return BadInput(f"{at} has no {field}", remedy)
    name = ".".join(map(str, (field, *inner)))
    return BadInput(f"{at}: {name} = {error['input']!r:.100}", remedy)


def _pool(table: PoolTable, place: int, where: str) -> Pool:
    at = f"cluster {where}: pool {table.name}"
    units = table.units or table.nodes
    if units is None or (table.units and table.nodes):
        raise BadInput(f"{at} needs either units or nodes", "give one of them")
    resources, capacity, capacities = _resources(table, units, at)
    caps = tuple(table.caps_w)
    if list(caps) != sorted(set(caps)) or 0.0 in caps:
        raise BadInput(f"{at}: caps_w is not ascending from above 0", "sort it, each cap once")
    peak_w = table.peak_w if table.peak_w is not None else max(caps, default=0.0)
    if table.idle_w > table.base_w + peak_w > 0:
        raise BadInput(f"{at}: an idle unit draws more than one in use", "check base_w, peak_w and idle_w")
    return Pool(
        table.name,
        units,
        rank=place if table.rank is None else table.rank,
        resources=resources,
        capacity=capacity,
        capacities=capacities,
        base_w=table.base_w,
        peak_w=peak_w,
        idle_w=table.idle_w,
        caps_w=caps,
    )


def _resources(
    table: PoolTable, units: int, at: str
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Return resource names, the common capacity, and the capacity of each node where nodes differ."""
    rows = table.capacities
    if table.capacity is not None and rows:
        raise BadInput(f"{at} has both capacity and capacities", "give one of them")
    if table.nodes and not rows and table.capacity is None:
        raise BadInput(f"{at} has nodes without a capacity", "add capacity = { cores = 16 }, or write units")
    tables = rows or ([] if table.capacity is None else [table.capacity])
    if not tables:
        return (), (), ()
    if not all(row and row.keys() == tables[0].keys() for row in tables):
        raise BadInput(f"{at}: a capacity is not a table of the same resources", REMEDIES["capacity"])
    if rows and len(rows) != units:
        raise BadInput(f"{at}: {len(rows)} capacities for {units} nodes", "give one for each node")
    names = tuple(tables[0])
    values = tuple(tuple(row[name] for name in names) for row in tables)
    for name, column in zip(names, zip(*values, strict=True), strict=True):
        if not any(column):
            raise BadInput(f"{at}: no node has any {name}", "give a capacity above 0")
    return names, () if rows else values[0], values if rows else ()


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
