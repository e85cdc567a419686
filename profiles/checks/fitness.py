"""Fitness of nodes for jobs, by the last check of each that could tell."""

from __future__ import annotations

from pathlib import Path

from profiles.checks.check import Verdict
from profiles.checks.store import CheckStore
from profiles.errors import BadInput

UNFIT = "tenbin check: "  # how the reason of a node that failed its check begins
LAST = 20  # checks in which one that could tell is looked for, because the coordinator waits meanwhile
TELLS = (Verdict.PASS, Verdict.CHANGED)


class Fitness:
    """The last checks of nodes, read again when their file has changed."""

    def __init__(self, root: Path | None = None) -> None:
        self._store = CheckStore(root)
        self._known: dict[str, tuple[float, str | None]] = {}

    def why_unfit(self, node: str) -> str | None:
        """Say why a node failed its last check; "" if it passed, None if no check could tell."""
        try:
            changed_s = self._store.path(node).stat().st_mtime
        except OSError:
            return None
        known = self._known.get(node)
        if known is None or known[0] != changed_s:
            self._known[node] = known = changed_s, self._read(node)
        return known[1]

    def _read(self, node: str) -> str | None:
        try:
            checks = self._store.of_node(node, LAST)
        except BadInput:
            return None
        last = next((check for check in reversed(checks) if check.verdict in TELLS), None)
        if last is None:
            return None
        if last.verdict is Verdict.PASS:
            return ""
        return UNFIT + "; ".join([last.reason, *(cause.sentence for cause in last.causes)])
