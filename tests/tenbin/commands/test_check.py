"""``tenbin profile check`` on the command line: exit codes, forms of output, and what it refuses."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from profiles.checks.check import EXIT_CODES, Change, CheckStore, Verdict
from profiles.files.store import Store
from profiles.records import Settings
from tenbin.commands.measure.check import TITLES, _doubtful, print_check
from tests.support.checks import BEGIN, make_check
from tests.support.programs import tenbin
from tests.support.records import make_profile

REFUSED = [
    (["--log", "--json"], "--log and --json exclude each other"),
    (
        ["--prometheus", "/nowhere/tenbin.prom"],
        "/nowhere/tenbin.prom: its folder does not exist",
    ),
    (["--against", "yesterday"], "no profile in"),
    (["--hosts", "one"], "--hosts one: two hosts are needed"),
    (["--storage", "/nowhere"], "--storage /nowhere: not a folder"),
    (["--baseline", "0"], "--baseline"),
    (["--wait", "-1"], "--wait"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=[" ".join(options) for options, _ in REFUSED])
def test_bad_input_is_one_line_and_exit_code_2(options: list[str], said: str, tmp_path: Path) -> None:
    done = tenbin("profile", "check", "--quick", *options, store=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr
    assert not list(tmp_path.rglob("checks.jsonl"))


@pytest.mark.parametrize(
    ("worse", "only_devices", "again"),
    [
        ({}, False, ("battery",)),  # something is gone
        ({"": 1}, False, ("battery",)),
        ({"GPU-1": 1}, True, ("devices", "GPU-1")),
        ({"": 1, "GPU-2": 1, "GPU-1": 1}, False, ("devices", "GPU-1", "GPU-2", "battery")),
        ({}, True, ()),  # a wrong result is wrong
    ],
)
def test_only_what_is_doubtful_is_measured_once_more(
    worse: dict[str, int], only_devices: bool, again: tuple[str, ...]
) -> None:
    about = {"unit": "", "was": 1.0, "now": 0.9, "loss_ratio": 0.1}
    changes = tuple(
        Change(quantity="x", labels={"device": name} if name else {}, state="worse", **about)  # type: ignore[arg-type]
        for name in worse
    )
    check = make_check(changes=changes, verdict=Verdict.CHANGED, only_devices=only_devices)
    assert _doubtful(check) == again
    assert _doubtful(make_check(changes=changes, verdict=Verdict.DISTURBED)) == ()


@pytest.mark.measures
def test_a_first_check_learns_and_is_kept(tmp_path: Path) -> None:
    """One line, exit code 3; the forms of output tell the same."""
    metrics = tmp_path / "tenbin.prom"
    options = ("--quick", "--json", "--storage", str(Path.home()), "--prometheus", str(metrics))
    done = tenbin("profile", "check", *options, store=tmp_path / "store", TENBIN_HOME=str(tmp_path / "home"))
    if "another profile is measuring" in done.stderr:
        pytest.skip(done.stderr)
    found = json.loads(done.stdout)
    assert found["verdict"] in ("unknown", "disturbed")
    assert done.returncode == EXIT_CODES[Verdict(found["verdict"])] == 3
    (kept,) = CheckStore(tmp_path / "store").of_node(found["node"])
    assert kept.model_dump(mode="json") == found
    assert kept.facts["kernel"] and kept.conditions.processors and kept.conditions.quiet == ""
    assert f'tenbin_check_exit_code{{node="{found["node"]}"}} 3.0' in metrics.read_text()


def test_of_a_first_check_only_what_is_known_has_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    change = Change(quantity="compute_gflops", labels={}, unit="GFLOP/s", was=12.0, now=12.0, loss_ratio=0.0)
    print_check(make_check(changes=(change,), verdict=Verdict.UNKNOWN, reason="0 earlier checks"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["now", "unit"] and lines[3].split()[-2:] == ["12", "GFLOP/s"]
    said = " ".join(" ".join(lines[4:]).split())
    assert said.startswith("not compared yet:") and "tenbin profile check --quick --baseline 8" in said


def test_the_table_fits_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    labels = {"kernel": "triad", "cores": "16", "level": "memory", "size": "64 KiB", "storage": "/scratch"}
    changes = []
    for quantity in TITLES:
        unit = "s" if quantity.endswith("_s") else "GFLOP/s"
        sizes = {"was": 1.55e-3 if unit == "s" else 1234.5, "now": 3.42e-3 if unit == "s" else 1123.4}
        limits = {"loss_ratio": 1.202, "low": -0.712, "high": 15.847, "p": 0.001, "tells_ratio": 2.0}
        about = {"labels": labels, "unit": unit, "state": "worse", "since": BEGIN}
        changes.append(Change(quantity=quantity, **about, **sizes, **limits))  # type: ignore[arg-type]
    print_check(make_check(changes=tuple(changes), verdict=Verdict.CHANGED, reason="slow"))
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if " .. " in line]
    assert len(rows) == len(TITLES) and max(map(len, map(str.rstrip, lines[2 : 3 + len(rows)]))) <= 80
    assert sum("since: " in line for line in lines) == len(rows)


def test_a_profile_that_is_not_whole_ends_no_baseline(tmp_path: Path) -> None:
    store, node = Store(tmp_path), socket.gethostname()
    only = Settings(only=("checkpoint",))
    for number, changes in enumerate(({"settings": only}, {}, {"interrupted": True}, {"settings": only})):
        store.save(make_profile(id=f"2026010{number}T000000Z", node=node, **changes), {})
        made = store.newest_whole(socket.gethostname())
        assert made is not None and made.id == f"2026010{min(number, 1)}T000000Z"
