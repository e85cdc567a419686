"""The installer, with a Python and an apt-get in front of the real ones that only note what they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
echo "$*" >>"$NOTES"
case "$*" in *opencl_layer.build*) [ -z "$TROUBLE" ] || { echo "$TROUBLE" >&2; exit 1; } ;; esac
"""


@pytest.mark.parametrize("trouble", ["", "no C++ compiler for the OpenCL layer; apt-get install g++"])
def test_the_opencl_layer_is_compiled(tmp_path: Path, trouble: str) -> None:
    """A job that starts right after it can be moved; what is missing is said, and hinders nothing else."""
    if not list(Path("/etc/OpenCL/vendors").glob("*.icd")):
        pytest.skip("no OpenCL driver")
    shutil.copy(ROOT / "install", tmp_path)
    for path, text in (
        ("bin/apt-get", "#!/bin/sh\n"),
        ("bin/sudo", "#!/bin/sh\n"),
        (".venv/bin/python", PYTHON),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    notes = tmp_path / "notes"
    own = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHON": str(tmp_path / ".venv/bin/python"),
        "NOTES": str(notes),
        "TROUBLE": trouble,
    }
    done = subprocess.run(
        [tmp_path / "install"], env={**os.environ, **own}, capture_output=True, text=True, check=True
    )
    last = notes.read_text().splitlines()[-2:]
    assert last[0].startswith("-m pip install ")
    assert last[1] == "-P -m agent.opencl_layer.build"
    said = f"install: unmodified OpenCL programs cannot be moved: {trouble}\n"
    assert (said in done.stderr) == bool(trouble)
    assert "install: done; try: " in done.stderr
