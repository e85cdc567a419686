"""The layer, compiled at its first use and kept for the next.

``python -P -m agent.opencl_layer.build`` prints the path of the library, or why there is none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.opencl_layer import generate
from agent.users import default_storage
from profiles.errors import BadInput, Unavailable
from profiles.files.safe_files import closed_folder, not_own

SOURCES = Path(__file__).with_name("src")
REMEDY = "apt-get install g++ opencl-c-headers"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-deprecated-declarations")
# Programs bring C++ libraries of their own, so the layer brings its own too.
STATIC = ("-static-libstdc++", "-static-libgcc")


def find_compiler() -> str | None:
    """Find a C++ compiler; None where there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def trouble() -> str:
    """Say why the layer cannot be compiled here; "" if it can."""
    compiler = find_compiler()
    if compiler is None:
        return "no C++ compiler"
    headers = ["-include", "CL/cl_icd.h", "-include", "CL/cl_layer.h"]
    command = [compiler, "-E", "-x", "c++", *headers, "/dev/null"]
    return "" if _run(command).returncode == 0 else "no OpenCL headers"


def of_sources() -> str:
    """Return a digest of what the layer is compiled from."""
    return _fingerprint((), [*sorted(SOURCES.glob("*.[ch]*")), Path(generate.__file__)])


def build(folder: Path | None = None, options: Sequence[str] = ()) -> Path:
    """Return the library, compiled before if there is none of these sources.

    Args:
        folder: where libraries are kept; None: below ``~/.cache/tenbin``.
        options: more options of the compiler, as ``-DTENBIN_OPENCL_TESTS``.

    Raises:
        Unavailable: there is no C++ compiler, there are no headers, or the compiler fails; or others could
            exchange the library.
    """
    compiler = find_compiler()
    if compiler is None:
        raise Unavailable("no C++ compiler for the OpenCL layer", REMEDY)
    command = [compiler, *FLAGS, *options, f"-I{SOURCES}"]
    try:
        place = closed_folder(folder or closed_folder(default_storage()) / "opencl-layer")
    except BadInput as error:
        raise Unavailable(f"no folder for the OpenCL layer: {error.what}", error.remedy) from error
    with _alone(place), tempfile.TemporaryDirectory(dir=place, prefix=".building-") as aside:
        table = Path(aside) / "table.cpp"
        table.write_text(_table(compiler))
        sources = [*sorted(SOURCES.glob("*.cpp")), table]
        here = (*command, platform.machine(), *platform.libc_ver())  # nodes may share the folder
        library = place / f"layer-{_fingerprint(here, [*sources, *sorted(SOURCES.glob('*.h'))])}.so"
        if not _is_own(library):
            made = _compile(command, sources, Path(aside))
            made.chmod(0o755)
            made.replace(library)
    return library


def _is_own(library: Path) -> bool:
    """Tell whether the library is there and nobody else can have written it."""
    try:
        return not not_own(library.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that of several that start at once one compiles and the others find the library."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # not on all network file systems: then each compiles
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _table(compiler: str) -> str:
    """Generate the table of entry points from the headers of this system."""
    command = [compiler, "-E", "-P", "-DCL_TARGET_OPENCL_VERSION=300", "-include", "CL/cl_icd.h", "-x", "c++"]
    done = _run([*command, "/dev/null"])
    if done.returncode:
        raise Unavailable("no OpenCL headers for the OpenCL layer", REMEDY)
    return generate.generate(done.stdout, "".join(path.read_text() for path in SOURCES.glob("*.cpp")))


def _fingerprint(command: Sequence[str], files: Sequence[Path]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: Sequence[str], sources: Sequence[Path], aside: Path) -> Path:
    """Compile a share of the sources on each core, and link them.

    A share is one unit, because the headers take longer than the sources.
    """
    cores = min(os.cpu_count() or 1, len(sources))

    def compile_share(number: int) -> str:
        unit, made = aside / f"unit-{number}.cpp", aside / f"unit-{number}.o"
        unit.write_text("".join(f'#include "{source.absolute()}"\n' for source in sources[number::cores]))
        _check(_run([*command, "-c", str(unit), "-o", str(made)]))
        return str(made)

    with ThreadPoolExecutor(cores) as pool:
        objects = list(pool.map(compile_share, range(cores)))
    library = aside / "layer.so"
    sanitized = any(option.startswith("-fsanitize") for option in command)
    static = () if sanitized else STATIC
    _check(_run([*command, "-shared", *static, "-o", str(library), *objects]))
    return library


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
        raise Unavailable(f"the OpenCL layer cannot be compiled: {said.strip()}", REMEDY)


if __name__ == "__main__":
    try:
        print(build())
    except Unavailable as error:
        sys.exit(str(error))
