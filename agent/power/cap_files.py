"""The files by which a coordinator requests a job's power cap and the job's supervisor confirms it.

    cap.json   the last request; the coordinator
    held.json  the cap in force; the supervisor

Both lie in the attempt's folder, and each has one writer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from agent.attempts import checked
from agent.attempts.folder import Attempt
from profiles.files.safe_files import write_whole

REQUEST, IN_FORCE = "cap.json", "held.json"


@dataclass(frozen=True)
class CapRequest:
    """The power cap that a job shall have.

    Attributes:
        cap_w: of each node, or of each of ``packages``; None: leave the limits as found.
        number: grows with each request.
        most_w: the highest cap that may be in force until this one is confirmed.
        packages: keys of the job's zones (``probes.powercap``); empty: all of each node.
    """

    cap_w: float | None
    number: int = 0
    most_w: float = 0.0
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class CapInForce:
    """Confirms request ``number``: this cap is in force; None: the limits are as found."""

    number: int
    cap_w: float | None
    packages: tuple[str, ...] = ()


def request_cap(attempt: Attempt, request: CapRequest) -> None:
    """Write the request; OSError if it cannot be written."""
    write_whole(attempt.path / REQUEST, json.dumps(asdict(request)))


def requested_cap(attempt: Attempt) -> CapRequest | None:
    """Read the last request; None if there is none, or the file is damaged."""
    return attempt.read(CapRequest, REQUEST)


def require_requested_cap(attempt: Attempt) -> CapRequest | None:
    """Read the last request, None if there is none. Raises as ``checked.read``."""
    return checked.read(CapRequest, attempt.path / REQUEST)


def confirm_cap(attempt: Attempt, cap: CapInForce) -> None:
    """Write which cap is in force; OSError if it cannot be written."""
    write_whole(attempt.path / IN_FORCE, json.dumps(asdict(cap)))


def cap_in_force(attempt: Attempt) -> CapInForce | None:
    """Read the confirmed cap; None if there is none, or the file is damaged."""
    return attempt.read(CapInForce, IN_FORCE)
