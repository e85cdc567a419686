"""The fields of a job that a program may give: a misspelt one is refused before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tenbin.errors import TenbinError

# Those of the API's JobSpec, which needs more than the standard library; a test compares.
FIELDS = frozenset(
    {
        "account",
        "after",
        "after_any",
        "after_corr",
        "after_not_ok",
        "array_index",
        "array_limit",
        "begin_s",
        "cap_curve",
        "checkpoint_code",
        "checkpoint_signal",
        "cores",
        "deadline_s",
        "device",
        "env",
        "expect_s",
        "folder",
        "grace_s",
        "job_profile",
        "load",
        "max_nodes",
        "max_tasks",
        "memory_mb",
        "move",
        "mpi",
        "name",
        "nodes",
        "priority",
        "requeue",
        "retries",
        "retry_codes",
        "retry_pause_s",
        "share",
        "slurm_variables",
        "speedup",
        "stderr",
        "stdout",
        "tasks",
        "time_s",
    }
)


class UnknownField(TenbinError, TypeError):
    """There is no such field of a job; also a ``TypeError``."""


def check_fields(given: Iterable[str], of: str, known: frozenset[str] = FIELDS) -> None:
    """Refuse names that are no fields of a job.

    Args:
        of: the call that they were given to, for the message.

    Raises:
        UnknownField: one is not among ``known``; the text names near ones.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
            raise UnknownField(f"{of} has no argument {name!r}; {hint}", 2)
