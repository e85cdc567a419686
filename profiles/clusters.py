"""Survey of a cluster: the profile of each node, and the network between nodes.

    <root>/clusters/<cluster>/<id>/profile.json
                                  /samples/network.parquet

The nodes' own profiles lie in the store like those of any node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, ValidationError

from profiles.errors import BadInput
from profiles.files.store import Prepared, Store, default_root, save_profile
from profiles.files.whole_files import read_regular
from profiles.records import Absent, Coefficient, Model, Profile, Record

if TYPE_CHECKING:
    import pandas as pd


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
        found: dict[frozenset[str], Model] = {}
        for model in self.models:
            # If there was no time for large messages, the largest tell no bandwidth.
            large = quantity != "network_bandwidth_gbs" or model.labels.get("size", "").endswith("MiB")
            if model.quantity == quantity and large:
                found.setdefault(frozenset(model.labels.get("hosts", "").split(",")), model)
        return found


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
            raise BadInput(f"{what} in {self.root}", "measure one: tenbin profile --nodes all")
        try:
            return Survey.model_validate_json(read_regular(paths[-1]).decode())
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise BadInput(
                f"{paths[-1]}: no survey that can be read", "delete its folder, or measure again"
            ) from error

    def profiles(self, survey: Survey) -> dict[str, Profile]:
        """Load the profiles of its nodes, by node; missing files are left out."""
        found = {}
        for node, number in survey.nodes.items():
            path = self.store / node / number / "profile.json"
            if path.is_file():
                found[node] = Store(self.store).load(str(path))
        return found
