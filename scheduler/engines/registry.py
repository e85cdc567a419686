"""The engines that ``tenbin up`` can start; an engine is one folder and one line here.

The folder has a module ``options`` with ``OPTIONS`` (its own options), ``OF`` (what they are of, for the
message to somebody who gives them to another engine) and ``check``, and a module ``discovery`` with
``find(request)``, a context manager that gives a ``protocol.Machine``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from profiles.errors import BadInput

if TYPE_CHECKING:
    from profiles.records import Profile
    from scheduler.engines.protocol import Machine

# -- options of an engine ----------------------------------------------------------------------------------


class Megabytes(float):
    """An amount of memory in MB, given as 20G or 2GiB."""


class Seconds(float):
    """A duration in seconds, given as 90, 90s or 1h30m."""


class IdleRule(NamedTuple):
    """A rule for jobs that do nothing on all of their GPUs for so long, given as 2h=end or 2h=park."""

    after_s: float
    then: Literal["end", "park"]


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
class UpRequest:
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


ENGINES = {
    "local": "scheduler.engines.local",
    "slurm": "scheduler.engines.slurm",
}
DEFAULT = "local"
GPUS = "gpus-"  # so begin the names of emulated GPUs


def options(engine: str) -> tuple[Option, ...]:
    """Return the options that only this engine has."""
    declared: tuple[Option, ...] = _module(engine, "options").OPTIONS
    return declared


def check(engine: str, request: UpRequest, *, profiled: bool) -> None:
    """Refuse options of other engines, and options that do not go together.

    Args:
        request: with the values of the options of all engines. profiled: a profile is named, not yet loaded.

    Raises:
        BadInput: names the options.
    """
    gpus = engine == DEFAULT and request.emulate.startswith(GPUS)
    if request.emulate and request.power_budget_w is None and not gpus:
        raise BadInput("--emulate is of power caps, or of GPUs", "add --power-budget, or write gpus-4")
    for other in ENGINES.keys() - {engine}:
        of = _module(other, "options").OF
        for option in options(other):
            if request.own[option.name] == option.default:
                continue
            if other == DEFAULT:
                raise BadInput(f"{option.flag} with --engine {engine}: it is of {of}", "leave it out")
            raise BadInput(f"{option.flag} is of {of}", f"add --engine {other}")
    _module(engine, "options").check(request, profiled=profiled)


def find(engine: str, request: UpRequest) -> AbstractContextManager[Machine]:
    """Find the resources of an engine; what is emulated lasts until the context ends."""
    context: AbstractContextManager[Machine] = _module(engine, "discovery").find(request)
    return context


def _module(engine: str, name: str) -> ModuleType:
    return import_module(f"{ENGINES[engine]}.{name}")
