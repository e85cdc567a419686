"""Placement of regions: the places of a counted pool by region, and those that a job gets; arithmetic only.

A place is one unit on one node. Each region has so many places of each node, and its jobs run on those only.
The units of a node are alike: of a node that regions share it counts how many each has, not which.

- When regions move, no more places change hands than their sizes ask for (region number i goes on as number
  i): whole nodes first, and the ones on the side of the region that gets them.
- A job that runs from before keeps its places, whoever they belong to now: it is a *visitor* there. So is one
  that names no region.
- Policies know nothing of places: they say which region has how many units free. If visitors, or nodes out of
  service, take the places of a region that has units free by that count, it trades as many of these for free
  ones: first with the regions that the visitors belong to by their size, because that is where a policy
  charges them.

Guarantee: what the cluster state allows is placed. Let a region have s places, n of them under jobs of its
own, and let u <= s - n units be wanted, no more than are free and in service in all. As long as fewer than u
of its places can be used, it has one that it cannot use, and another owner has one that is free: they trade.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from profiles.files.safe_files import write_whole
from scheduler.model.jobs import Region
from scheduler.policies.regions.regions import region_of

SPARE = ""  # owner of what belongs to no region; region of jobs that name none


class Trade(NamedTuple):
    """So many places of ``other`` on node ``here`` for as many on node ``there``."""

    here: int
    there: int
    other: str
    units: int


class RegionPlacement:
    """The places of one pool, and who has them.

    Args:
        capacity: units of each node.
        before: of each node, how many of its units region number 1, 2, ... had when that was last known.

    Attributes:
        regions: as the pool is cut now; (): it is not.
        shares: of each node, how many of its units belong to whom.
        free: of each node, the units that no job has.
        changes: how many units have changed hands so far.
    """

    def __init__(self, capacity: Sequence[int], before: Sequence[Sequence[int]] = ()) -> None:
        self.capacity = tuple(capacity)
        self.regions: tuple[Region, ...] = ()
        self.changes = 0
        self.free = list(capacity)
        self.shares = [Counter({SPARE: units}) for units in capacity]
        self._held: list[Counter[str]] = [Counter() for _ in capacity]  # of each node, by the jobs of whom
        self._jobs: dict[int, tuple[str, dict[int, int]]] = {}
        # The regions' names by their numbers; before the first cut made-up ones.
        self._order = [f"#{number}" for number in range(max(map(len, before), default=0))]
        for node, row in enumerate(before[: len(self.shares)]):
            for name, units in zip(self._order, row, strict=False):
                self._give(node, SPARE, name, min(units, self.shares[node][SPARE]))
        self.changes = 0

    def rows(self) -> list[list[int]]:
        """Return what ``before`` is to be the next time."""
        return [[share[name] for name in self._order] for share in self.shares]

    def of(self, node: int) -> dict[str, int]:
        """Count a node's units by region."""
        share = self.shares[node]
        return {region.name: share[region.name] for region in self.regions if share[region.name]}

    # -- regions move ---------------------------------------------------------------------------------

    def cut(self, regions: Sequence[Region]) -> None:
        """Cut the pool into these regions, which together have no more units than there are."""
        names = [region.name for region in regions]
        same = dict(zip(self._order, names, strict=False))
        for node, share in enumerate(self.shares):
            self.shares[node] = Counter()
            for name, units in share.items():
                self.shares[node][same.get(name, name)] += units
        gone = [name for name in self._order if name not in same]
        self._order, self.regions = names, tuple(regions)
        lacks = {region.name: region.units - self._sum(region.name) for region in regions}
        lacks |= {name: -self._sum(name) for name in gone}
        lacks[SPARE] = -sum(lacks.values())
        homes = self._homes()
        for taker in (*names, SPARE):
            for giver in (*gone, SPARE, *names):
                units = min(lacks[taker], -lacks[giver])
                if units > 0:
                    self._hand_over(giver, taker, units, homes)
                    lacks[taker] -= units
                    lacks[giver] += units
        for node, held in enumerate(self._held):
            for name in names:
                if held[name]:
                    self._claim(node, name)

    def _sum(self, name: str) -> int:
        return sum(share[name] for share in self.shares)

    def _hand_over(self, giver: str, taker: str, units: int, homes: Sequence[Counter[str]]) -> None:
        """Let places change hands: first of nodes that can be given whole.

        Of these first the nodes on which most jobs have the taker's sizes.
        """
        numbers = {name: number for number, name in enumerate(self._order)}
        forward = numbers.get(taker, -1) < numbers.get(giver, len(numbers))
        has = {node: self._unclaimed(node, giver) for node in range(len(self.shares))}

        def rank(node: int) -> tuple[int, int, int]:
            share = self.shares[node]
            owners = (share[taker] == 0) - (share[giver] == has[node])  # more than before, if it gives all
            return owners, -homes[node][taker], node if forward else -node

        rest = []
        for node in sorted((node for node, most in has.items() if most > 0), key=rank):
            if has[node] <= units:
                self._give(node, giver, taker, has[node])
                units -= has[node]
            else:
                rest.append(node)
        if units and rest:  # each of them has more
            part = min(rest, key=lambda node: (self.shares[node][taker] == 0, *rank(node)))
            self._give(part, giver, taker, units)

    # -- jobs come and go -----------------------------------------------------------------------------

    def place(self, region: str, units: int, away: Container[int] = ()) -> dict[int, int]:
        """Choose the units of each node for a job of a region; {} where there is no such region.

        Args:
            away: nodes that are out of service.
        """
        if region not in self._order or not self.regions:
            return {}
        self._gather(region, units, away)
        places = {}
        for node in range(len(self.shares)):
            here = min(units, self._usable(node, region, away))
            if here > 0:
                places[node] = here
                units -= here
        return places

    def hold(self, job: int, region: str, where: Mapping[int, int]) -> None:
        """Give a job so many units of these nodes in place of its former ones, also after a restart.

        If they are its region's own, but were somebody else's, that is given others for them.
        """
        self.release(job)
        self._jobs[job] = region, dict(where)
        for node, units in where.items():
            self.free[node] -= units
            self._held[node][region] += units
            if self.regions and region in self._order:
                self._claim(node, region)

    def release(self, job: int) -> None:
        """Take a job's places back, if it has any."""
        region, where = self._jobs.pop(job, (SPARE, {}))
        for node, units in where.items():
            self.free[node] += units
            self._held[node][region] -= units

    def _unclaimed(self, node: int, name: str) -> int:
        """Places of an owner on which it has no job of its own: free ones, or under a visitor."""
        return self.shares[node][name] - (self._held[node][name] if name in self._order else 0)

    def _usable(self, node: int, name: str, away: Container[int]) -> int:
        return 0 if node in away else min(self._unclaimed(node, name), self.free[node])

    def _gather(self, region: str, units: int, away: Container[int]) -> None:
        """Trade until so many places of the region can be used."""
        nodes = range(len(self.shares))
        lacking = units - sum(self._usable(node, region, away) for node in nodes)
        homes = self._homes() if lacking > 0 else []
        while lacking > 0:
            useless = {
                node: self._unclaimed(node, region) - self._usable(node, region, away) for node in nodes
            }
            trade = self._trade(region, {node: n for node, n in useless.items() if n > 0}, away, homes)
            if trade is None:
                return  # the cluster state allows no such job
            traded = min(trade.units, lacking)
            self._give(trade.here, trade.other, region, traded)
            self._give(trade.there, region, trade.other, traded)
            lacking -= traded

    def _trade(
        self, region: str, useless: Mapping[int, int], away: Container[int], homes: Sequence[Counter[str]]
    ) -> Trade | None:
        """Choose who gives free places for useless ones: first nobody's, then the visitors' own region."""
        due = sum((homes[node] for node in useless), Counter[str]())
        offers = [
            (other == SPARE, due[other] > 0, min(room, self._unclaimed(node, other)), -node, other)
            for node in range(len(self.shares))
            if node not in away and (room := self.free[node] - self._unclaimed(node, region)) > 0
            for other in self.shares[node]
            if other != region and self._unclaimed(node, other) > 0
        ]
        if not offers or not useless:
            return None
        *_, most, here, other = max(offers)
        there = max(useless, key=lambda node: (homes[node][other] > 0, useless[node], -node))
        return Trade(-here, there, other, min(most, useless[there]))

    def _claim(self, node: int, region: str) -> None:
        """Places under the region's own jobs are its own."""
        while (over := -self._unclaimed(node, region)) > 0:
            others = [name for name in self.shares[node] if self._unclaimed(node, name) > 0]
            places = [number for number in range(len(self.shares)) if self._unclaimed(number, region) > 0]
            if not others or not places:
                return  # no cluster state allows that
            other = max(others, key=lambda name: (name == SPARE, self._unclaimed(node, name)))
            there = min(places, key=lambda number: (self._usable(number, region, ()), number))
            units = min(over, self._unclaimed(node, other), self._unclaimed(there, region))
            self._give(node, other, region, units)
            self._give(there, region, other, units)

    def _homes(self) -> list[Counter[str]]:
        """Of each node, how many units visitors have there, by the regions that they belong to by size."""
        homes: list[Counter[str]] = [Counter() for _ in self.shares]
        bounds = [region.max_units for region in self.regions]
        for region, where in self._jobs.values() if bounds else ():
            if region not in self._order:
                home = self._order[region_of(sum(where.values()), bounds)]
                for node, units in where.items():
                    homes[node][home] += units
        return homes

    def _give(self, node: int, giver: str, taker: str, units: int) -> None:
        share = self.shares[node]
        share[giver] -= units
        share[taker] += units
        self.changes += units


# -- places that outlive the coordinator -------------------------------------------------------------------


FILE = "zones.json"
log = logging.getLogger("tenbin")


class StoredRegionPlacement(RegionPlacement):
    """The zones of a coordinator's pool.

    Args:
        store: its folder. capacity: as for ``RegionPlacement``.

    A file that is lost, or cannot be written, costs no more than places that change hands at a restart: what
    jobs have is in the journal.
    """

    def __init__(self, store: Path, capacity: Sequence[int]) -> None:
        self._file = store / FILE
        super().__init__(capacity, _read_rows(self._file))
        self._written = 0

    def cut(self, regions: Sequence[Region]) -> None:
        super().cut(regions)
        self._keep()

    def place(self, region: str, units: int, away: Container[int] = ()) -> dict[int, int]:
        places = super().place(region, units, away)
        if places:
            self._keep()
        return places

    def hold(self, job: int, region: str, where: Mapping[int, int]) -> None:
        super().hold(job, region, where)
        if self.regions:
            self._keep()

    def _keep(self) -> None:
        changes = self.changes
        if changes == self._written:
            return
        try:
            write_whole(self._file, json.dumps(self.rows()))
            self._written = changes
        except OSError as error:  # tried again with the next job
            log.error("%s: %s", self._file, error.strerror)


def _read_rows(file: Path) -> list[list[int]]:
    """Read what was written; nothing where that cannot be read."""
    try:
        rows = json.loads(file.read_text())
        return [[max(0, int(units)) for units in row] for row in rows]
    except (OSError, ValueError, TypeError):
        return []
