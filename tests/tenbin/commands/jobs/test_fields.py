"""Every field of a job, given in each of the ways: the same JobSpec comes of it; the page has them all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec
from tenbin.cli import app
from tenbin.client.client import Client
from tenbin.commands.jobs.job_file import read
from tenbin.commands.jobs.submit import GROUPS, RARE
from tenbin.fields import OPTIONS, SBATCH_WORDS, TYPES
from tests.support.paths import ROOT
from tests.support.programs import tenbin

AT_S = datetime(2190, 12, 24, 8).timestamp()


class Case(NamedTuple):
    """A field as users write it on the command line, in a job file, in Python and for sbatch."""

    words: str
    toml: str
    python: dict[str, Any]
    sbatch: str = ""
    array: Sequence[int] | None = None


FILES = Case(
    "--output out --error err",
    "output = 'out'\nerror = 'err'",
    {"stdout": "out", "stderr": "err"},
    "--output=out --error=err",
)
CASES = {
    "name": Case("--name fit", "name = 'fit'", {"name": "fit"}, "--job-name=fit"),
    "tasks": Case("--tasks 1-4", "tasks = '1-4'", {"tasks": 1, "max_tasks": 4}),
    "tasks of one number": Case("-n 4", "tasks = 4", {"tasks": 4}, "--ntasks=4"),
    "cores": Case("-c 2", "cores = 2", {"cores": 2}, "--cpus-per-task=2"),
    "mpi": Case("--mpi", "mpi = true", {"mpi": True}),
    "nodes": Case("--nodes 1-4", "nodes = '1-4'", {"nodes": 1, "max_nodes": 4}),
    "speedup": Case(
        "-n 1-4 --speedup 1=1,4=3.5",
        "tasks = '1-4'\nspeedup = { 1 = 1, 4 = 3.5 }",
        {"tasks": 1, "max_tasks": 4, "speedup": {1: 1.0, 4: 3.5}},
    ),
    "load": Case("--load memory", "load = 'memory'", {"load": "memory"}),
    "cap-curve": Case("--cap-curve 120,0.004", "cap-curve = [120, 0.004]", {"cap_curve": (120.0, 0.004)}),
    "memory": Case("--memory 1MiB", "memory = '1MiB'", {"memory_mb": 1.048576}, "--mem=1M"),
    "time": Case("--time 10m", "time = '10m'", {"time_s": 600.0}, "--time=10"),
    "grace": Case("--grace 1m", "grace = 60", {"grace_s": 60.0}),
    "grace of none": Case("--grace 0", "grace = '0'", {"grace_s": 0.0}),
    "device": Case("--device gpu", "device = 'gpu'", {"device": "gpu"}),
    "gpus": Case("--gpus 2", "gpus = 2", {"gpus": 2}, "--gres=gpu:2"),
    "gpus of a kind": Case(
        "--gpus a100:1", "gpus = 'a100:1'", {"gpus": 1, "gpu_kind": "a100"}, "--gpus=a100:1"
    ),
    "or": Case(
        "--or cores=16,time=3h --or gpus=a100:2,memory=2G",
        "or = [{ cores = 16, time = '3h' }, 'gpus=a100:2,memory=2G']",
        {
            "alternatives": [
                {"cores": 16, "time_s": 10800.0},
                {"gpus": 2, "gpu_kind": "a100", "memory_mb": 2000.0},
            ]
        },
    ),
    "gpus-memory": Case("--gpus-memory 20G", "gpus-memory = '20G'", {"gpu_memory_mb": 20000.0}),
    "expect": Case(
        "--expect gpu=1m,cpu=90",
        "expect = { gpu = '1m', cpu = 90 }",
        {"expect_s": {"gpu": 60.0, "cpu": 90.0}},
    ),
    "job-profile": Case("--job-profile ep", "job-profile = 'ep'", {"job_profile": "ep"}),
    "checkpoint": Case("--checkpoint", "checkpoint = true", {"checkpoint_signal": 23}),
    "checkpoint-signal": Case(
        "--checkpoint-signal USR1 --checkpoint",
        "checkpoint-signal = 10\ncheckpoint = true",
        {"checkpoint_signal": 10},
    ),
    "checkpoint-code": Case("--checkpoint-code 3", "checkpoint-code = 3", {"checkpoint_code": 3}),
    "move": Case("--no-move", "move = false", {"move": False}),
    "priority": Case("--priority -5", "priority = -5", {"priority": -5}, "--nice=5"),
    "user-share": Case("--user-share a=2", "user-share = 'a=2'", {"account": "a", "share": 2.0}),
    "after": Case("--after 17", "after = 17", {"after": [17]}, "--dependency=afterok:17"),
    "after-any": Case("--after-any 17", "after-any = 17", {"after_any": [17]}, "--dependency=afterany:17"),
    "after-not-ok": Case(
        "--after-not-ok 17", "after-not-ok = 17", {"after_not_ok": [17]}, "--dependency=afternotok:17"
    ),
    "after-corr": Case("--after-corr 17", "after-corr = 17", {"after_corr": [17]}, "-d aftercorr:17"),
    "begin": Case(
        "--begin 2190-12-24T08:00",
        "begin = 2190-12-24T08:00:00",
        {"begin_s": AT_S},
        "--begin=2190-12-24T08:00",
    ),
    "deadline": Case(
        "--deadline 2190-12-24T08:00",
        "deadline = 2190-12-24T08:00:00",
        {"deadline_s": AT_S},
        "--deadline=2190-12-24T08:00",
    ),
    "retries": Case("--retries 2", "retries = 2", {"retries": 2}),
    "retry-on": Case(
        "--retries 2 --retry-on 1,137",
        "retries = 2\nretry-on = [1, 137]",
        {"retries": 2, "retry_codes": [1, 137]},
    ),
    "retry-pause": Case(
        "--retries 2 --retry-pause 1m",
        "retries = 2\nretry-pause = '1m'",
        {"retries": 2, "retry_pause_s": 60.0},
    ),
    "array": Case("--array 1-3%2", "array = '1-3%2'", {"array_limit": 2}, "--array=1-3%2", (1, 2, 3)),
    "env": Case("--env A=b", "env = { A = 'b' }", {"env": {"A": "b"}}, "--export=ALL,A=b"),
    "chdir": Case("--chdir /tmp", "chdir = '/tmp'", {"folder": "/tmp"}, "--chdir=/tmp"),
    "output": FILES,
    "error": FILES,
    "notify": Case("--notify mailto:me", "notify = 'mail:me'", {"notify": "mail:me"}),
    "requeue": Case("--no-requeue", "requeue = false", {"requeue": False}, "--no-requeue"),
    "slurm-variables": Case("--slurm-variables", "slurm-variables = true", {"slurm_variables": True}),
}
Submission = tuple[dict[str, Any], dict[int, list[int]]]


@pytest.fixture
def submissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    """Keep what is submitted, in place of a coordinator."""
    kept: list[Submission] = []

    def call(_client: Client, _method: str, _path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        (spec,) = body["specs"]
        kept.append((spec, body["arrays"]))
        return {"ids": [1, 2, 3], "arrays": [1]}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Client, "call", call)
    return kept


def submit(*words: str) -> None:
    typer.main.get_command(app).main(["submit", *words], standalone_mode=False)


def script(line: str) -> str:
    Path("job.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    return "job.sh"


@pytest.mark.parametrize("name", CASES)
def test_the_same_job_comes_of_each_way(name: str, submissions: list[Submission]) -> None:
    case = CASES[name]
    submit(*case.words.split(), "--", "x")
    submit(script(f"#TENBIN {case.words}"))
    Path("jobs.toml").write_text(f"[[job]]\ncommand = ['x']\n{case.toml}\n")
    submit("--file", "jobs.toml")
    spec = {"command": ["x"], "folder": str(Path.cwd()), **case.python}
    Client().submit_all([spec], arrays={} if case.array is None else {0: case.array})
    if case.array is None:
        Client().submit(["x"], **case.python)
    if case.sbatch:
        submit(script(f"#SBATCH {case.sbatch}"))
    expected = JobSpec.model_validate(spec)
    for given, arrays in submissions:
        of_script = {"command": expected.command}  # its own, and what Slurm would set besides
        if given["command"] == ["job.sh"] and "name" not in case.python:
            of_script["name"] = ""
        variables = {
            key: value for key, value in given.get("env", {}).items() if not key.startswith("SLURM_")
        }
        if variables != given.get("env", {}):
            of_script |= {"env": variables, "slurm_variables": False}
        assert JobSpec.model_validate(given | of_script) == expected
        assert arrays == ({} if case.array is None else {0: list(case.array)})
    assert len(submissions) == 4 + (case.array is None) + bool(case.sbatch)


def test_the_cases_are_all_fields_and_all_words_of_sbatch() -> None:
    assert OPTIONS.keys() <= CASES.keys()
    fields = {field for option in OPTIONS.values() for field in option.fields}
    # Users give the numbers of an array, and have terminals.
    assert TYPES.keys() - fields == {"array_index", "terminal"}
    lines = " ".join(case.sbatch for case in CASES.values())
    for option in SBATCH_WORDS.values():
        assert any(f"--{word}" in lines for word in option.sbatch.split()), option.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--cap-curve 120", "--cap-curve '120' is no curve; write watts and share: 120,0.004"),
        ("--checkpoint-signal QUIET", "--checkpoint-signal 'QUIET' is no signal; write for instance USR1"),
        ("--checkpoint-signal 99", "--checkpoint-signal '99' is no signal"),
        ("--grace soon", "--grace 'soon' is no duration"),
        ("--notify mail:", "--notify 'mail:' has no address"),
        (
            "--notify ftp://x",
            "--notify 'ftp://x' is no URL that can be told; write http://... or https://...",
        ),
        (
            "--notify http://",
            "--notify 'http://' is no URL that can be told; write http://... or https://...",
        ),
        ("--notify mailto:", "--notify 'mail:' has no address"),
        ("--memory 1K", "--memory '1K' is too little; write at least 1M"),
        ("--notify nosuchcmd", "--notify 'nosuchcmd': there is no such command; write mail, a URL, or"),
        ("--or cores=0", "--or 'cores=0': cores must be at least 1; write for instance cores=16"),
        ("--or gpus=0", "--or 'gpus=0': gpus must be at least 1; leave it out: then it has none"),
        ("--or cores=3,memory=0", "--or '0' is too little"),
        ("--or cores=3,time=0", "--or '0' is too short"),
        ("--or cores=3,cores=4", "--or 'cores=3,cores=4': cores stands there twice; leave one out"),
    ],
)
def test_values_that_cannot_be_read(words: str, message: str, submissions: list[Submission]) -> None:
    with pytest.raises(BadInput) as caught:
        submit(*words.split(), "--", "x")
    assert str(caught.value).startswith(message)
    with pytest.raises(BadInput) as caught:
        submit(script(f"#TENBIN {words}"))
    assert str(caught.value).startswith(f"job.sh, line 2: #TENBIN {message}")
    option, value = words.split()
    Path("jobs.toml").write_text(f"[[job]]\ncommand = ['x']\n{option.removeprefix('--')} = '{value}'\n")
    with pytest.raises(BadInput) as caught:
        submit("--file", "jobs.toml")
    assert str(caught.value).startswith(f"jobs.toml, job 1: {message.removeprefix('--')}")
    assert not submissions


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.default is None])
def test_an_empty_value_is_refused_and_none_is_the_word_for_none(
    name: str, submissions: list[Submission]
) -> None:
    option = OPTIONS[name]
    if option.kind is str and option.read != "words":
        with pytest.raises(BadInput, match=f"^--{name} ''"):
            submit(f"--{name}=", *["--retries", "1"] * name.startswith("retry-"), "--", "x")
        assert not submissions
    if option.kind is str and not option.otherwise:
        submit(f"--{name}", "none", "--", "x")
        assert all(submissions[0][0].get(field) is None for field in option.fields)


def test_a_mail_that_no_program_can_send_is_a_remark(
    submissions: list[Submission], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    submit("--notify", "mail:me", "--", "x")
    assert submissions and "there is no program mail here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-c many", "Invalid value for '--cores' / '-c': must be a whole number"),
        ("-c 0", "Invalid value for '--cores' / '-c': must be at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused_in_plain_words(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        submit(script(f"#TENBIN {words}"))
    assert str(caught.value).startswith(f"job.sh, line 2: #TENBIN: {message}")
    done = tenbin("submit", *words.split(), "--", "x")
    assert done.returncode == 2 and message in done.stderr


def test_the_remedy_names_the_folder_that_was_given(tmp_path: Path) -> None:
    done = tenbin("submit", "--home", str(tmp_path), "--", "x")
    assert f"tenbin up --daemon --home {tmp_path}" in done.stderr


MESH = "[[job]]\nname = 'mesh'\ncommand = 'x'\narray = '1-20'\n"
PAGE = (ROOT / "docs" / "job-files.md").read_text()
ROWS = re.findall(r"^\| (`.*) \|$", PAGE, re.M)


def test_the_table_of_the_page_is_that_of_the_declarations() -> None:
    def code(words: Sequence[str]) -> str:
        return ", ".join(f"`{word}`" for word in words)

    rows = [[cell.strip() for cell in row.split(" |")] for row in ROWS]
    assert [[key, what, fields, sbatch] for key, what, _, fields, sbatch in rows] == [
        [
            code([option.name, *(f"-{option.letter}" if option.letter else "").split()]),
            option.help.partition("|")[0],
            code([field for field in option.fields if field != "array"]),
            code(option.sbatch.split()),
        ]
        for option in OPTIONS.values()
    ]


def test_the_values_of_the_table_are_read(tmp_path: Path) -> None:
    path, count = tmp_path / "jobs.toml", 0
    for row in ROWS:
        cells = row.split(" |")
        key = cells[0].split("`")[1]
        more = "retries = 1\n" if key.startswith("retry-") else "tasks = '1-4'\n" if key == "speedup" else ""
        for value in re.findall(r"`([^`]+)`", cells[2].removesuffix("from `chdir`")):
            path.write_text(
                f"[[job]]\nname = 'mesh'\ncommand = 'x'\n[[job]]\ncommand = 'x'\n{more}{key} = {value}\n"
            )
            assert len(read(path).specs) == 2
            count += 1
    assert count > len(ROWS)


def test_help_shows_the_options_in_groups_and_the_rare_ones_on_request() -> None:
    grouped = [name for names in GROUPS.values() for name in names.split()]
    assert {*OPTIONS} - {*grouped} == {"name"} and len(grouped) == len({*grouped})
    assert {*RARE.split()} <= {*OPTIONS, "ignore-sbatch"}
    for command in ("submit", "map"):
        others = {"ignore-sbatch", "array"} if command == "map" else set()
        usual, whole = (tenbin(command, option, COLUMNS="200").stdout for option in ("--help", "--help-all"))
        for name in {*OPTIONS, *RARE.split()} - others:
            assert re.search(rf" --{name} ", whole), name
            assert bool(re.search(rf" --{name} ", usual)) == (name not in RARE.split()), name
        assert re.findall(r"─ ([A-Z][a-z ,]+) ─", usual)[2:] == list(GROUPS)
        assert "<bool>" not in whole


def test_help_is_no_option_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    for option in ("--help", "--help-all"):
        script.write_text(f"#!/bin/sh\n#TENBIN {option}\ntrue\n")
        done = tenbin("submit", "--dry-run", str(script))
        assert done.returncode == 2 and f"{script}, line 2: #TENBIN: --help is no option" in done.stderr
