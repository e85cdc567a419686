"""Small C libraries that stand between a program and what it calls, compiled when they are needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from profiles.errors import Unavailable

COMPILERS = ("cc", "gcc", "clang")


def build(source: Path, folder: Path, options: Sequence[str], what: str, remedy: str) -> Path:
    """Compile ``source`` into ``folder``; the library.

    Args:
        options: of the compiler. what: it is, in words. remedy: what to install.

    Raises:
        Unavailable: no C compiler, or it fails.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise Unavailable(f"no C compiler for {what}", remedy)
    library = folder / f"{source.stem}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
        raise Unavailable(f"{what} cannot be compiled: {said.strip()}", remedy)
    return library
