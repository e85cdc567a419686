"""Clusters: the profile of each node, the network between nodes, and nodes that are not like their siblings.

    <root>/clusters/<cluster>/<id>/profile.json
                                  /samples/network.parquet

The nodes' own profiles lie in the store like those of any node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, ValidationError

from profiles.errors import BadInput
from profiles.files.safe_files import read_regular
from profiles.files.store import Prepared, Store, default_root, save_profile
from profiles.quantities import QUANTITIES
from profiles.records import Absent, Coefficient, Model, Profile, Quality, Record
from profiles.stats import MAD_TO_SD, median_interval

if TYPE_CHECKING:
    import pandas as pd

TO_OTHERS = "to other nodes"  # a subject


class Between(NamedTuple):
    """A quantity of pairs of nodes for people: times ``scale``, in ``unit``."""

    quantity: str
    what: str
    scale: float
    unit: str


BETWEEN = (
    Between("network_bandwidth_gbs", "bandwidth", 1.0, "GB/s"),
    Between("network_latency_s", "latency", 1e6, "µs"),
)


class Refused(Record):
    """A node that was left out of a survey, and the reason."""

    node: str
    reason: str
    remedy: str = ""


class Survey(Record):
    """A session of measuring a cluster."""

    schema_version: Literal[1] = 1
    id: str
    cluster: str
    created: datetime
    duration_s: float
    tenbin_version: str
    nodes: dict[str, str] = Field(description="of every node that was measured: the id of its profile")
    refused: tuple[Refused, ...] = ()
    models: tuple[Model, ...] = Field(default=(), description="all-to-all between nodes: label hosts")
    absent: tuple[Absent, ...] = ()
    interrupted: bool = False
    emulated: bool = False

    def between(self, quantity: str, *nodes: str) -> Model | None:
        """Find the model of a quantity of the all-to-all between exactly these nodes, in any order."""
        return self._by_nodes(quantity).get(frozenset(nodes))

    def pairs(self, quantity: str) -> Iterator[tuple[str, str, Coefficient]]:
        """List every pair of nodes that was measured, with the value of the quantity."""
        known = self._by_nodes(quantity)
        for a, b in combinations(sorted(self.nodes), 2):
            if model := known.get(frozenset((a, b))):
                yield a, b, model.coefficients[0]

    def _by_nodes(self, quantity: str) -> dict[frozenset[str], Model]:
        models: dict[frozenset[str], Model] = {}
        for model in self.models:
            # If there was no time for large messages, the largest tell no bandwidth.
            large = quantity != "network_bandwidth_gbs" or model.labels.get("size", "").endswith("MiB")
            if model.quantity == quantity and large:
                models.setdefault(frozenset(model.labels.get("hosts", "").split(",")), model)
        return models


class ClusterStore(Prepared):
    """All surveys under a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.store = root or default_root()
        self.root = self.store / "clusters"

    def save(self, survey: Survey, samples: Mapping[str, pd.DataFrame]) -> Path:
        """Write a survey with its samples; return its folder."""
        folder = self.root / survey.cluster / survey.id
        save_profile(folder, survey.model_dump_json(indent=1) + "\n", samples, self.store)
        return folder

    def load(self, cluster: str = "") -> Survey:
        """Load the newest survey, of one cluster where it is named.

        Raises:
            BadInput: there is no survey, or it is damaged.
        """
        paths = sorted(
            self.root.glob(f"{cluster or '[!.]*'}/[!.]*/profile.json"), key=lambda p: p.parent.name
        )
        if not paths:
            what = f"no cluster '{cluster}'" if cluster else "no cluster"
            raise BadInput(f"{what} in {self.root}", "measure one: tenbin slurm profile")
        try:
            return Survey.model_validate_json(read_regular(paths[-1]).decode())
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise BadInput(
                f"{paths[-1]}: no survey that can be read", "delete its folder, or measure again"
            ) from error

    def profiles(self, survey: Survey) -> dict[str, Profile]:
        """Load the profiles of its nodes, by node; missing files are left out."""
        of_nodes = {}
        for node, number in survey.nodes.items():
            path = self.store / node / number / "profile.json"
            if path.is_file():
                of_nodes[node] = Store(self.store).load(str(path))
        return of_nodes


# -- odd nodes ---------------------------------------------------------------------------------------------
#
# The rule, for each quantity: the centre of the siblings is their median. Their spread is 1.4826 times the
# median absolute deviation (robust, because up to half of the nodes may be odd), but no less than the noise
# of a measurement, from the nodes' own intervals. A node is odd if it is off by more than ``LIMIT`` spreads
# (Iglewicz and Hoaglin 1993) and by more than ``LEAST`` of the median. The spread of fewer than ``FEW``
# nodes is a guess, so these need ``LEAST_OF_FEW``; fewer than ``FEWEST`` cannot be judged.


FEWEST, FEW = 3, 5
FEWEST_READINGS = 3  # of the CPU loop, one before each visit to a probe
LIMIT = 3.5
LEAST, LEAST_OF_FEW = 0.05, 0.10
HALF_TO_SD = 1 / 1.96  # half of a 95 % interval
# Tails of a distribution, and a step whose bounds are its width: not fit to judge a node by.
UNTOLD = {
    "network_jitter_ratio",
    "storage_random_read_p99_s",
    "storage_random_write_p99_s",
    "storage_fsync_p99_s",
    "cache_size_kib",
}


@dataclass(frozen=True)
class Value:
    """A number of a node, with its ``subject`` ("cores=2 numa=local", "alpha device=pocl-0")."""

    node: str
    quantity: str
    subject: str
    value: float
    half: float | None  # of its 95 % interval
    unit: str
    poor: bool = False  # shown, and not judged
    coefficient: str = ""  # of the model

    @property
    def column(self) -> tuple[str, str]:
        """The part in common with the numbers of other nodes that are comparable."""
        return self.quantity, self.subject


@dataclass(frozen=True)
class Odd:
    """A node that is not like its siblings.

    Attributes:
        ratio: value of the node over the median.
        spreads: distance from the median, in spreads.
        also: number of further odd numbers of this quantity.
    """

    value: Value
    siblings_median: float
    siblings: int
    spreads: float
    also: int = 0

    @property
    def ratio(self) -> float:
        return self.value.value / self.siblings_median

    def __str__(self) -> str:
        v, higher = self.value, self.ratio > 1
        degree = f"{abs(self.ratio - 1):.0%}".replace("%", " %")
        verb, more = ("takes", "longer in") if v.quantity.endswith("_s") else ("has", "more")
        generic = (f"{verb} {{}} {more} {v.quantity}", f"{verb} {{}} less {v.quantity}")
        known = QUANTITIES.get(v.quantity)
        words = (known.more, known.less) if known and known.more else generic
        saying = words[0 if higher else 1].format(degree)
        subject = f" ({v.subject})" if v.subject else ""
        also = f", and {self.also} more of the kind" if self.also else ""
        return f"{v.node} {saying} than its siblings{subject}{also}"


def values(profiles: Mapping[str, Profile], survey: Survey | None = None) -> list[Value]:
    """List all comparable numbers of the nodes."""
    numbers = []
    for node, profile in profiles.items():
        if profile.conditions:
            numbers.append(_loop(node, [condition.reference_s for condition in profile.conditions]))
        for model in profile.models:
            if model.quantity in UNTOLD:
                continue
            labels = " ".join(f"{key}={value}" for key, value in model.labels.items())
            for c in model.coefficients:
                single = len(model.coefficients) == 1
                subject = labels if single else f"{c.name} {labels}".strip()
                poor = c.quality is Quality.POOR or c.value <= 0
                numbers.append(
                    Value(
                        node=node,
                        quantity=model.quantity,
                        subject=subject,
                        value=c.value,
                        half=_half(c),
                        unit=c.unit,
                        poor=poor,
                        coefficient=c.name,
                    )
                )
    return [*numbers, *_reach(survey)] if survey else numbers


def _loop(node: str, readings: Sequence[float]) -> Value:
    """Take the time of the fixed CPU loop; a reading or two are too few to judge a node."""
    middle, low, high = median_interval(readings)
    if low is None or high is None:  # too few for the interval of a median
        low, high = min(readings), max(readings)
    poor = len(readings) < FEWEST_READINGS
    return Value(
        node=node,
        quantity="reference_s",
        subject="",
        value=middle,
        half=(high - low) / 2,
        unit="s",
        poor=poor,
    )


def _half(c: Coefficient) -> float | None:
    return None if c.low is None or c.high is None else (c.high - c.low) / 2


def _reach(survey: Survey) -> Iterator[Value]:
    """Take the best pair of each node, because the slower of two nodes makes a pair slow."""
    for quantity, best in (("network_bandwidth_gbs", max), ("network_latency_s", min)):
        of: dict[str, list[Coefficient]] = {}
        for a, b, coefficient in survey.pairs(quantity):
            of.setdefault(a, []).append(coefficient)
            of.setdefault(b, []).append(coefficient)
        for node, several in of.items():
            c = best(several, key=lambda pair: pair.value)
            poor = c.quality is Quality.POOR
            yield Value(
                node=node,
                quantity=quantity,
                subject=TO_OTHERS,
                value=c.value,
                half=_half(c),
                unit=c.unit,
                poor=poor,
            )


def odd_ones(all_values: Sequence[Value], kinds: Mapping[str, str]) -> list[Odd]:
    """Find the nodes that differ from others of their kind, once for each quantity, the worst first."""
    columns: dict[tuple[str, ...], list[Value]] = {}
    for value in all_values:
        columns.setdefault((kinds.get(value.node, ""), *value.column), []).append(value)
    worst: dict[tuple[str, str], Odd] = {}
    count: dict[tuple[str, str], int] = {}
    for column in columns.values():
        for odd in odd_in([value for value in column if not value.poor]):
            key = odd.value.node, odd.value.quantity
            count[key] = count.get(key, 0) + 1
            if key not in worst or abs(odd.ratio - 1) > abs(worst[key].ratio - 1):
                worst[key] = odd
    odds = [replace(odd, also=count[key] - 1) for key, odd in worst.items()]
    return sorted(odds, key=lambda odd: -abs(odd.ratio - 1))


def none_odd(nodes: int) -> str:
    """Say that no node is odd."""
    if nodes < FEWEST:
        return "Fewer than three nodes: none can be called odd."
    return "None: every node measures as its siblings do."


def odd_in(column: Sequence[Value]) -> Iterator[Odd]:
    """Find the odd values among siblings' values of a quantity."""
    n = len(column)
    if n < FEWEST:
        return
    centre = median(v.value for v in column)
    spread = MAD_TO_SD * median(abs(v.value - centre) for v in column)
    noise = median(v.half * HALF_TO_SD if v.half is not None else 0.0 for v in column)
    scale = max(spread, noise)
    least = LEAST if n >= FEW else LEAST_OF_FEW
    for v in column:
        off = abs(v.value - centre)
        if off > LIMIT * scale and off > least * abs(centre):
            yield Odd(v, centre, n, off / scale if scale else float("inf"))
