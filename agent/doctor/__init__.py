"""The doctor: what can be measured on this node and what not, with reasons and remedies.

Nothing is changed, apart from a file of one page in each checkpoint folder that is removed at once.
"""

from __future__ import annotations

from agent.doctor import load, machine, power, probes
from agent.doctor.finding import Case, Finding
from agent.inventory import gather
from agent.inventory.files import Roots
from agent.paths import default_storage
from probes.registry import PROBES
from profiles.inventory import Inventory
from profiles.records import Profile, Settings

__all__ = ["Finding", "examine"]


def examine(
    settings: Settings, inventory: Inventory | None = None, last: Profile | None = None
) -> list[Finding]:
    """Collect all findings, by probe in the order of the registry, then those of the whole machine.

    Args:
        settings: where to look; without checkpoint folders, at the default folder of a profile.
        inventory: the node's inventory, if it is known already.
        last: the node's last profile; a finding says how the node has changed since.
    """
    if not settings.storage:
        settings = settings.model_copy(update={"storage": (default_storage(),)})
    roots = Roots.of(settings)
    busy = list(load.check(roots))  # before the drivers are asked, which is work too
    case = Case(inventory or gather(settings), roots)
    findings = [*probes.check(case), *power.check(case), *machine.check(case), *busy]
    if last is not None:
        findings += machine.changes(case, last)
    order = [*PROBES, "machine"]
    return sorted(findings, key=lambda finding: order.index(finding.topic))
