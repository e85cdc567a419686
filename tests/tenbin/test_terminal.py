"""Text of stored files is shown on a terminal, and never obeyed by it; odd files cost one line, no hang."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from rich.cells import cell_len
from rich.text import Text

from profiles.clusters import Survey
from profiles.errors import BadInput
from profiles.files.store import JobStore, Store, samples
from profiles.jobs import JobProfile
from profiles.records import Absent, NetworkInterface, Profile, Record
from tenbin import terminal
from tests.support.job_profiles import make_job
from tests.support.programs import start, tenbin
from tests.support.records import (
    make_coefficient,
    make_device,
    make_inventory,
    make_model,
    make_profile,
)

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\x85\x7f\u202e\r[/x][red]</script><script>owned"
SAMPLES = pd.DataFrame({"round": [0, 1], "emulated": [False, False], "wall_s": [1.0, 2.0]})


def hostile(record: Record) -> Record:
    """Put ``HOSTILE`` into every text of the record, and into every name of a label that takes it."""
    content: dict[str, Any] = json.loads(record.model_dump_json())
    taken = 0

    def attempt(place: Any, key: Any, value: Any) -> None:
        nonlocal taken
        before = place[key]
        place[key] = value
        try:
            type(record).model_validate_json(json.dumps(content))
            taken += 1
        except ValidationError:
            place[key] = before

    def walk(place: Any) -> None:
        for key in list(place if isinstance(place, dict) else range(len(place))):
            if isinstance(place[key], str):
                attempt(place, key, place[key] + HOSTILE)
            elif isinstance(place[key], dict | list):
                if key == "labels":
                    attempt(place, key, {**place[key], HOSTILE: HOSTILE})
                if key != "nodes":  # by these the profiles of a cluster's nodes are found
                    walk(place[key])

    walk(content)
    assert taken > 5
    return type(record).model_validate_json(json.dumps(content))


def on_a_terminal(*arguments: str, store: Path, folder: Path) -> tuple[int, str]:
    """Return what a command writes to a terminal without colours."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, chdir(folder):
        process = start(*arguments, out=terminal, TENBIN_STORE=str(store), TERM="dumb", COLUMNS="300")
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    return process.wait(), written.decode()


def obeyed(text: str) -> list[str]:
    """Find the characters of a terminal's output that do something."""
    return [c for c in text.replace("\r\n", "\n") if not c.isprintable() and c != "\n"]


def test_an_old_name_says_once_to_each_user_what_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only people are told: not what reads JSON, and no other name is told of."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def says(*arguments: str) -> bool:
        return "is now: tenbin" in on_a_terminal(*arguments, store=tmp_path, folder=tmp_path)[1]

    assert not says("list", "--json") and not says("profile", "list") and not says("ps", "--help")
    assert [says("list"), says("list"), says("job", "list")] == [True, False, True]


@pytest.fixture(scope="module")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store a hostile profile of a node, of a job and of a cluster, beside harmless ones."""
    root = tmp_path_factory.mktemp("hostile") / "store"
    inventory = make_inventory(
        opencl=(make_device(),),
        network=(NetworkInterface(name="e", speed_mbit=None, numa_node=None, driver="d"),),
    )
    absent = (Absent(probe="power", what="w", reason="r", remedy="x"),)
    whole = make_profile(
        models=(make_model(), make_model(make_coefficient(), make_coefficient(name="b"))),
        absent=absent,
        inventory=inventory,
        origin="refitted",
    )
    bad = hostile(whole)
    assert isinstance(bad, Profile)
    _put(root / "bad" / "20260102T000000Z", bad, {"memory": SAMPLES})
    Store(root).save(make_profile(), {})
    job = hostile(make_job("stencil", absent=absent))
    assert isinstance(job, JobProfile)
    _put(root / "jobs" / "kind" / "stencil" / "20260101T000000Z", job, {})
    JobStore(root).save(make_job("other"), {})
    survey = Survey(
        id="20260101T000000Z",
        cluster="c",
        created=whole.created,
        duration_s=1.0,
        tenbin_version="0",
        nodes={"bad": "20260102T000000Z", "node": "20260101T000000Z"},
        absent=absent,
    )
    _put(root / "clusters" / "c" / survey.id, hostile(survey), {})
    damaged = root / f"x{HOSTILE.replace('/', '')}" / "20250101T000000Z"
    damaged.mkdir(parents=True)
    (damaged / "profile.json").write_text("{}")
    return root


@pytest.fixture
def store(hostile_store: Path, tmp_path: Path) -> Path:
    """Copy the hostile profiles into the folder of a test."""
    return Path(shutil.copytree(hostile_store, tmp_path / "store"))


def _put(folder: Path, record: Record, tables: dict[str, pd.DataFrame]) -> None:
    (folder / "samples").mkdir(parents=True)
    (folder / "profile.json").write_text(record.model_dump_json())
    for name, table in tables.items():
        table.to_parquet(folder / "samples" / f"{name}.parquet")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, "list"),
        (2, "list --json"),
        (0, "show bad"),
        (0, "show bad --machine"),
        (0, "show bad --json"),
        (0, "show --cluster"),
        (0, "compare bad node --all"),
        (0, "compare node bad"),
        (0, "compare bad node --all --json"),
        (0, "export bad"),
        (0, "export bad --format prometheus"),
        (0, "report bad"),
        (0, "report --cluster"),
        (0, "job list"),
        (0, "job show stencil"),
        (0, "job show stencil --json"),
        (2, "show nobody"),
        (2, "show ./store/xbad"),
    ],
)
def test_no_text_of_a_file_is_obeyed_by_the_terminal(
    store: Path, tmp_path: Path, code: int, arguments: str
) -> None:
    done, text = on_a_terminal(*arguments.split(), store=store, folder=tmp_path)
    assert (done, obeyed(text)) == (code, []), text
    assert "Traceback" not in text
    for page in tmp_path.glob("*.html"):
        assert "<script>owned" not in page.read_text()


def test_a_report_lies_in_this_folder_whatever_the_profile_is_called(tmp_path: Path) -> None:
    root, here = tmp_path / "store", tmp_path / "a" / "b"
    here.mkdir(parents=True)
    _put(root / "x" / "20260101T000000Z", make_profile(node="../../up"), {})
    code, _ = on_a_terminal("profile", "report", "x", store=root, folder=here)
    assert code == 0 and [page.name for page in tmp_path.rglob("*.html")] == [
        ".._.._up-20260101T000000Z.html"
    ]
    assert len(list(here.glob("*.html"))) + len(list(here.glob(".*.html"))) >= 1


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
def test_only_regular_files_are_profiles(tmp_path: Path, kind: str) -> None:
    Store(tmp_path).save(make_profile(), {})
    JobStore(tmp_path).save(make_job("other"), {})
    for folder in (tmp_path / "odd" / "20270101T000000Z", tmp_path / "jobs" / "k" / "odd" / "2027"):
        folder.mkdir(parents=True)
        odd = folder / "profile.json"
        {"pipe": os.mkfifo, "folder": Path.mkdir, "link to a device": lambda p: p.symlink_to("/dev/zero")}[
            kind
        ](odd)
    for arguments in (
        ["profile", "list"],
        ["program", "list"],
        ["profile", "show", "last"],
        ["program", "show", "odd"],
    ):
        done = tenbin(*arguments, store=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert re.search("odd.*(no regular file|Is a directory)", done.stderr)
    assert "20260101T000000Z" in tenbin("profile", "list", store=tmp_path).stdout


def test_a_damaged_table_is_a_sentence_or_unharmed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {"round": np.repeat([0, 1], 40), "emulated": False, "wall_s": rng.random(80), "device": "pocl-0"}
    )
    path = Store(tmp_path).save(make_profile(), {"memory": table}) / "profile.json"
    file = path.parent / "samples" / "memory.parquet"
    whole, refused = file.read_bytes(), 0
    for seed in range(300):
        draw, content = random.Random(seed), bytearray(whole)
        if seed % 3 == 0:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        elif seed % 3 == 1:
            del content[draw.randrange(len(content)) :]
        else:
            start, size = draw.randrange(len(content)), draw.randrange(1, 60)
            content[start : start + size] = draw.randbytes(size)
        file.write_bytes(content)
        try:
            pd.testing.assert_frame_equal(samples(path)["memory"], table)
        except BadInput as error:
            assert str(file) in str(error)
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("content", ["broken", "another table", "pipe"])
def test_a_damaged_table_costs_one_line(tmp_path: Path, content: str) -> None:
    other = pd.DataFrame({"other": [1.0]})
    path = Store(tmp_path / "store").save(make_profile(), {"memory": other if content[0] == "a" else SAMPLES})
    file = path / "samples" / "memory.parquet"
    if content == "broken":
        file.write_bytes(file.read_bytes()[:-9] + b"PAR1")
    elif content == "pipe":
        file.unlink()
        os.mkfifo(file)
    done = tenbin("profile", "report", "-o", str(tmp_path / "page.html"), store=tmp_path / "store")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "memory.parquet" in done.stderr and "delete" in done.stderr
    copied = tenbin(
        "profile", "export", "--format", "parquet", "-o", str(tmp_path / "copy"), store=tmp_path / "store"
    )
    assert (copied.returncode, copied.stderr.count("\n")) == ((2, 1) if content == "pipe" else (0, 0))


def test_a_table_in_plain_lines_is_as_rich_draws_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it fits; where it does not, no line is wider than the terminal, and what was cut ends so."""
    headings, left = ("job", "CPU\ntime", "name", "reason"), ("name", "reason")
    rows = [
        ["7", "1:30 h", "漢字 [red]x", "waits for 1 core"],
        ["7[12]", "-", "e\u0301" * 9, ""],
        ["1000", "2 s", "", "b"],
    ]
    console = terminal.SafeConsole()
    console.width = 200
    drawn = terminal.table(*headings, left=left, collapse_padding=True)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)
    truth = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    terminal.lay_out(console, headings, rows, left)
    assert capsys.readouterr().out.splitlines() == truth and len(truth) == 5
    for width in range(20, max(map(cell_len, truth))):
        console.width = width
        terminal.lay_out(console, headings, rows, left)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 5 and max(map(cell_len, lines)) <= width and any("…" in line for line in lines)
    terminal.lay_out(console, headings, [], left)
    assert capsys.readouterr().out.splitlines() == ["      CPU", " job time name reason"]
