"""What this user may do in Slurm, and what he cannot do for want of rights.

Tried with Slurm 22.05: a plain user may hold, pin, release, requeue and cancel his own jobs; an operator may
also suspend, and steer everybody's jobs; partitions and node states take an administrator, SlurmUser or root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.doctor.finding import Finding, limited, ok
from profiles.errors import Unavailable
from scheduler.engines.slurm.client.tools import Slurm

STEPS = (
    ("submit, pin, requeue and cancel jobs of one's own", 0),
    ("suspend and resume jobs, steer other users' jobs (tenbin up --take-over), reservations", 1),
    ("set dead nodes down, so that their jobs need not wait for SlurmdTimeout; make partitions", 2),
)
RANKS = {"Operator": 1, "Administrator": 2, "Admin": 2}
TITLES = {0: "a plain user", 1: "an operator", 2: "an administrator"}


def slurm_user(config: Mapping[str, str]) -> str:
    """``SlurmUser`` as a name: ``slurm`` from ``slurm(64030)``."""
    return re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root")).strip()


def steers_all(user: str, uid: int, slurm_user: str, level: str) -> bool:
    """Whether he may steer everybody's jobs; ``level`` as for ``check``."""
    return uid == 0 or user == slurm_user or RANKS.get(level, 0) > 0


def steers_nodes(user: str, uid: int, slurm_user: str, level: str) -> bool:
    """Whether he may set nodes down and make partitions; ``level`` as for ``check``."""
    return uid == 0 or user == slurm_user or RANKS.get(level, 0) > 1


def check(user: str, uid: int, slurm_user: str, level: str, why: str) -> Iterator[Finding]:
    """What ``user`` may do.

    Args:
        level: of the accounting database: ``None``, ``Operator``, ``Administrator``; empty: not known.
        why: it is not known.
    """
    if uid == 0 or user == slurm_user:
        who = "root" if uid == 0 else f"SlurmUser ({user})"
        yield ok("rights", f"{who}: everything, for every user")
        return
    rank = RANKS.get(level, 0)
    may = "; ".join(what for what, needed in STEPS if needed <= rank)
    yield ok("rights", f"{user} is {TITLES[rank]}: may {may}")
    lacking = "; ".join(what for what, needed in STEPS if needed > rank)
    if not lacking:
        return
    if why:
        remedy = f"run the coordinator as {slurm_user} or root, or set up slurmdbd and then: " + _grant(user)
    else:
        remedy = f"as an administrator: {_grant(user)}"
    yield limited("rights", f"{user} may not {lacking}", why or "Slurm's database gives no more", remedy)


def _grant(user: str) -> str:
    return f"sacctmgr modify user {user} set adminlevel=Administrator"


def admin_level(slurm: Slurm, config: Mapping[str, str], user: str) -> tuple[str, str]:
    """``None``, ``Operator`` or ``Administrator``, as the accounting database has it; else why not."""
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return "", "there is no accounting database (slurmdbd) that could give rights"
    try:
        said = slurm.call("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel").strip()
    except Unavailable as error:
        return "", f"the accounting database cannot be asked ({error.what})"
    return said.split("\n")[0].strip(), ""
