"""Small C libraries between a program and the libraries that it calls, compiled when they are needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from profiles.errors import Unavailable

COMPILERS = ("cc", "gcc", "clang")
REMEDY = "apt-get install gcc"
HEADERS_REMEDY = "apt-get install gcc libc6-dev"


def find_compiler() -> str | None:
    """Find a C compiler; None where there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def build(source: Path, folder: Path, options: Sequence[str], *, what: str, remedy: str) -> Path:
    """Compile ``source`` into ``folder`` and return the library.

    Args:
        options: of the compiler. what: name of the library, in words. remedy: packages to install.

    Raises:
        Unavailable: there is no C compiler, or the compiler fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise Unavailable(f"no C compiler for {what}", remedy)
    library = folder / f"{source.stem}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
        raise Unavailable(f"{what} cannot be compiled: {said.strip()}", remedy)
    return library
