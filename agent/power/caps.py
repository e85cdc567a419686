"""The power cap of a job that has whole nodes of a cluster: what is wanted, and what is in force.

    cap.json   what the coordinator wants; its number grows
    held.json  which of that the job's supervisor has brought about, on all its nodes

Both lie in the attempt's folder, on the shared disk, and each has one writer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from agent.attempts.folder import Attempt
from profiles.files import write_whole

WISH, HELD = "cap.json", "held.json"


@dataclass(frozen=True)
class Wish:
    """The cap of each node.

    Attributes:
        most_w: the highest cap that may be in force until this one is.
    """

    number: int
    cap_w: float
    most_w: float


@dataclass(frozen=True)
class Held:
    """Wish ``number`` was carried out: this cap is in force on each node; None: they are as found."""

    number: int
    cap_w: float | None


def wish(attempt: Attempt, wanted: Wish) -> None:
    """Raises OSError: it cannot be written."""
    write_whole(attempt.path / WISH, json.dumps(asdict(wanted)))


def wished(attempt: Attempt) -> Wish | None:
    """The last one; None if there is none, or something else."""
    return attempt.read(Wish, WISH)


def tell(attempt: Attempt, held: Held) -> None:
    """Raises OSError: it cannot be written."""
    write_whole(attempt.path / HELD, json.dumps(asdict(held)))


def held(attempt: Attempt) -> Held | None:
    """The last one; None if there is none, or something else."""
    return attempt.read(Held, HELD)
