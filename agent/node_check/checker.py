"""The making of a check: facts, slices, conditions. Its verdict is given by ``profiles.checks.verdict``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version

from agent.inventory import gather
from agent.lock import node_lock
from agent.node_check.conditions import CheckWatch
from agent.node_check.facts import facts_of
from agent.node_profile.child import run_child
from agent.node_profile.identity import node_kind
from agent.paths import default_storage
from probes.folders import inspect_folder
from probes.registry import BATTERY, CHECKS
from probes.run import Event
from profiles.checks.check import Check, stamp
from profiles.checks.figures import cpu_share, figures
from profiles.errors import Unavailable
from profiles.files.safe_files import make_folder
from profiles.records import Absent, Settings

LATEST_S = 28.0  # after which the battery is stopped, however long it prepares

Tell = Callable[[str], None]


def make_check(
    settings: Settings, profile: str | None, tell: Tell = lambda doing: None, quiet: str = ""
) -> Check:
    """Check this node: without verdict yet.

    Args:
        settings: quick or not, storage folders (the first is measured), hosts, seed.
        profile: id of the node's last profile.
        quiet: who was asked for a quiet moment, and the answer.

    Raises:
        Busy: another check or profile is measuring this node.
    """
    settings, heard = _complete(settings), _Heard()
    with node_lock():
        created = datetime.now(UTC)
        tell("what the machine is")
        inventory = gather(settings)
        facts = facts_of(inventory, settings)
        tell("how fast it is")
        watch = CheckWatch.begin(settings.sysfs)
        ended = run_child(BATTERY, settings, heard.hear, LATEST_S)
        conditions = watch.ended(quiet)
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.trouble:
        reason = f"the slices {ended.trouble} while at: {heard.doing}"
        heard.absent.append(Absent(probe=BATTERY, what="part of the check", reason=reason, failed=True))
    share = cpu_share(heard.rows)
    return Check(
        id=stamp(created),
        node=inventory.hostname,
        created=created,
        tenbin_version=version("tenbin"),
        quick=settings.quick,
        profile=profile,
        kind=node_kind(inventory).key,
        figures=tuple(figures(heard.rows)),
        facts=facts,
        conditions=conditions.model_copy(
            update={"cpu_share_ratio": None if share is None else round(share, 4)}
        ),
        absent=tuple(heard.absent),
    )


@dataclass
class _Heard:
    """The events of the battery's process so far."""

    rows: list[dict[str, object]] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    doing: str = "starting"

    def hear(self, event: Event) -> None:
        if event["event"] == "sample":
            self.rows.append(event["row"])
        elif event["event"] == "absent":
            self.absent.append(Absent(**event["absent"]))
        else:
            self.doing = event["doing"]


def _complete(settings: Settings) -> Settings:
    """Add the time that the slices may take, and the default folder where none is named."""
    entry = CHECKS[BATTERY]
    update: dict[str, object] = {"budget_s": entry.quick_s if settings.quick else entry.full_s}
    if not settings.storage:
        folder = default_storage()
        with suppress(OSError, Unavailable):  # the battery says what is wrong with it
            inspect_folder(folder)
            make_folder(folder)
        update["storage"] = (folder,)
    return settings.model_copy(update=update)
