"""Pages of the documentation, typed in from top to bottom: every command runs, and prints what the page says.

Blocks in fences are commands (``sh``, ``python``) or what those before print (``text``); what needs more than
two cores and PoCL is marked by ``needs=`` and not run, unless a test has it. Some programs get less work
(``LESS``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from tests.support.labs.components import require
from tests.support.paths import ROOT

FENCE = re.compile(r"^```(\S+)(?: needs=(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {"RAPL", "Slurm"}
MARK = "=== block "
LESS = (
    ("examples/cg.py", "examples/cg.py --cells 100"),
    ("stencil.py --steps 5000", "stencil.py --steps 5000 --cells 512"),
)
VARIES = re.compile(r"(\.\.\.|\d+\.\d+(?:e[-+]\d+)?(?: (?:s|ms|us)\b)?)")


class Block(NamedTuple):
    """Commands of the page, and the pattern of what they print; None: the page does not say."""

    script: str
    prints: str | None


def blocks(page: str, has: str = "") -> Iterator[Block]:
    """Find the blocks that can be run here, in order; ``has`` is what a test has of ``NEEDS``."""
    fences = FENCE.findall(page)
    for (kind, needs, text), (next_kind, _, prints) in zip(fences, [*fences[1:], ("", "", "")], strict=True):
        assert kind in ("sh", "python", "text"), f"```{kind}: nobody looks whether that is right"
        assert not needs or needs in NEEDS, needs
        if kind != "text" and needs in ("", has):
            script = text if kind == "sh" else f"python3 - <<'END'\n{text}END\n"
            for more, less in LESS:
                script = script.replace(more, less)
            yield Block(script, prints if next_kind == "text" else None)


def matches(prints: str, printed: str) -> bool:
    """Compare with the page's text.

    ``...`` stands for anything, a decimal number for any number, a decimal time also in another unit, and
    spaces count as one.
    """
    parts = VARIES.split(" ".join(prints.split()))
    plain = [re.escape(part).replace(r"\ ", r"\s+") for part in parts[::2]]
    varying = [
        ".*" if part == "..." else r"[-+.e\d]+" + r"\s+(s|ms|us)" * part.endswith("s") for part in parts[1::2]
    ]
    pattern = "".join(chain.from_iterable(zip_longest(plain, varying, fillvalue="")))
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


def type_in(name: str, home: Path, *, running: bool = True, has: str = "", **variables: str) -> None:
    """Run the commands of a page in a new queue, whose coordinator runs before if ``running``.

    ``/shared/me`` is ``home``.
    """
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    require((ROOT / ".venv" / "bin" / "tenbin").exists(), "what ./install makes: .venv/bin/tenbin")
    page = (ROOT / "docs" / f"{name}.md").read_text().replace("/shared/me", str(home))
    typed = list(blocks(page, has))
    assert typed
    gone = ("TENBIN_", "POCL_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(gone)}
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    own = {"HOME": str(home), "COLUMNS": "120", "TENBIN_SHARE": "1", "PATH": path}
    environment = {**kept, **own, **variables}
    script, output = home / "script", home / "output"
    marked = "".join(f"echo '{MARK}{number}'\n{block.script}" for number, block in enumerate(typed))
    script.write_text(f"set -e\n{'tenbin up --daemon' if running else ''}\n{marked}")
    try:
        with output.open("w") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            done = subprocess.run(["bash", script], env=environment, cwd=ROOT, check=False, **streams)
        parts = re.split(f"^{MARK}\\d+\n", output.read_text(), flags=re.MULTILINE)[1:]
        assert done.returncode == 0, f"{typed[len(parts) - 1].script}\nprinted:\n{parts[-1]}"
        both = [
            (block, printed) for block, printed in zip(typed, parts, strict=True) if block.prints is not None
        ]
        wrong = [(block.script, printed) for block, printed in both if not matches(block.prints, printed)]
        assert not wrong, "\n".join(f"{script}\nprinted:\n{printed}" for script, printed in wrong)
    finally:
        tenbin = shutil.which("tenbin", path=str(Path(sys.executable).parent)) or "tenbin"
        for words in (("cancel", "all"), ("down",)):  # nothing is left of one that failed half-way
            subprocess.run([tenbin, *words], env=environment, capture_output=True, check=False)
