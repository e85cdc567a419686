"""Weigh on nodes that have several resources: the queue of EASY in another order, with prices.

What ``weigh`` says holds with these words: the area of a job is its time left x its dominant share, the
largest share that it takes of any resource of a class. The price of a resource of a class is the number of
waiting jobs that choose the class and take most of this resource, over what the class has of it.

The first job of the queue takes the class on which its end, plus what others pay for it, is least, now or
later; it has the one reservation (``backfill.on_nodes``). Behind it jobs pass in the order of the index,
where they fit and delay it in nothing. One that would pay less on a class where it does not fit yet waits.
Of alternatives that of the least area ranks a job and counts for prices. It takes the one that ends first;
only the first of the queue waits for one where another fits now, to end a tenth sooner. (By prices all would
wait for the same one.)

Guarantee: the first job of the queue starts no later than the time that was first reserved for it, if no job
takes longer than its estimate. At the time at which it becomes the first all that runs ends within the
longest run time L, so a job with k jobs before it waits at most (k + 1) L.
Source: the dominant share is that of Ghodsi et al., "Dominant resource fairness", NSDI 2011.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.quantities import duration
from scheduler.jobs.literals import resource_text
from scheduler.model.jobs import Job, Pool
from scheduler.policies.backfill.conservative import awaited
from scheduler.policies.backfill.on_nodes import (
    MANY,
    OPEN,
    Choice,
    FreeNodes,
    Held,
    Limit,
    NodeEasy,
    Places,
    Rank,
    WaitingJobs,
    Way,
    has_room,
    needs,
    room_in,
)
from scheduler.policies.backfill.queue import HALF_STEP_S
from scheduler.policies.base import Reason, View, in_turn, would_delay
from scheduler.policies.weigh.parameters import WeighParameters
from scheduler.policies.weigh.waiting import (
    ALIKE,
    LENGTHS,
    PRIOR_S,
    PRIORITY,
    SOON_S,
    Rows,
    amounts_of,
    index_of,
    is_unknown,
    least_area,
)


class RankedJobs(WaitingJobs):
    """Waiting jobs of which some have turns, in the order of their priorities and indices."""

    def __init__(self, nodes: FreeNodes, rows: Rows) -> None:
        self._rows = rows
        super().__init__(nodes)

    def _lay(self, entries: Sequence[tuple[int, Job, float]], capacity: int) -> None:
        self._facts = np.zeros((LENGTHS, capacity))
        self._ranks = np.zeros((2, capacity))
        super()._lay(entries, capacity)

    def extend(self, entries: Sequence[tuple[int, Job, float]]) -> None:
        super().extend(entries)
        end = len(self.entries)
        self._facts[:, end - len(entries) : end] = self._rows.facts(job.id for _, job, _ in entries)

    def sort(self, look: Iterable[int], limit: Limit, weights: tuple[float, float, float]) -> None:
        """Give turns to those that may fit on these nodes now; ``weights``: see ``index_of``."""
        self.order = np.arange(len(self.entries))
        self.narrow(look, limit, weights[0], begin=0)
        facts = self._facts[:, self.order]
        ranks = self._ranks[:, self.order] = np.stack((-facts[PRIORITY], index_of(facts, *weights)))
        self.order = self.order[np.lexsort(ranks[::-1])]

    def narrow(self, look: Iterable[int], limit: Limit, now: float, *, begin: int) -> None:
        """Take the turns from one on of those that cannot fit on these nodes any more."""
        may = self.able(look, limit, now, begin=begin)
        self.order = np.concatenate((self.order[:begin], self.order[begin:][may]))

    def slots(self, begin: int) -> NDArray[np.intp]:
        return self.order[begin:]

    def at(self, turn: int) -> tuple[Rank, Job]:
        slot = self.order[turn]
        job = self.entries[slot][1]
        return (*self._ranks[:, slot].tolist(), float(job.id)), job


class NodeWeigh(NodeEasy):
    """Weigh (see the head of this module)."""

    def __init__(self, pools: Sequence[Pool], parameters: WeighParameters) -> None:
        super().__init__(pools)
        self._parameters = parameters
        capacity = [pool.capacities or [pool.capacity] * pool.units for pool in pools]
        self._kinds = {pool.name: Counter(rows) for pool, rows in zip(pools, capacity, strict=True)}
        has = [np.sum(rows, axis=0) for rows in capacity]
        self.rows = Rows(np.array([np.where(row > 0, row, 1.0) for row in has]))
        self._places = {pool.name: place for place, pool in enumerate(pools)}
        self._ranked = {name: RankedJobs(nodes, self.rows) for name, nodes in self.nodes.items()}
        self._tables = self._ranked
        self._priced = len(pools) > 1  # prices decide something
        self._rather_wait = 0  # so many jobs have fitted that would rather wait
        self._promise: tuple[int, float] = (-1, math.inf)  # the first job, and the time first reserved for it

    # -- the order ------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        self._rank(job)
        super().add(job)

    def add_first(self, job: Job) -> None:
        self._rank(job)
        super().add_first(job)

    def _rank(self, job: Job) -> None:
        ways = [(way, [self._length(way, pool) for pool in self._places]) for way in job.ways]
        self.rows.add(*min(ways, key=lambda way: least_area(way[0], way[1], self.rows.sizes)))

    def _length(self, way: Job, pool: str) -> float:
        room = sum(number * room_in(row, way.demand) for row, number in self._kinds[pool].items())
        return _length(way, pool) if way.runs_on(pool) and room >= way.units else math.inf

    def _start(self, job: Job, pool: str, places: Places, chosen: list[Choice]) -> None:
        super()._start(job, pool, places, chosen)
        self.rows.drop(job.id)

    def _weights(self, now: float) -> tuple[float, float, float]:
        """Return what an index depends on, beside the job."""
        first_s = next((job.submit_s for job in self.waiting.values()), math.inf)
        return now, first_s, self._parameters.fairness

    def choose(self, view: View) -> list[Choice]:
        self._view = view
        self._failed.clear()
        if self._priced:
            self.rows.form_prices(self._parameters.price)
        chosen = super().choose(view)
        if next(iter(self.waiting), None) != self._promise[0]:
            self._limits = None  # the next decision begins with the first of the queue, who may be new
        return chosen

    def _start_heads(self, chosen: list[Choice]) -> None:
        """Start the first job; behind it the index decides, but between those of unknown run time."""
        while self.waiting:
            job = next(iter(self.waiting.values()))
            if chosen and not is_unknown(job):
                return
            self._start_passing(job, chosen, self._view.now, {})
            if job.id in self.waiting:
                return

    def _pass(self, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        self._rather_wait = 0
        if self._new and (self._freed or len(self._new) > 1):  # else who comes has nobody beside it
            self._enter_new()
            self._freed = True
            self._look_everywhere()
        super()._pass(chosen, now, limits)
        if self._rather_wait:  # they, and those behind them, are looked at again
            self._look_everywhere()

    def _look_everywhere(self) -> None:
        for name, look in self._look.items():
            look.update(range(self.pools[name].units))

    def _pass_all(self, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        for pool, look in self._look.items():
            limit = limits.get(pool, OPEN)
            if look and not limit.closed:
                self._ranked[pool].sort(look, limit, self._weights(now))
        super()._pass_all(chosen, now, limits)

    def _first(self, pool: str, begin: int, limit: Limit, now: float) -> int | None:
        look, table, turn = self._look[pool], self._ranked[pool], begin
        if limit.closed or not look or self._rather_wait >= self._parameters.depth:
            return None
        while table.entries and turn < len(table.order):
            job = table.entries[table.order[turn]][1]
            if job.id in self.waiting and self._passes(job, pool, limit, now):
                return turn
            turn += 1
            if turn == begin + MANY:
                table.narrow(look, limit, now, begin=turn)
        return None

    # -- the choice of a class ------------------------------------------------------------------------

    def _start_passing(self, job: Job, chosen: list[Choice], now: float, limits: Mapping[str, Limit]) -> None:
        """Start a job as and where it costs least, unless that is later."""
        ways = self.classes(job)
        tries = [self._passes(way, pool, limits.get(pool, OPEN), now) for pool, way in ways]
        fits = {number: places for number, places in enumerate(tries) if places}
        number, _ = self._best(ways, fits, self._view, chosen) if fits else (-1, now)
        if number in fits:
            pool, way = ways[number]
            limit = limits.get(pool, OPEN)
            self._start_within(way, pool, fits[number], limit, now=now, chosen=chosen)
            return
        self._rather_wait += bool(fits)

    def _best(
        self, ways: Sequence[Way], fits: Collection[int], view: View, chosen: Sequence[Choice] = ()
    ) -> tuple[int, float]:
        """Choose one of the ways, of which some fit now, and when the job starts; -1: nobody knows."""
        best: tuple[tuple[float, ...], int, float] = (math.inf,), -1, math.inf
        held: Sequence[Held] = ()
        able = sorted(range(len(ways)), key=lambda number: number not in fits)  # these cost no search
        if fits and self._varied(ways[0][1]) and ways[0][1].id != next(iter(self.waiting)):
            able = able[: len(fits)]
        for number in able:
            pool, way = ways[number]
            start_s = view.now
            if number not in fits:
                if self._preference(way, pool, start_s, start_s) >= best[0]:
                    continue
                held = held or self._all_held(view, chosen)
                start_s = max(self._when_free(way, pool, held, view.nodes[pool])[0], start_s)
            preference = self._preference(way, pool, start_s, view.now)
            if start_s < math.inf and preference < best[0]:
                best = preference, number, start_s
        return best[1:]

    def _varied(self, way: Job) -> bool:
        """Tell if a waiting job has alternatives."""
        return bool(self.waiting[way.id].alternatives)

    def _reserve(self, job: Job, view: View, chosen: Sequence[Choice]) -> dict[str, Limit]:
        ways = self.classes(job) if chosen else ()
        if any(self.nodes[pool].place(way.demand, way.units, {}) for pool, way in ways):
            return {}
        limits = super()._reserve(job, view, chosen)
        self._promise = job.id, max(limit.until_s for limit in limits.values()) if limits else math.inf
        return limits

    def _preference(self, job: Job, pool: str, start_s: float, now: float) -> tuple[float, ...]:
        """Rate a start: what is late for a promise last, then what comes later and ends nobody knows when."""
        late = self._promise[0] == job.id and start_s > self._promise[1] + HALF_STEP_S > now
        unknown = start_s > now and job.estimate_on(pool) == math.inf
        length = _length(job, pool)
        price = float(self.rows.prices[self._places[pool]] @ amounts_of(job))
        if self._varied(job):
            ends_s = start_s - now + length
            return float(late), float(unknown), ends_s * (1.0 + ALIKE * (start_s > now)), start_s
        return float(late), float(unknown), start_s - now + length * (1.0 + price), start_s

    def prices(self) -> dict[str, dict[str, float]]:
        """Return prices of the resources of each class (see ``Policy.prices``)."""
        if not self._priced:
            self.rows.form_prices(self._parameters.price)
        rows = (self.rows.prices * bool(self.waiting)).tolist()
        return {
            name: dict(zip(self.pools[name].resources, row, strict=True))
            for name, row in zip(self._places, rows, strict=True)
        }

    def why(self, job: Job, view: View) -> Reason:
        """Explain what a job waits for, what it would gain elsewhere, and what it takes from others."""
        ways = self.classes(job)
        fits = [number for number, (pool, way) in enumerate(ways) if has_room(view.nodes[pool], way)]
        number, start_s = self._best(ways, fits, view)
        pool, way = ways[number] if number >= 0 else ways[0]
        expected_s, ends = awaited(job, view)
        sentence = would_delay(next(iter(view.waiting.values()))).sentence
        if lacking := needs(job, view, ways):
            sentence = lacking + in_turn(job, view, ends)
        if fits and number >= 0 and number not in fits:
            beside = pool in {ways[number][0] for number in fits}
            sentence = f"there is room, but it waits for {'another alternative' if beside else pool}"
            expected_s = start_s
        elsewhere = [choice for choice in ways if choice[0] != pool] if number >= 0 else []
        for other, other_way in elsewhere[:1]:
            at_s = view.now
            if not has_room(view.nodes[other], other_way):
                held = self._all_held(view, ())
                at_s = self._when_free(other_way, other, held, view.nodes[other])[0]
            later_s = at_s + other_way.estimate_on(other) - start_s - way.estimate_on(pool)
            if math.isfinite(later_s) and abs(later_s) >= 1:
                how = "later" if later_s > 0 else "earlier"
                sentence += f"; on {other} it would end {duration(abs(later_s))} {how} than on {pool}"
        prices = self._price_of(way, pool) if self._priced and not job.alternatives else ()
        return Reason("; ".join((sentence, *prices)), expected_s)

    def _price_of(self, job: Job, pool: str) -> list[str]:
        """Say what others pay for the resource of which the job takes the largest share."""
        place, amounts = self._places[pool], np.array(amounts_of(job))
        resource = self.pools[pool].resources[int((amounts / self.rows.sizes[place]).argmax())]
        quantity = 1e3 if resource == "memory_mb" else 1.0
        price = self.prices()[pool][resource] * quantity
        name = resource_text(resource, quantity)
        return [f"an hour of {name} costs others {price:.2g} h of waiting"] if price else []


def _length(job: Job, pool: str) -> float:
    length = job.estimate_on(pool)
    return PRIOR_S if length == math.inf else max(length, SOON_S)
