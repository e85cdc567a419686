"""Rights of this user in Slurm.

As seen with Slurm 22.05, a plain user may hold, pin, release, requeue and cancel jobs of his own. An operator
may also suspend jobs, and steer those of other users. Partitions and states of nodes take an administrator,
SlurmUser or root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent.users import user_name
from profiles.errors import Unavailable
from scheduler.engines.slurm.client.tools import Slurm

RANKS = {"Operator": 1, "Administrator": 2, "Admin": 2}


@dataclass(frozen=True)
class Rights:
    """Rights of a user.

    Attributes:
        slurm_user: the user as whom slurmctld runs.
        level: from the accounting database: ``None``, ``Operator``, ``Administrator``; empty if not known.
        why_unknown: the reason if the level is not known.
    """

    user: str
    uid: int
    slurm_user: str
    level: str
    why_unknown: str = ""

    @property
    def unlimited(self) -> bool:
        return self.uid == 0 or self.user == self.slurm_user

    @property
    def rank(self) -> int:
        """0 for a plain user, 1 for an operator, 2 for an administrator."""
        return 2 if self.unlimited else RANKS.get(self.level, 0)

    @property
    def steers_jobs(self) -> bool:
        """Tell if the user may steer other users' jobs."""
        return self.rank > 0

    @property
    def steers_nodes(self) -> bool:
        """Tell if the user may set nodes down and make partitions."""
        return self.rank > 1

    @property
    def because(self) -> str:
        """The reason for an unknown level in brackets, for the end of a sentence."""
        return f" ({self.why_unknown})" if self.why_unknown else ""


def own_rights(slurm: Slurm, config: Mapping[str, str]) -> Rights:
    """Ask Slurm for the rights of the user of this process."""
    uid = os.getuid()
    user = user_name(uid)
    return Rights(user, uid, slurm_user(config), *_level(slurm, config, user))


def slurm_user(config: Mapping[str, str]) -> str:
    """Return ``SlurmUser`` as a name: ``slurm`` from ``slurm(64030)``."""
    return re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root")).strip()


def _level(slurm: Slurm, config: Mapping[str, str], user: str) -> tuple[str, str]:
    """Return the level in the accounting database, and why it is not known."""
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return "", "there is no accounting database (slurmdbd) that could give rights"
    try:
        said = slurm.call("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel").strip()
    except Unavailable as error:
        return "", f"the accounting database cannot be asked ({error.what})"
    return said.split("\n")[0].strip(), ""
