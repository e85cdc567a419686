"""``job_submit.lua``, which makes jobs of plain ``sbatch`` wait for tenbin while tenbin runs."""

from __future__ import annotations

from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).with_name("job_submit.lua")  # a dollar sign of Lua is doubled there


def script(lease: Path, partition: str | None) -> str:
    """Return the script for a lease file and a partition (None for Slurm's default one)."""
    names = {"lease": _quoted(str(lease)), "partition": _quoted(partition) if partition else "nil"}
    return Template(TEMPLATE.read_text()).substitute(names)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
