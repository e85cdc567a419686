"""Options of ``tenbin up``: how an engine declares its own, and the values that a user has given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from profiles.records import Profile


class Megabytes(float):
    """An amount of memory in MB, given as 20G or 2GiB."""


class Seconds(float):
    """A duration in seconds, given as 90, 90s or 1h30m."""


class Option(NamedTuple):
    """An option of one engine.

    Attributes:
        name: of the value; the option is ``--name``, with hyphens.
        kind: type of the value; bool: a switch.
        least: smallest number.
        metavar: the value in the help.
    """

    name: str
    kind: type
    help: str
    default: Any = None
    least: float | None = None
    metavar: str | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True)
class Asked:
    """A user's wishes for an engine.

    Attributes:
        home: folder of the coordinator.
        devices: OpenCL devices are scheduled, each a class of its own.
        power_budget_w: power for all of the cluster. emulate: what is emulated under it; "": nothing.
        drain_unfit: nodes that fail their last check (``profiles.checks.check``) get no jobs.
        profile: measured profile of a node.
        own: values of the engine's own options, by name.
    """

    policy: str
    home: Path
    devices: bool = False
    power_budget_w: float | None = None
    emulate: str = ""
    drain_unfit: bool = False
    profile: Profile | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
