"""Power-capped scheduling as ``parm``, solved by the genetic algorithm of the paper.

Algorithm: the problem is that of ``scheduler.policies.power.parm``; a gene is the option of one job (0: it
waits). Each of 100 generations keeps its 20 best as parents and makes 280 children of them: two parents
chosen at random, two-point crossover, then with probability 90 % a mutation that gives one gene on average a
random option. A choice that does not fit counts as minus its relative excess. The best ever seen counts; if
none fits, running jobs get their least configuration and nothing starts. As in the paper, options that others
make superfluous are kept (``prune=true`` leaves them out like ``parm``, for an easier search).
Guarantee: as ``parm``, but nothing is proven about the choice, and ``worst_gap`` stays 0 without meaning.
Cost: 30,000 choices valued a decision, a third of a second for 50 jobs.

Paper: Huang et al. (2014), section 5.1: population 300, 20 parents, 100 generations, mutation 90 %,
multi-point crossover. The treatment of choices that do not fit, the effect of a mutation and the beginning
are ours. Operators: DEAP.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from profiles.errors import BadInput
from scheduler.model.jobs import Job
from scheduler.policies.base import View
from scheduler.policies.power.multiple_choice_knapsack import Floats, Integers, Problem, Solution
from scheduler.policies.power.parm import Configurations, Parm, ParmParameters, every


@dataclass(frozen=True)
class ParmGaParameters(ParmParameters):
    """As ``parm`` (its gap and limits are not used), and the size of the search.

    Attributes:
        population: choices of a generation. parents: the best of them, which have the children.
        mutation: probability that a child is mutated.
        first: the first generation: "random" options, or "least": what must run has its least configuration,
            all else waits, then one mutation each.
        prune: leave out configurations that others make superfluous.
    """

    population: int = 300
    parents: int = 20
    generations: int = 100
    mutation: float = 0.9
    first: Literal["random", "least"] = "random"
    prune: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.parents < self.population or self.generations < 1:
            raise ValueError("at least 2 parents, fewer than the population, and 1 generation are needed")
        if not 0 <= self.mutation <= 1:
            raise ValueError("mutation must be from 0 to 1")


class ParmGa(Parm):
    """``parm`` by genetic search."""

    Parameters = ParmGaParameters
    parameters: ParmGaParameters

    def begin(self, view: View) -> None:
        super().begin(view)
        _deap()

    def options(self, jobs: list[Job], free_units: float, free_watts: float) -> list[Configurations]:
        if self.parameters.prune:
            return super().options(jobs, free_units, free_watts)
        return [every(job, self.pool, self.beta, self.parameters.unit_choices) for job in jobs]

    def solve(self, problem: Problem, view: View) -> Solution | None:
        if not problem.fits(problem.start):
            return None
        choice = search(problem, self.parameters, f"{self.seed} {view.now}")
        if not view.running and not choice.any():  # else there would be no further event
            choice = _first_that_fits(problem)
        value = problem.totals(choice)[0]
        return Solution(choice, value, value, "genetic search")


def _first_that_fits(problem: Problem) -> Integers:
    """Start one job on its least configuration."""
    for row in range(len(problem.values)):
        choice = problem.start.copy()
        choice[row] = 1
        if problem.fits(choice):
            return choice
    return problem.start


def search(problem: Problem, parameters: ParmGaParameters, seed: str) -> Integers:
    """Return the best choice that the genetic algorithm sees."""
    algorithms, base, tools = _deap()
    options = np.isfinite(problem.values).sum(axis=1).tolist()
    lows = problem.start.tolist()
    highs = [low + count - 1 for low, count in zip(lows, options, strict=True)]

    class Fitness(base.Fitness):  # type: ignore[name-defined, misc]
        weights = (1.0,)

    class Choice(list[int]):
        def __init__(self, genes: list[int]) -> None:
            super().__init__(genes)
            self.fitness = Fitness()

        def __deepcopy__(self, memo: object) -> Choice:
            copy = Choice(self)
            copy.fitness.values = self.fitness.values
            return copy

    toolbox = base.Toolbox()
    toolbox.register("clone", lambda choice: choice.__deepcopy__(None))  # no search for what to copy
    toolbox.register("mate", tools.cxTwoPoint if len(lows) > 1 else lambda a, b: (a, b))
    chance = 1.0 / len(lows)
    toolbox.register("mutate", _mutate, lows=lows, highs=highs, chance=chance)
    changed = 1.0 if parameters.first == "random" else chance
    with _own_random(seed):
        crowd = [
            tools.mutUniformInt(Choice(lows), lows, highs, changed)[0] for _ in range(parameters.population)
        ]
        _value(problem, crowd)
        for _ in range(parameters.generations):
            parents = tools.selBest(crowd, parameters.parents)
            drawn = random.choices(parents, k=parameters.population - parameters.parents)
            children = algorithms.varAnd(drawn, toolbox, cxpb=1.0, mutpb=parameters.mutation)
            _value(problem, children)
            crowd = parents + children
        best = tools.selBest(crowd, 1)[0]
    return np.array(best, dtype=np.int64) if best.fitness.values[0] >= 0 else problem.start


def _mutate(choice: list[int], lows: list[int], highs: list[int], chance: float) -> tuple[list[int]]:
    """Do as DEAP's mutUniformInt, but draw the distance to the next changed gene."""
    kept = math.log1p(-chance) if chance < 1 else -math.inf
    at = int(math.log(1.0 - random.random()) / kept)
    while at < len(choice):
        choice[at] = random.randint(lows[at], highs[at])
        at += 1 + int(math.log(1.0 - random.random()) / kept)
    return (choice,)


def _value(problem: Problem, crowd: list[Any]) -> None:
    """Set the fitness of all choices at once."""
    genes = np.array(crowd, dtype=np.int64)
    rows = np.arange(genes.shape[1])
    value, units, watts = (
        table[rows, genes].sum(axis=1) for table in (problem.values, problem.units, problem.watts)
    )
    over = _excess(units, problem.max_units) + _excess(watts, problem.max_watts)
    for choice, fitness in zip(crowd, np.where(over > 0, -over, value).tolist(), strict=True):
        choice.fitness.values = (fitness,)


def _excess(taken: Floats, limit: float) -> Floats:
    """Compute by how much the limit is exceeded, relatively; 0 within it."""
    return np.maximum(taken - limit, 0.0) / max(limit, 1.0)


@contextmanager
def _own_random(seed: str) -> Iterator[None]:
    """Give Python's global generator, which DEAP uses, a seed of ours, and then its own state back."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _deap() -> tuple[Any, Any, Any]:
    try:
        from deap import algorithms, base, tools
    except ImportError as error:
        raise BadInput(
            "policy parm-ga needs DEAP, which is not installed", "pip install 'tenbin[genetic]'"
        ) from error
    return algorithms, base, tools
