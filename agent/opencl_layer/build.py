"""The layer, compiled at its first use and kept for the next.

``python -P -m agent.opencl_layer.build`` prints the path of the library, or why there is none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from profiles.errors import BadInput, Unavailable
from profiles.files.safe_files import closed_folder, default_storage, not_own

SOURCES = Path(__file__).with_name("src")
REMEDY = "apt-get install g++ opencl-c-headers"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wno-deprecated-declarations")
UNITS = 4
# Programs bring C++ libraries of their own, so the layer brings its own too.
STATIC = ("-static-libstdc++", "-static-libgcc")


def find_compiler() -> str | None:
    """Find a C++ compiler; None where there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def installed_files() -> list[Path]:
    """List what ``trouble`` rests on: the compiler, and where headers are."""
    named = ":".join(os.environ.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH"))
    folders = ["/usr/include", "/usr/local/include", *filter(None, named.split(":"))]
    headers = [Path(folder, "CL", name) for folder in folders for name in ("", "cl_icd.h", "cl_layer.h")]
    return [*map(Path, filter(None, [find_compiler()])), *headers, Path(__file__)]


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
    return _fingerprint((), [*sorted(SOURCES.glob("*.[ch]*")), Path(__file__)])


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
    return generate(done.stdout, "".join(path.read_text() for path in SOURCES.glob("*.cpp")))


def _fingerprint(command: Sequence[str], files: Sequence[Path]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: Sequence[str], sources: Sequence[Path], aside: Path) -> Path:
    """Compile the sources in a few units, side by side, and link them.

    The headers take longer than the sources. The units are the same on every machine: with others, a source
    could lack what another one of its unit includes.
    """

    def compile_unit(number: int) -> str:
        unit, made = aside / f"unit-{number}.cpp", aside / f"unit-{number}.o"
        unit.write_text("".join(f'#include "{source.absolute()}"\n' for source in sources[number::UNITS]))
        _check(_run([*command, "-c", str(unit), "-o", str(made)]))
        return str(made)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, UNITS)) as pool:
        objects = list(pool.map(compile_unit, range(UNITS)))
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


# -- pass-through of all entry points, generated from the system's headers ----------------------------------
#
# Every function of the dispatch table in ``CL/cl_icd.h`` becomes an entry of the layer. Those that the
# layer's sources write by hand are named. Others exchange handles and call the driver. Those whose objects
# the layer does not know are refused.


HANDLES = {  # class of the layer, error of a handle that is none
    "cl_platform_id": ("Platform", "CL_INVALID_PLATFORM"),
    "cl_device_id": ("Device", "CL_INVALID_DEVICE"),
    "cl_context": ("Context", "CL_INVALID_CONTEXT"),
    "cl_command_queue": ("Queue", "CL_INVALID_COMMAND_QUEUE"),
    "cl_mem": ("Memory", "CL_INVALID_MEM_OBJECT"),
    "cl_sampler": ("Sampler", "CL_INVALID_SAMPLER"),
    "cl_program": ("Program", "CL_INVALID_PROGRAM"),
    "cl_kernel": ("Kernel", "CL_INVALID_KERNEL"),
    "cl_event": ("Event", "CL_INVALID_EVENT"),
}
REFUSED = re.compile(r"GL|D3D|DX9|EGL|NativeKernel|SubDevices|DeviceEXT|SetCommandQueueProperty")
HINDRANCES = {  # what a program that calls such a function uses from then on
    "SVM": "shared virtual memory",
    "ExecInfo": "shared virtual memory",
    "SpecializationConstant": "a program in an intermediate language",
}
# Headers up to 2023: ``typedef cl_int (*cl_api_clFinish)(...)``; later: ``typedef cl_int clFinish_t(...)``.
_RESULT, _GIVEN = r"typedef\s+(?P<result>[\w ]+?\s*\**)\s*", r"\((?P<given>[^;]*);"
_TYPEDEFS = (
    re.compile(_RESULT + r"\(\s*\*\s*cl_api_(?P<name>\w+)\)" + _GIVEN),
    re.compile(_RESULT + r"\b(?P<name>cl\w+)_t\s*" + _GIVEN),
)
_ENTRY = re.compile(r"^\s*(?:cl_api_(?P<old>\w+)\s+(?P=old)|(?P<new>\w+)_t\s*\*\s*(?P=new));", re.MULTILINE)
_BY_HAND = re.compile(r"\blayer_(cl\w+)\(")


class Parameter(NamedTuple):
    """Type and name of a parameter."""

    type: str
    name: str


class Function(NamedTuple):
    """An entry of the dispatch table."""

    name: str
    result: str
    parameters: list[Parameter]


def generate(headers: str, sources: str) -> str:
    """Write the C++ source of the table.

    Args:
        headers: text of ``cl_icd.h`` as the preprocessor leaves it. sources: text of the layer's own sources.

    Raises:
        Unavailable: the headers lack entries that the sources have.
    """
    functions = {f.name: f for typedef in _TYPEDEFS for f in map(_function, typedef.finditer(headers))}
    table = [
        entry["old"] or entry["new"] for entry in _ENTRY.finditer(headers.split("_cl_icd_dispatch {")[1])
    ]
    by_hand = set(_BY_HAND.findall(sources))
    if lacking := sorted(by_hand - {name for name in table if name in functions}):
        raise Unavailable(
            f"the OpenCL headers of this system have no {lacking[0]}", "apt-get install opencl-c-headers"
        )
    lines = ['#include "objects.h"', "namespace tenbin {"]
    entries = []
    for name in table:
        function = functions.get(name)
        if function is None:  # a type of another system only
            continue
        lines.append(_declaration(function) + ";" if name in by_hand else _entry(function))
        entries.append(f"    table.{name} = layer_{name};")
    lines += ["void fill_table(cl_icd_dispatch &table) {", *entries, "}", "} // namespace tenbin", ""]
    return "\n".join(lines)


def _function(match: re.Match[str]) -> Function:
    parts = [" ".join(part.split()) for part in _split(match["given"])]
    return Function(
        match["name"],
        match["result"].strip(),
        [_parameter(part, f"given_{i}") for i, part in enumerate(parts) if part != "void"],
    )


def _parameter(text: str, default: str) -> Parameter:
    """Read a parameter; newer entries of the header name theirs in comments only, so ``default`` is taken."""
    if callback := re.match(r"(?P<type>.*?\(\s*\*\s*)(?P<name>\w*)(?P<rest>\).*)$", text):
        return Parameter(f"{callback['type']}@{callback['rest']}", callback["name"] or default)
    text, arrays = re.subn(r"\[\w*\]$", "", text)
    named = re.match(r"(?P<type>.*[ *])(?P<name>(?!cl_|(?:size_t|int|void)\b)\w+)$", text)
    kind, name = (named["type"], named["name"]) if named else (text, default)
    return Parameter(kind.strip() + " *" * arrays, name)


def _split(text: str) -> list[str]:
    """Split the parameters at the commas that are in no parenthesis, up to the end of their list."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            break
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _declaration(f: Function) -> str:
    given = ", ".join(
        p.type.replace("@", p.name) if "@" in p.type else f"{p.type} {p.name}" for p in f.parameters
    )
    return f"{f.result} CL_API_CALL layer_{f.name}({given})"


def _failure(f: Function, code: str) -> str:
    """Write the end of a function that fails with ``code``."""
    if f.result == "cl_int":
        return f"return {code};"
    if f.result == "void":
        return "return;"
    has_error = f.parameters[-1].type.replace(" ", "") == "cl_int*"
    return f"return refuse<{f.result}>({f.parameters[-1].name if has_error else 'nullptr'}, {code});"


def _entry(f: Function) -> str:
    simple = re.fullmatch(r"cl(Retain|Release)\w+", f.name)
    lines = [_declaration(f) + " {"]
    if REFUSED.search(f.name):
        lines += [f"(void){p.name};" for p in f.parameters]
        lines.append(
            "return nullptr;" if f.name.startswith("clGetExt") else _failure(f, "CL_INVALID_OPERATION")
        )
    elif simple:
        lines += _counted(f, simple[1].lower())
    else:
        lines += _passed(f)
    return "\n    ".join(lines) + "\n}"


def _counted(f: Function, verb: str) -> list[str]:
    """Count a reference of the program."""
    of, error = HANDLES[f.parameters[0].type]
    return [
        "Inside inside;",
        f"Slot *slot = find_slot({f.parameters[0].name}, {of}::kind);",
        f"return slot && {verb}(slot) ? CL_SUCCESS : {error};",
    ]


def _passed(f: Function) -> list[str]:
    """Exchange handles for the driver's objects, call the driver, and wrap the event."""
    lines = [f"if (!target->{f.name}) {_failure(f, 'CL_INVALID_OPERATION')}", "Inside inside;"]
    lines += [f'not_movable("{what}");' for part, what in HINDRANCES.items() if part in f.name]
    arguments, queue, event, given, blocking = [], "nullptr", "", "", "false"
    written, enqueues = None, f.name.startswith("clEnqueue")
    for before, p in zip([None, *f.parameters], f.parameters, strict=False):
        kind = p.type.replace(" ", "")
        if p.type in HANDLES:
            of, error = HANDLES[p.type]
            lines.append(f"{of} *own_{p.name} = get<{of}>({p.name});")
            # No device stands for the only one of a kernel or a program.
            may_be_none = f"{p.name} && " if of == "Device" else ""
            lines.append(f"if ({may_be_none}!own_{p.name}) {_failure(f, error)}")
            arguments.append(f"real_of(own_{p.name})")
            queue = f"own_{p.name}" if of == "Queue" else queue
            lines += _access(f, p) if of == "Memory" else []
            written = p if of == "Memory" else written
            lines += [f"touch_arguments(own_{p.name});"] if of == "Kernel" and enqueues else []
        elif kind == "constcl_event*" and before is not None:
            arguments[-1:] = ["waits.count", "waits.list"]
            given = before.name
            lines += [
                f"Waits waits({given}, {p.name}, {queue});",
                f"if (waits.error) {_failure(f, 'waits.error')}",
            ]
        elif kind == "cl_event*":
            event = p.name
            arguments.append("@event")
        elif p.type == "cl_bool" and enqueues:
            blocking = p.name
            arguments.append("CL_FALSE")
        else:
            arguments.append(p.name)
    if written and re.match(r"clEnqueue(Write|Fill|Copy)", f.name):  # the last one is where it is written to
        lines.append(f"own_{written.name}->touch();")
    if not event:
        return [*lines, f"return target->{f.name}({', '.join(arguments)});"]
    if f.name in {"clEnqueueMarkerWithWaitList", "clEnqueueBarrierWithWaitList"}:
        lines.append(f"waits.keep_meaning({given}, {queue});")
    needs_event = event if blocking == "false" else f"{event} || {blocking}"
    call = f"target->{f.name}({', '.join(arguments)})".replace("@event", f"{needs_event} ? &made : nullptr")
    return [
        *lines,
        "cl_event made = nullptr;",
        f"cl_int code = {call};",
        f"return finish_command(inside, {queue}, code, made, {event}, {blocking});",
    ]


def _access(f: Function, p: Parameter) -> list[str]:
    """Refuse what the flags of a buffer or an image keep the host from."""
    verb = re.match(r"clEnqueue(Read|Write)", f.name)
    if verb is None:
        return []
    other = {"Read": "WRITE", "Write": "READ"}[verb[1]]
    allowed = f"own_{p.name}->host_may(CL_MEM_HOST_{other}_ONLY)"
    return [f"if (!{allowed}) {_failure(f, 'CL_INVALID_OPERATION')}"]


if __name__ == "__main__":
    try:
        print(build())
    except Unavailable as error:
        sys.exit(str(error))
