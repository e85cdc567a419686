"""Simulations in users' programs: ``tenbin simulate`` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenbin.errors import TenbinError

# A program may have modules named like tenbin's packages: these come first in the other process.
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tenbin.cli import main; main()"


def simulate(
    policies: str | Sequence[str],
    workload: str,
    cluster: str,
    *,
    profiles: Sequence[str] = (),
    store: Path | str | None = None,
    seed: int = 0,
    limit: int | None = None,
    without_estimate: str = "unknown",
    warm_up: str | None = None,
    cool_down: str | None = None,
) -> list[dict[str, Any]]:
    """Simulate policies on the same jobs; the metrics of each, with units in their names.

    Of several policies, one that cannot schedule the cluster is left out with a warning.

    Args:
        policies, workload, cluster, profiles, store, seed, limit, without_estimate, warm_up, cool_down: as
            the options of ``tenbin simulate``.

    Raises:
        TenbinError: one of them makes no sense.
    """
    chosen = [policies] if isinstance(policies, str) else policies
    given = [*(f"--policy={text}" for text in chosen), *(f"--profile={text}" for text in profiles)]
    given += [f"--workload={workload}", f"--cluster={cluster}", f"--seed={seed}"]
    given += [f"--without-estimate={without_estimate}", "--json"]
    given += [] if limit is None else [f"--limit={limit}"]
    given += [] if warm_up is None else [f"--warm-up={warm_up}"]
    given += [] if cool_down is None else [f"--cool-down={cool_down}"]
    given += [] if store is None else [f"--store={store}"]
    command = [sys.executable, "-P", "-c", START, str(Path(__file__).parents[2]), "simulate", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TenbinError(done.stderr.strip().removeprefix("tenbin: "), done.returncode)
    printed = json.loads(done.stdout)
    for name, reason in printed["unsuitable"].items():
        warnings.warn(f"policy {name} is left out: {reason}", stacklevel=2)
    found: list[dict[str, Any]] = printed["results"]
    return found
