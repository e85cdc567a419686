"""The pictures of a node's report, drawn in a process of its own.

That process has pandas and plotly, which would cost the page memory and hold up its other answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from profiles.files.store import JobStore, Store

DRAW_S = 120.0
KEPT = 8  # nodes whose pictures are kept


class Measured:
    """The view of what is measured; pictures are drawn again when there is a new profile.

    Args:
        store: the stored profiles; None: the default place.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or Store()
        self._kept: OrderedDict[tuple[Path, ...], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, node: str) -> dict[str, Any] | None:
        """Return headline and sections of a node's newest profile; None: nothing was measured.

        Raises:
            BadInput: the pictures cannot be drawn.
        """
        paths = [] if node.startswith(".") or "/" in node else self._store.of_node(node)
        if not paths:
            return None
        key = paths[0], *JobStore(self._store.root).paths()[:1]
        with self._lock:  # one at a time: each takes a processor
            if key not in self._kept:
                self._kept[key] = _drawn(paths[0])
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return self._kept[key]


def _drawn(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "tenbin.page.views.measured", str(path)]
    remedy = f"see what it says by itself: tenbin report {path.parent.name} -o report.html"
    try:
        done = subprocess.run(command, capture_output=True, timeout=DRAW_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"{path}: its pictures are not drawn after {DRAW_S:g} s", remedy) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["its process was killed"]
        raise BadInput(f"{path}: {said[-1]}", remedy)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Print the pictures of the profile that the first argument names, as JSON."""
    from profiles.card import trust
    from profiles.files.store import load, samples
    from tenbin import text
    from tenbin.report.page import jobs_beside, sections

    path = Path(sys.argv[1])
    try:
        profile = load(path)
        found = {
            "id": profile.id,
            "headline": text.headline(profile),
            "trust": trust(profile).sentence,
            "emulated": profile.emulated,
            "sections": sections(profile, samples(path), jobs_beside(path, profile)),
        }
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
