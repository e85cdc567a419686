"""Speed beside a peer, or a physical limit, in the same run; nothing fails on a clock.

The papers' own sizes take minutes: set ``TENBIN_BENCHMARK_FULL=1`` for them. ``TENBIN_BENCHMARK_SMALL=1``:
each once, as small as it goes, to see that it runs at all; its figures tell nothing.
"""

import os
import sys
from collections.abc import Iterable
from typing import TypeVar

from tests.support.paths import ROOT

T = TypeVar("T")

FULL = bool(os.environ.get("TENBIN_BENCHMARK_FULL"))
SMALL = bool(os.environ.get("TENBIN_BENCHMARK_SMALL"))


# Python with the peers of PyPI (./install --dev): an environment of their own, because they pin old packages.
_PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEERS = str(_PEERS) if _PEERS.exists() else sys.executable


def amount(full: T, usual: T, small: T) -> T:
    """Choose how much is measured."""
    return small if SMALL else full if FULL else usual


def few(cases: Iterable[T]) -> list[T]:
    """Choose all cases, in the small the first."""
    return [*cases][: 1 if SMALL else None]
