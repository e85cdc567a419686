"""Settings of weigh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WeighParameters:
    """Settings for operators.

    Attributes:
        fairness: weight of waits in the order of jobs; 0: the smallest area first.
        depth: number of jobs that are weighed in one decision.
        move: running jobs are moved between classes, and there or under caps give way to shorter ones.
        pause: on nodes jobs of unknown run time give way to each other also where they can only be paused.
        holes: jobs run in a hole before a reservation, and are stopped there.
        aim: least mean turnaround, or least makespan, where jobs share nodes, have caps, or may have more or
            fewer units.
        price: factor on prices, above 1 because jobs that are still to come will wait too; 0: each job ends
            as early as it can, whatever it takes from others.
        kwh_price: hours of turnaround that a kWh is worth in the choice of sizes and caps.
        most: largest number of jobs on a node that they share, where slow-downs are known.
    """

    fairness: float = 30.0
    depth: int = 64
    move: bool = True
    pause: bool = False
    holes: bool = True
    aim: Literal["turnaround", "makespan"] = "turnaround"
    price: float = 1.6
    kwh_price: float = 0.0
    most: int = 2

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in (self.fairness, self.price, self.kwh_price)):
            raise ValueError("fairness, price and kwh_price must be numbers from 0 on")
        if min(self.depth, self.most) < 1:
            raise ValueError("depth and most must be at least 1")
