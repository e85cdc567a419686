"""Options of sbatch: every spelling of the same options reads the same; what sbatch refuses is refused."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import Typer
from typer.main import get_command

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec
from tenbin.commands.jobs.sbatch import (
    KINDS,
    LEFT_OUT,
    REFUSED,
    SAME,
    SHORT,
    SILENT,
    TAKEN,
    Given,
    needs_of,
    of_tenbin,
    options,
)
from tenbin.commands.jobs.scripts import SBATCH, read_script
from tenbin.commands.jobs.submit import submit
from tests.support.paths import ROOT
from tests.support.programs import tenbin

SPEC = {"tasks": 1, "cores": 1, "nodes": None, "env": {}}
VALUES = {
    "job-name": st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12),
    "ntasks": st.integers(1, 999).map(str),
    "cpus-per-task": st.integers(1, 99).map(str),
    "mem": st.tuples(st.integers(1, 9999), st.sampled_from(["", "M", "G", "GB", "k"])).map(
        lambda pair: f"{pair[0]}{pair[1]}"
    ),
    "time": st.sampled_from(["30", "1:30", "2:00:00", "1-12", "1-0:30", "0"]),
    "array": st.sampled_from(["1-3", "0-20:5", "7", "1,3,5-7"]),
    "output": st.text("abc%j_x/ #'\"", min_size=1, max_size=9),
    "partition": st.sampled_from(["gpu", "a,b"]),
    "requeue": st.none(),
    "nice": st.one_of(st.none(), st.integers(-9, 9).map(str)),
}
OF_NAME = {name: short for short, name in SHORT.items()}
ASKED = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])), max_size=7
)


def unique_beginnings(name: str) -> list[str]:
    """Return the shortest beginning that no other option has, and longer ones."""
    others = [other for other in KINDS if other != name and SAME.get(other, other) != name]
    found = [name[:end] for end in range(1, len(name) + 1)]
    return [each for each in found if not any(other.startswith(each) for other in others)] or [name]


@st.composite
def spelt(draw: st.DrawFn, name: str, value: str | None) -> str:
    """Write an option in one of the ways that sbatch takes, quoted in one of the ways of its lines."""
    if value is not None:
        value = draw(quoted(value))
    long = "--" + draw(st.sampled_from(unique_beginnings(name)))
    ways = [long if value is None else f"{long}={value}"]
    if value is not None and KINDS[name] == "needed":
        ways.append(f"{long} {value}")
        if name in OF_NAME:
            ways += [f"-{OF_NAME[name]} {value}", f"-{OF_NAME[name]}{value}"]
    return draw(st.sampled_from(ways))


@st.composite
def quoted(draw: st.DrawFn, value: str) -> str:
    """Write a value so that sbatch reads it whole."""
    ways = ['"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"']
    ways.append("'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'")
    if not any(letter.isspace() for letter in value) and not value.startswith(":"):  # it begins no word
        ways.append("".join(f"\\{letter}" if letter in "\\#'\"" else letter for letter in value))
    return draw(st.sampled_from(ways))


@given(asked=ASKED, data=st.data())
def test_every_spelling_reads_the_same(
    asked: list[tuple[str, str | None]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Options in any spelling, on one line or several, with comments and empty lines between."""
    lines = ["#!/bin/sh"]
    left = [data.draw(spelt(name, value)) for name, value in asked]
    while left:
        count = data.draw(st.integers(1, len(left)))
        comment = data.draw(st.sampled_from(["", "  # -n 9 'x", " #"]))
        lines.append(f"#SBATCH {'  '.join(left[:count])}{comment}")
        left = left[count:]
        lines += data.draw(
            st.sampled_from([[], [""], ["##SBATCH -n 7"], [" #SBATCH -n 7"], ["# SBATCH -n 7"]])
        )
    lines += ["true", "#SBATCH --no-such-option"]
    path = tmp_path_factory.getbasetemp() / "spelt.sh"
    path.write_text("\n".join(lines))
    script = read_script(str(path))
    read = itertools.chain.from_iterable(
        options(directive.words, script.at(directive.line)) for directive in script.of(SBATCH)
    )
    assert [(each.name, each.value) for each in read] == asked


def needs(tmp_path: Path, *lines: str, overruled: frozenset[str] = frozenset()):  # type: ignore[no-untyped-def]
    path = tmp_path / "job.sh"
    path.write_text("\n".join(["#!/bin/sh", *lines, "true"]))
    return needs_of(read_script(str(path)), overruled=overruled, ignored=())


@pytest.mark.parametrize(
    ("lines", "words"),
    [  # each is refused by sbatch 22.05 too, seen there
        (["#SBATCH foo"], "'foo' is no option"),
        (["#SBATCHx"], "'x' is no option"),
        (["#SBATCH -J a\\ b"], "'b' is no option"),
        (["#SBATCH -J 'a"], "is not closed"),
        (["#SBATCH : -n 1"], "a colon"),
        (["#SBATCH -n"], "--ntasks needs a value"),
        (["#SBATCH -J ''"], "--job-name needs a value"),
        (["#SBATCH --requeue=1"], "takes no value"),
        (["#SBATCH --nice 50"], "'50' is no option"),
        (["#SBATCH --job-name = x"], "'x' is no option"),
        (["#SBATCH --ntas=4"], "may be --ntasks, --ntasks-per-core"),
        (["#SBATCH --cpus=4"], "may be --cpus-per-gpu, --cpus-per-task"),
        (["#SBATCH --cpu-per-task=4"], "did you mean cpus-per-task"),
        (["#SBATCH -n=4"], "a whole number"),
        (["#SBATCH -n 4-8"], "a whole number"),
        (["#SBATCH -n 0"], "a whole number"),
        (["#SBATCH -c 0x3"], "a whole number"),
        (["#SBATCH --mem=1.5G"], "K, M, G or T"),
        (["#SBATCH --mem=1GiB"], "K, M, G or T"),
        (["#SBATCH --mem=1000B"], "K, M, G or T"),
        (["#SBATCH --mem=2G", "#SBATCH --mem-per-cpu=1G"], "line 3: #SBATCH --mem-per-cpu=1G: with --mem"),
        (["#SBATCH -t 90s"], "write minutes"),
        (["#SBATCH -t 1:2:3:4"], "write minutes"),
        (["#SBATCH -t 1-:30"], "write minutes"),
        (["#SBATCH -a 7-3"], "--array=7-3"),
        (["#SBATCH -a 1-10:0"], "--array"),
        (["#SBATCH -a -1"], "--array"),
        (["#SBATCH -d afterok:1,"], "--dependency"),
        (["#SBATCH -d afterok"], "--dependency"),
        (["#SBATCH -d afterok:1x"], "is no number of a job"),
    ],
)  # fmt: skip
def test_what_sbatch_refuses_is_refused_by_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(BadInput) as error:
        needs(tmp_path, *lines).sized(SPEC)
    assert words in str(error.value) and "job.sh, line " in str(error.value) and error.value.remedy


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["#SBATCH hetjob"], "several components"),
        (["#PBS -l nodes=1", "#SBATCH -n 1"], "sbatch would read this line too"),
        (["#SBATCH -N 2"], "2 nodes"),
        (["#SBATCH -n 6 --ntasks-per-node=2"], "3 nodes"),
        (["#SBATCH --mem=0"], "all memory of a node"),
        (["#SBATCH -d singleton"], "singleton: tenbin does not order jobs by their names"),
        (["#SBATCH -d after:3"], "not for their start"),
        (["#SBATCH -d afterok:1?afterany:2"], "not for any of them"),
        (["#SBATCH -d afterok:1_2"], "by its own number"),
        (["#SBATCH --gres=gpu:v100:1,gpu:a100:1"], "GPUs of one kind"),
        (["#SBATCH --gres=shard:1"], "GPUs only"),
        (["#SBATCH --gpus=a100:x"], "a kind and a number"),
        (["#SBATCH --gres=gpu:2 --gpus=4"], "asks for other GPUs"),
        (["#SBATCH --gres=gpu:2 --gpus=a100:2 --gpus-per-node=v100:2"], "asks for other GPUs"),
        (["#SBATCH --kill-on-invalid-dep=no"], "is cancelled"),
        (["#SBATCH -i data.txt"], "redirect"),
    ],
)
def test_what_tenbin_cannot_do_is_refused_by_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        needs(tmp_path, *lines).sized(SPEC)


@pytest.mark.parametrize(
    ("lines", "size"),
    [  # tasks, cores and memory in MiB, as scontrol shows them of the same lines in Slurm 22.05
        ([], (1, 1, None)),
        (["#SBATCH -n4 -c 2"], (4, 2, None)),
        (["#SBATCH -n 2", "#SBATCH -n 3"], (3, 1, None)),
        (["#SBATCH --ntasks-per-node=4"], (1, 4, None)),
        (["#SBATCH --tasks-per-node=4 -c 2 -N 1"], (1, 8, None)),
        (["#SBATCH -N 2 -n 1"], (1, 1, None)),
        (["#SBATCH -N 1-4 -c 2"], (1, 2, None)),
        (["#SBATCH -N 1 -n 4 --mem=1000000K"], (1, 4, 977)),
        (["#SBATCH -n 4 --mem=1000"], (4, 1, 250)),
        (["#SBATCH --mem-per-cpu=100 -c 3 -n 2"], (2, 3, 300)),
        (["#SBATCH --mem-per-cpu=100 -c 3 -N 1 -n 2"], (1, 6, 600)),
        (["#SBATCH --gres=gpu:4 -N 1 -n 4 --mem=1g"], (4, 1, 256)),
    ],
)
def test_size(tmp_path: Path, lines: list[str], size: tuple[int, int, float | None]) -> None:
    found = needs(tmp_path, *lines).sized(SPEC)
    memory = found.get("memory_mb")
    assert found.get("tasks", 1) == size[0] and found.get("cores", 1) == size[1]
    assert memory == (None if size[2] is None else pytest.approx(size[2] * 2**20 / 1e6))


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        (["#SBATCH --gres=gpu:2"], (2, "")),
        (["#SBATCH --gres=gpu"], (1, "")),
        (["#SBATCH --gres=gpu:v100:1 --gpus=v100:1"], (1, "v100")),
        (["#SBATCH --gres=gpu:2 --gpus=a100:2"], (2, "a100")),
        (["#SBATCH --gres=gpu:a100:2 --gpus=2"], (2, "a100")),
        (["#SBATCH -G a100"], (1, "a100")),
        (["#SBATCH -n 3 --gpus-per-task=2"], (6, "")),
        (["#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-node=h100:2"], (2, "h100")),
        (["#SBATCH --gres=none"], (None, "")),
    ],
)
def test_gpus_are_of_the_whole_job(tmp_path: Path, lines: list[str], gpus: tuple[int | None, str]) -> None:
    size = needs(tmp_path, *lines).sized(SPEC)
    assert (size.get("gpus"), size.get("gpu_kind", "")) == gpus


@pytest.mark.parametrize(
    ("own", "line", "gpus"),
    [
        ({"nodes": 2}, "#SBATCH --gres=gpu:a100:3", (6, "a100")),
        ({"nodes": 2}, "#SBATCH -N 2 --gpus-per-node=2 --gpus=4", (4, "")),
        ({"tasks": 2}, "#SBATCH --gpus-per-task=3", (6, "")),
        ({"tasks": 2}, "#SBATCH --gres=gpu:1", (1, "")),
    ],
)
def test_gpus_beside_a_size_of_tenbins_own(
    tmp_path: Path, own: dict[str, int], line: str, gpus: tuple[int, str]
) -> None:
    size = needs(tmp_path, line, overruled=frozenset({"tasks", *own})).sized(SPEC | own)
    assert (size["gpus"], size["gpu_kind"]) == gpus


def test_every_option_has_one_place_and_one_short_name() -> None:
    tables = (set(TAKEN), set(LEFT_OUT), set(REFUSED), set(SILENT))
    assert sum(map(len, tables)) == len(set.union(*tables))
    shorts = [
        entry[0] for table in (TAKEN, LEFT_OUT, REFUSED, SILENT) for entry in table.values() if entry[0]
    ]
    assert len(shorts) == len(set(shorts))
    assert str(Given("mem", "4G", "x")) == "--mem=4G"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("submit", "-t", "10", "--", "x"), "-t is an option of sbatch (--time); write --time 10m\n"),
        (("submit", "-t10:30", "--", "x"), "-t is an option of sbatch (--time); write --time 10m30s\n"),
        (("submit", "-t", "1-12", "--", "x"), "-t is an option of sbatch (--time); write --time 1-12\n"),
        (("submit", "-J", "a b", "x"), "-J is an option of sbatch (--job-name); write --name 'a b'\n"),
        (("submit", "--cpus-per-task=2", "x"), "--cpus-per-task is an option of sbatch; write -c 2\n"),
        (("submit", "-a1-3", "x"), "-a is an option of sbatch (--array); write --array 1-3\n"),
        (("submit", "--gres=gpu:1", "x"), "--gres is an option of sbatch; write --gpus"),
        (("submit", "-N", "2", "--", "x"), "-N is an option of sbatch (--nodes); write --nodes "),
        (("submit", "--mem", "4G", "--", "x"), "--mem is an option of sbatch; write --memory"),
        (("submit", "--ntasks", "4", "x"), "--ntasks is an option of sbatch; write -n 4\n"),
        (("submit", "-p", "main", "x"), "(--partition): of the site's Slurm only; leave it out"),
        (("submit", "-C", "gpu", "x"), "(--constraint): tenbin knows no features of nodes; leave it out"),
        (("submit", "--wrap", "x"), "--wrap is an option of sbatch: a command is given by itself: "),
        (("map", "-t", "3", "--", "x", ":::", "a"), "-t is an option of sbatch (--time); write --time 3m\n"),
        (("submit", "--tim", "3", "x"), "No such option: --tim (Possible options: --mpi, --notify, --time)"),
        (("submit", "-Z", "x"), "No such option: -Z; see: tenbin submit --help"),
    ],
)
def test_on_the_command_line_an_option_of_sbatch_is_answered_by_tenbins_own(
    words: tuple[str, ...], message: str
) -> None:
    done = tenbin(*words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_line_of_a_script_with_an_option_of_sbatch_is_named(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#TENBIN -c 2\n#TENBIN -t 10\ntrue\n")
    done = tenbin("submit", "--dry-run", str(script))
    assert done.returncode == 2 and f"{script}, line 3: #TENBIN: -t is an option of sbatch" in done.stderr


def test_every_option_of_sbatch_is_answered_and_what_is_to_be_written_is_there() -> None:
    own = {name for each in get_command(_of_submit()).params for name in (*each.opts, *each.secondary_opts)}
    for name in {*KINDS, *SAME}:
        assert f"--{name}" in own or of_tenbin(f"--{name}") is not None
    for short in SHORT:
        assert f"-{short}" in own or of_tenbin(f"-{short}") is not None
    for taken in TAKEN.values():
        assert set(re.findall(r"(?<![a-z])--?[a-z][a-z-]*", taken.words)) <= own
    assert of_tenbin("--nothing") is None and of_tenbin("-Z") is None


def _of_submit() -> Typer:
    app = Typer()
    app.command()(submit)
    return app


# Real scripts of public projects: taken as sbatch would take them, or refused by line.


CASES = tomllib.loads((ROOT / "tests" / "data" / "sbatch_scripts.toml").read_text())["script"]


def name(case: dict[str, Any]) -> str:
    return str(case["from"]).partition(":")[0]


def place(case: dict[str, Any], folder: Path) -> Path:
    path = folder / "job.sh"
    path.write_text(case["head"] + "true\n")
    return path


def test_there_are_twenty() -> None:
    assert len(CASES) >= 20 and sum("spec" in case for case in CASES) >= 10


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_real_script(case: dict[str, Any], tmp_path: Path) -> None:
    path = place(case, tmp_path)
    done = tenbin("submit", "--dry-run", "--json", str(path))
    if "refused" in case:
        line, words = case["refused"]
        assert done.returncode == 2 and f"{path}, line {line}: #SBATCH" in done.stderr, done.stderr
        assert words in done.stderr and len(done.stderr.splitlines()) == 1
        return
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert [line.partition("#SBATCH --")[2].split()[0] for line in told] == case["left_out"]
    body = json.loads(done.stdout)
    (spec,), arrays = body["specs"], body["arrays"]
    if "array" in case:
        indices = arrays["0"]
        assert (indices[0], indices[-1], len(indices)) == tuple(case["array"])
    else:
        assert arrays == {}
    expected = JobSpec(command=(str(path),), slurm_variables=True, **case["spec"])
    changing = {"folder", "env"}
    assert JobSpec(**spec).model_dump(exclude=changing) == expected.model_dump(exclude=changing)
