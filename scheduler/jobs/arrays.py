"""Progress of each array of jobs. An array has a number of its own, and its members follow with theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from scheduler.jobs.dependencies import Standing
from scheduler.jobs.entry import Stage

# An array's stage is the first of these that a member has.
PRECEDENCE = (
    *(Stage.RUNNING, Stage.STOPPING, Stage.SUSPENDED, Stage.WAITING, Stage.HELD),
    *(Stage.FAILED, Stage.KILLED, Stage.CANCELLED, Stage.DONE),
)


def array_stage(members: Mapping[str, int] | Mapping[Stage, int]) -> Stage:
    """Return the stage of an array as a whole, which is always the stage of a member.

    A filter that finds members by their stage thus finds every array that is shown with that stage.

    Args:
        members: how many are in each stage.
    """
    return next(stage for stage in PRECEDENCE if members.get(stage))


class Arrays:
    """The members of each array: how many have ended in each final stage, and how many have not ended.

    Args:
        counts: array, stage and number of its members in that stage.
    """

    def __init__(self, counts: Iterable[tuple[int, str, int]] = ()) -> None:
        self._ended: dict[int, Counter[Stage]] = {}
        self._open: Counter[int] = Counter()
        for array, name, count in counts:
            ended, stage = self._ended.setdefault(array, Counter()), Stage(name)
            if stage.final:
                ended[stage] += count
            else:
                self._open[array] += count

    def __contains__(self, number: int) -> bool:
        return number in self._ended

    def add(self, array: int, members: int) -> None:
        """Take in a new array."""
        self._ended.setdefault(array, Counter())
        self._open[array] += members

    def end(self, array: int, stage: Stage) -> None:
        """Note the end of a member."""
        self._open[array] -= 1
        self._ended[array][stage] += 1

    def run_again(self, array: int, stage: Stage) -> None:
        """Note that a member that had ended in this stage runs again."""
        self._open[array] += 1
        self._ended[array][stage] -= 1

    def __iter__(self) -> Iterator[int]:
        return iter(self._ended)

    def open(self, array: int) -> int:
        """Count the members that have not ended."""
        return self._open[array]

    def members(self, array: int) -> int:
        """Count all members."""
        return self._open[array] + self._ended[array].total()

    def ended(self, array: int) -> Counter[Stage]:
        """Count the members that have ended, by their final stage."""
        return self._ended[array]

    def failed(self, array: int) -> int:
        """Count the members that have ended without success."""
        ended = self._ended[array]
        return ended.total() - ended[Stage.DONE]

    def standing(self, array: int) -> Standing:
        """Return how far the whole is for those that wait for it."""
        return Standing(not self._open[array], self.failed(array) > 0)
