"""The table of entry points, and what is said where the layer cannot be compiled."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.opencl_layer import build
from profiles.errors import Unavailable
from tests.support.labs.components import require
from tests.support.moving import command, output, variables

HEADER = """
typedef cl_int( *cl_api_clEnqueueFirst)(cl_command_queue queue, cl_mem buffer, cl_bool blocking_read,
    cl_uint n, const cl_event *waits, cl_event *event) __attribute__((deprecated));
typedef cl_mem( *cl_api_clMake)(cl_context , size_t , void ( *)(cl_mem, void *), cl_int * );
typedef void *cl_api_clElsewhere;
typedef cl_int(* cl_api_clByHand)(cl_kernel kernel);
struct _cl_icd_dispatch {
  cl_api_clEnqueueFirst clEnqueueFirst;
  cl_api_clMake clMake;
  cl_api_clElsewhere clElsewhere;
  cl_api_clByHand clByHand;
} cl_icd_dispatch;
"""
LATER_HEADER = """
typedef cl_int  clEnqueueFirst_t(cl_command_queue queue, cl_mem buffer, cl_bool blocking_read,
    cl_uint n, const cl_event* waits, cl_event* event);
typedef clEnqueueFirst_t * clEnqueueFirst_fn __attribute__((deprecated));
typedef cl_mem  clMake_t(cl_context , size_t , void ( *)(cl_mem, void *), cl_int * );
typedef cl_int clByHand_t(cl_kernel kernel);
typedef struct _cl_icd_dispatch {
  __extension__ union {
    clEnqueueFirst_t *clEnqueueFirst;
    intptr_t clEnqueueFirst_icd2_tag;
  };
  clMake_t *clMake;
  void *clElsewhere;
  clByHand_t *clByHand;
} cl_icd_dispatch;
"""


@pytest.mark.parametrize("header", [HEADER, LATER_HEADER])
def test_generated_entries(header: str) -> None:
    text = build.generate(header, "cl_int CL_API_CALL layer_clByHand(cl_kernel kernel) {")
    assert (
        "target->clEnqueueFirst(real_of(own_queue), real_of(own_buffer), CL_FALSE, waits.count, waits.list"
        in text
    )
    assert "finish_command(inside, own_queue, code, made, event, blocking_read)" in text
    assert (
        "layer_clMake(cl_context given_0, size_t given_1, void ( *given_2)(cl_mem, void *), cl_int * given_3)"
        in text
    )
    assert "return refuse<cl_mem>(given_3, CL_INVALID_CONTEXT)" in text
    assert "layer_clByHand(cl_kernel kernel);" in text
    assert re.findall(r"table\.(\w+) = ", text) == ["clEnqueueFirst", "clMake", "clByHand"]


def test_headers_that_lack_an_entry_are_refused() -> None:
    with pytest.raises(Unavailable, match="headers of this system have no clElsewhere"):
        build.generate(HEADER, "cl_int CL_API_CALL layer_clElsewhere() {")


def later_headers(folder: Path) -> None:
    """Write the system's headers in the form of those since 2023, with an entry that no loader has yet."""
    shutil.copytree("/usr/include/CL", folder / "CL")
    path = folder / "CL" / "cl_icd.h"
    text = re.sub(
        r"typedef\s+([\w *]+?)\s*\(\s*CL_API_CALL\s*\*\s*cl_api_(\w+)\)\(([^;]*?)\)\s*(?:CL_\w+\s*)*;",
        r"typedef \1 CL_API_CALL \2_t(\3);",
        path.read_text(),
    )
    text = re.sub(r"^\s*cl_api_(\w+)\s+\1;", r"  \1_t *\1;", text, flags=re.MULTILINE)
    text = re.sub(r"typedef void \*cl_api_(\w+);", r"typedef void \1_t;", text)
    path.write_text(text.replace("} cl_icd_dispatch;", "  void *clOfTheFuture;\n} cl_icd_dispatch;"))


@pytest.mark.slow
def test_later_headers_than_the_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The layer is loaded, and moves programs."""
    require(not build.trouble(), build.trouble())
    later_headers(tmp_path)
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setattr(build, "UNITS", 1)  # which compiles soonest
    library = build.build(tmp_path / "library", options=["-DTENBIN_OPENCL_TESTS", "-O0"])
    report = tmp_path / "report"
    more = {
        "OPENCL_LAYERS": str(library),
        "TENBIN_OPENCL_REPORT": str(report),
        "TENBIN_OPENCL_MOVE_EVERY": "11",
    }
    plain = output(command("tour", "buffers"), variables(tmp_path, below=False))
    assert output(command("tour", "buffers"), variables(tmp_path, below=True, **more)) == plain
    assert json.loads(report.read_text())["moves"] > 10


def test_every_function_of_the_system_has_an_entry() -> None:
    require(not build.trouble(), build.trouble())
    compiler = build.find_compiler()
    assert compiler is not None
    table = build._table(compiler)
    entries = re.findall(r"table\.(\w+) = ", table)
    assert len(entries) > 115
    assert "return target->clUnloadCompiler()" in table  # succeeds, as it always has
    assert {"clEnqueueNDRangeKernel", "clSVMAlloc", "clSetContextDestructorCallback"} <= set(entries)


def test_several_at_once_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require(not build.trouble(), build.trouble())
    compiled = []

    def compile_slowly(command: Sequence[str], sources: Sequence[Path], aside: Path) -> Path:
        compiled.append(command)
        time.sleep(0.3)  # the others come meanwhile
        (aside / "layer.so").touch()
        return aside / "layer.so"

    monkeypatch.setattr(build, "_compile", compile_slowly)
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(lambda _: build.build(tmp_path), range(3)))
    assert len(compiled) == 1
    assert list(tmp_path.iterdir()) == list(found)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert build.trouble() == "no C++ compiler"
    with pytest.raises(Unavailable, match=re.escape(build.REMEDY)):
        build.build(tmp_path)


def test_sources_that_do_not_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require(not build.trouble(), build.trouble())
    (tmp_path / "broken.cpp").write_text("no C++\n")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    with pytest.raises(Unavailable, match=r"the OpenCL layer cannot be compiled: .*error"):
        build.build(tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_library_that_others_could_write_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require(not build.trouble(), build.trouble())

    def compile_quickly(command: Sequence[str], sources: Sequence[Path], aside: Path) -> Path:
        (aside / "made").write_text("ours")
        (aside / "made").chmod(0o777)  # as the linker, by a umask of 000
        return aside / "made"

    monkeypatch.setattr(build, "_compile", compile_quickly)
    place = tmp_path / "cache" / "opencl-layer"
    before = os.umask(0)
    try:
        library = build.build(place)
    finally:
        os.umask(before)
    assert [part for part in (place.parent, place, library) if part.stat().st_mode & 0o022] == []
    place.chmod(0o777)
    library.chmod(0o666)
    library.write_text("theirs")
    assert build.build(place).read_text() == "ours"
    assert not place.stat().st_mode & 0o022
    place.parent.chmod(0o777)
    with pytest.raises(Unavailable, match="everybody could exchange what is in"):
        build.build(place)
