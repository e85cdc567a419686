"""The command line as a user meets it: real processes, exit codes, one line for an error."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from probes.mpi.runner import MpiInstall
from profiles.files.store import Store
from tenbin import cli
from tenbin.cli import ALIASES, COMMANDS, GUESSES, OLD_NAMES
from tests.support import programs
from tests.support.coordinator import Up
from tests.support.records import make_coefficient, make_model, make_profile

TENBIN = str(Path(sys.executable).with_name("tenbin"))
SAMPLES = pd.DataFrame({"round": [0], "emulated": [False], "wall_s": [1.0]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two profiles of one node; the second is 20 % faster, beyond its interval."""
    store = Store(tmp_path / "store")
    store.save(make_profile(id="20260101T000000Z"), {"memory": SAMPLES})
    faster = make_model(make_coefficient(12.0, 11.8, 12.2))
    store.save(make_profile(id="20260102T000000Z", models=(faster,)), {"memory": SAMPLES})
    return store


def tenbin(*arguments: str, store: Store | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return programs.tenbin(*arguments, store=store and store.root, **env)


def test_help_teaches() -> None:
    """Also of a process from its beginning: others are forked from one that has imported everything."""
    done = subprocess.run([TENBIN, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert all(task in done.stdout for task in ("Measure machines", "Compare policies", "Run jobs"))
    for command in ("doctor", "profile", "program", "slurm", "submit"):
        assert f"│ {command} " in done.stdout
        assert tenbin(command, "--help").returncode == 0
    below = subprocess.run([TENBIN, "profile", "--help"], capture_output=True, text=True, check=False)
    assert "--quick" in below.stdout and "--nodes" in below.stdout
    for word in ("show", "list", "compare", "export", "report", "restore"):
        assert word in below.stdout, word
        assert tenbin("profile", word, "--help").returncode == 0, word


def test_a_noun_alone_measures_and_what_follows_is_a_command(store: Store) -> None:
    """Options of measuring are not of a command below; ``slurm profile`` is ``profile --nodes all``."""
    refused = tenbin("profile", "--quick", "list", store=store)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "tenbin: --quick is not of that command; see: tenbin profile list --help\n"
    unknown = tenbin("profile", "lst", store=store)
    assert unknown.returncode == 2 and "Did you mean 'list'?; see: tenbin profile --help" in unknown.stderr
    alone = tenbin("profile", "--only", "nothing", store=store)
    assert alone.returncode == 2 and "nothing" in alone.stderr
    of_a_cluster = tenbin("slurm", "profile", "--hosts", "a,b", store=store)
    assert "--nodes and --hosts exclude each other" in of_a_cluster.stderr
    assert tenbin("program").stdout.strip() == tenbin("program", "--help").stdout.strip()


@pytest.mark.parametrize(("name", "now"), {**OLD_NAMES, **ALIASES}.items())
def test_other_names_are_the_same_command(name: str, now: str) -> None:
    """Also behind ``help``, with their options; no pipe sees a hint."""
    options = [word for word in now.split() if word.startswith("--")]
    shown = tenbin(name, "--help")
    assert shown.stdout == tenbin(*now.split(), "--help").stdout == tenbin("help", name).stdout
    assert shown.returncode == 0 and not shown.stderr and all(option in shown.stdout for option in options)


@pytest.mark.parametrize(
    "command", [[], ["jobs"], ["submit"], ["profile"], ["profile", "list"], ["slurm", "config"]]
)
def test_the_short_letter_of_help_is_understood_everywhere(command: list[str]) -> None:
    done = tenbin(*command, "-h")
    assert done.returncode == 0 and done.stdout == tenbin(*command, "--help").stdout


def test_help_without_a_command_is_that_of_all() -> None:
    assert tenbin("help").stdout == tenbin("--help").stdout
    assert tenbin("help", "profile", "list").stdout == tenbin("profile", "list", "--help").stdout


def test_what_is_a_job_and_no_profile_is_told(store: Store, up: Up) -> None:
    up.start("--cores", "1")
    up.client.submit(["true"]).wait(60)
    for home, said in ((up.home, "1 is a job; tenbin info 1"), (up.home / "no", "'1' matches no profile")):
        refused = tenbin("show", "1", store=store, TENBIN_HOME=str(home))
        assert refused.returncode == 2 and refused.stderr.startswith(f"tenbin: {said}")


def test_a_full_disk_below_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [TENBIN, "policies"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "No space left on device" in done.stderr


def test_a_folder_without_access_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """As HOME is in a container that is read-only; root may write everywhere, so it is made up."""

    def refused() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/home/me/.local")

    monkeypatch.setattr(cli, "_run", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("tenbin: /home/me/.local: Permission denied; give yourself")
    monkeypatch.setattr(cli, "_run", lambda: os.kill(2**22 + 1, 0))  # what names no file is a fault
    with pytest.raises(OSError, match="No such process"):
        cli.main()


EMPTY = (("--only", ""), ("--only", ","), ("--hosts", ","), ("--nodes", ""))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["up", "--home", "/proc/new/home"],
            ["/proc/new: no folder can be made there; name another folder: --home, TENBIN_HOME\n"],
        ),
        (["profile", "--only", "memroy"], ["--only", "memroy", "choose from memory"]),
        (["profile", "--storage", "/no/such/folder"], ["--storage", "/no/such/folder", "mkdir"]),
        (["profile", "--meter", "sundial"], ["--meter", "sundial", "powercap"]),
        (["profile", "--emulate", "cray-1"], ["--emulate", "cray-1", "intel-1s"]),
        (["profile", "--emulate", "intel-1s", "--only", "memory"], ["--emulate", "only power"]),
        (["profile", "--report", "/no/such/folder/r.html"], ["--report", "mkdir"]),
        (["profile", "--report", "/tmp"], ["--report", "is a folder"]),
        (["profile", "--hosts", "nohost"], ["--hosts: nohost", "name at least two hosts"]),
        *((["profile", option, text], [f"{option} '{text}' names nothing"]) for option, text in EMPTY),
        (["profile", "check", "--hosts", ""], ["--hosts '' names nothing"]),
        (["program", "profile", "x", "--hosts", "", "--", "true"], ["--hosts '' names nothing"]),
        (["program", "profile", "x", "--scale", "", "--", "true"], ["--scale '' is no list of counts"]),
        (["profile", "--only", "compute", "--seed", "-1"], ["'--seed': must be at least 0"]),
        (["program", "profile", "x", "--seed", "-1", "--", "true"], ["'--seed': must be at least 0"]),
        (["profile", "--hosts", "a,b", "--only", "memory"], ["--hosts", "only the network probe"]),
        (["profile", "--hosts", "a,b", "--emulate", "intel-1s"], ["--hosts", "only the network probe"]),
        (["profile", "show", "nobody"], ["nobody", "tenbin profile list"]),
        (["profile", "export", "--format", "parquet"], ["--format parquet", "--output"]),
        (
            ["compare", "last"],
            ["'last' and 'last' are the same profile", "tenbin profile compare 20260101T000000Z 20"],
        ),
        (
            ["profile", "compare", "node"],
            ["the same profile", "tenbin profile compare 20260101T000000Z 20260102T000000Z"],
        ),
        (["profile", "compare", "20260101", "20260101"], ["the same profile", "tenbin profile list"]),
        (["profile", "show", ""], ["matches no profile", "tenbin profile list"]),
        (
            ["profile", "show", "/no/such/profile.json"],
            ["/no/such/profile.json: cannot be read (No such file"],
        ),
        (["profile", "show", sys.executable], [sys.executable, "it is no text"]),
        (
            ["profile", "compare", "last", "/etc/passwd"],
            ["/etc/passwd", "it is no profile, or a damaged one"],
        ),
        (["profile", "export", "-o", "/no/such/folder/x"], ["--output", "No such file"]),
        (["profile", "export", "-o", "."], ["--output", "Is a directory"]),
        (["profile", "report", "-o", "."], ["--output .", "is a folder"]),
        (["doctor", "--storage", "/no/such/folder"], ["--storage", "/no/such/folder", "mkdir"]),
    ],
)
def test_bad_input_is_one_line_that_names_the_remedy(
    store: Store, arguments: list[str], words: list[str]
) -> None:
    done = tenbin(*arguments, store=store)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("below", ["", "/sub/folder"])
def test_a_file_in_place_of_the_coordinators_folder_is_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    done = tenbin("up", TENBIN_HOME=f"{tmp_path}/file{below}")
    remedy = "name another folder: --home, TENBIN_HOME"
    assert done.returncode == 2
    assert done.stderr == f"tenbin: {tmp_path}/file: Not a directory; {remedy}\n"


def test_a_store_that_cannot_be_written_is_found_out_before_measuring(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = tenbin("profile", "--quick", "--store", str(blocked))
    assert done.returncode == 2 and "--store" in done.stderr and done.stderr.count("\n") == 1
    for words in ("list", "show", "export"):
        done = tenbin("profile", words, "--store", str(blocked))
        assert (done.returncode, done.stderr) == (2, f"tenbin: --store {blocked} is no folder; name one\n")


def test_show(store: Store) -> None:
    done = tenbin("profile", "show", store=store, COLUMNS="200")
    assert done.returncode == 0
    assert (
        "memory_bandwidth_gbs" in done.stdout
        and "cores=1 numa=local" in done.stdout
        and "11.8 .. 12.2" in done.stdout
    )
    assert (
        json.loads(tenbin("profile", "show", "20260101", "--json", store=store).stdout)["id"]
        == "20260101T000000Z"
    )


def test_a_line_too_long_for_the_terminal_goes_on_under_its_beginning(store: Store) -> None:
    shown = tenbin("profile", "show", "--machine", store=store, COLUMNS="40").stdout
    lines = shown[shown.index("  processor") :].split("\n\n")[0].splitlines()
    assert all(line.startswith("  ") and len(line) <= 40 for line in lines)


def test_list_names_a_damaged_profile_and_shows_the_others(store: Store) -> None:
    store.find("20260101").write_text("{")
    done = tenbin("profile", "list", store=store)
    assert done.returncode == 2
    assert "20260102T000000Z" in done.stdout and "20260101T000000Z" in done.stderr
    listed = json.loads(tenbin("profile", "list", "--json", store=store).stdout)
    assert len(listed["profiles"]) == 1 and len(listed["damaged"]) == 1


def test_compare_tells_which_differences_are_real(store: Store, tmp_path: Path) -> None:
    done = tenbin("profile", "compare", "20260101", "last", "--json", store=store)
    told = json.loads(done.stdout)
    (difference,) = told["differences"]
    assert difference["verdict"] == "higher" and difference["ratio"] == pytest.approx(1.2)
    assert (difference["better"], difference["certainty"]) == ("B", "surely")
    page = tmp_path / "both.html"
    wide = tenbin(
        "profile", "compare", "20260101", "last", "--report", str(page), store=store, COLUMNS="200"
    ).stdout
    assert "higher, B better" in wide and "B is surely better" in wide
    assert wide.splitlines()[2] == told["summary"][0]
    assert told["summary"][0] in page.read_text()
    nowhere = tenbin(
        "profile", "compare", "20260101", "last", "--report", str(tmp_path / "no/x.html"), store=store
    )
    assert nowhere.returncode == 2 and "--report" in nowhere.stderr
    kept = tenbin("profile", "compare", "20260101", "last", "--of", difference["model"].upper(), store=store)
    none = tenbin("profile", "compare", "20260101", "last", "--of", "nobody", store=store)
    heading = tenbin("profile", "compare", "20260101", "last", "--of", "interference", store=store)
    assert heading.stdout == kept.stdout
    assert difference["coefficient"] in kept.stdout and (none.returncode, none.stdout) == (2, "")
    narrow = tenbin("profile", "compare", "20260101", "last", store=store, COLUMNS="80").stdout.splitlines()
    assert " memory_bandwidth_gbs{cores=1,numa=local}" in narrow  # not broken in the middle of a word
    assert max(map(len, narrow[:5])) <= 80


def test_what_one_profile_alone_has_measured_is_a_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    more = make_model(quantity="storage_write_mbs", probe="storage")
    store.save(make_profile(id="20260101T000000Z", models=(make_model(), more)), {"memory": SAMPLES})
    store.save(make_profile(id="20260102T000000Z"), {"memory": SAMPLES})
    short = tenbin("profile", "compare", "previous", "last", store=store).stdout
    assert "Measured in A only, shown with --all: Speed of storage." in short
    assert "storage_write_mbs" not in short
    whole = tenbin("profile", "compare", "previous", "last", "--all", store=store).stdout
    assert "storage_write_mbs" in whole and "Measured in A only" not in whole


def test_profiles_are_chosen_by_their_place_and_by_labels(store: Store) -> None:
    first, second = "20260101T000000Z", "20260102T000000Z"

    def ids(*words: str) -> list[str]:
        found = json.loads(tenbin(*words, "--json", store=store).stdout)
        return [found["a"], found["b"]] if words[1] == "compare" else [found["id"]]

    assert ids("profile", "compare", "previous", "last") == [first, second]
    assert tenbin("profile", "label", first, "before update", store=store).returncode == 0
    assert ids("profile", "show", "before update") == [first] and ids(
        "profile", "compare", "before update"
    ) == [first, second]
    assert (
        json.loads(tenbin("profile", "list", "--json", store=store).stdout)["profiles"][1]["label"]
        == "before update"
    )
    assert "before update" in tenbin("profile", "list", store=store).stdout
    for text in ("last", "a/b", " x", "two\nlines", "x" * 61):
        refused = tenbin("profile", "label", first, text, store=store)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, text
    assert ids("profile", "show", "before update") == [first]
    tenbin("profile", "label", "previous", "", store=store)
    refused = tenbin("profile", "show", "before update", store=store)
    assert refused.returncode == 2 and "a label" in refused.stderr


def test_profiles_are_deleted_all_or_none(store: Store, tmp_path: Path) -> None:
    first = store.find("previous").parent
    refused = tenbin("profile", "delete", "previous", "no-such", store=store)
    assert refused.returncode == 2 and first.exists()
    outside = tmp_path / "profile.json"
    outside.write_text(store.find().read_text())
    refused = tenbin("profile", "delete", str(outside), store=store)
    assert refused.returncode == 2 and "is not in the store" in refused.stderr and outside.exists()
    done = tenbin("profile", "delete", "previous", store=store)
    assert done.returncode == 0 and done.stdout == "deleted node 20260101T000000Z\n"
    assert not first.exists() and [path.parent.name for path in store.paths()] == ["20260102T000000Z"]
    refused = tenbin("profile", "compare", "previous", "last", store=store)
    assert refused.returncode == 2 and "has one profile only" in refused.stderr


def test_export_as_csv(store: Store) -> None:
    (row,) = csv.DictReader(io.StringIO(tenbin("profile", "export", "--format", "csv", store=store).stdout))
    assert (row["id"], row["value"], row["low"], row["high"]) == ("20260102T000000Z", "12.0", "11.8", "12.2")
    assert row["quantity"] == "memory_bandwidth_gbs" and row["labels"] == "cores=1,numa=local"


def test_export(store: Store, tmp_path: Path) -> None:
    assert json.loads(tenbin("profile", "export", store=store).stdout)["node"] == "node"
    tenbin("profile", "export", "-o", str(tmp_path / "node.csv"), store=store)
    in_csv = tenbin("profile", "export", "--format", "csv", store=store).stdout
    assert (tmp_path / "node.csv").read_text() == in_csv
    assert (
        "tenbin_coefficient_value"
        in tenbin("profile", "export", "--format", "prometheus", store=store).stdout
    )
    done = tenbin("profile", "export", "--format", "parquet", "-o", str(tmp_path / "out"), store=store)
    assert done.returncode == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "memory.parquet"), SAMPLES)


def test_compare_says_of_what_is_not_known_that_it_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for day in (1, 2):
        A = make_coefficient(40.0 + day, 1.0, None, name="A", unit="cores", quality="poor")
        scaling = make_model(make_coefficient(), A)
        store.save(make_profile(id=f"2026010{day}T000000Z", models=(scaling,)), {"memory": SAMPLES})
    done = tenbin("profile", "compare", "20260101", "20260102", store=store)
    assert "2 coefficients in both: 0 differ" in done.stdout and "of 1 it cannot be told" in done.stdout
    everything = tenbin("profile", "compare", "20260101", "20260102", "--all", store=store).stdout
    line = next(line for line in everything.splitlines() if "not known" in line)
    assert line.split() == ["A", *("not", "known") * 2, "cores", "-", "-", "unknown"]


def test_hosts_that_do_not_answer_are_told_before_anything_is_measured(
    mpi: MpiInstall, tmp_path: Path
) -> None:
    """Exit code 4: what was asked for is not there."""
    done = tenbin("profile", "--quick", "--hosts", "localhost,no-such-host.invalid", store=Store(tmp_path))
    assert done.returncode == 4 and not list(tmp_path.iterdir()), done.stdout
    assert len(done.stderr.splitlines()) == 1 and "no-such-host.invalid" in done.stderr


def test_restore_with_nothing_to_restore(tmp_path: Path) -> None:
    done = tenbin("profile", "restore", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 0 and "Nothing to restore" in done.stdout


def test_the_shell_completes_profiles(store: Store) -> None:
    done = tenbin(
        store=store, _TENBIN_COMPLETE="complete_bash", COMP_WORDS="tenbin profile show 2026", COMP_CWORD="3"
    )
    assert set(done.stdout.split()) == {"20260101T000000Z", "20260102T000000Z"}


def test_a_reader_that_has_seen_enough_ends_it_quietly(store: Store) -> None:
    """Also where all output fits into the pipe's buffer, and for what typer prints itself."""
    environment = {**os.environ, "TENBIN_STORE": str(store.root)}
    for arguments in (["profile", "show", "--json"], ["--help"], ["profile", "list"]):
        with subprocess.Popen(
            [TENBIN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 128 + signal.SIGPIPE


def test_a_mistyped_command_is_guessed() -> None:
    done = tenbin("profil")
    assert done.returncode == 2 and "Did you mean 'profile'?" in done.stderr


@pytest.mark.parametrize(("word", "guess"), GUESSES.items())
def test_words_of_other_programs_are_guessed(word: str, guess: str) -> None:
    assert guess in cli.COMMANDS and word not in cli.COMMANDS
    done = tenbin(word)
    said = f"No such command '{word}'. Did you mean '{guess}'?; see: tenbin {guess} --help"
    assert done.returncode == 2 and done.stderr == f"tenbin: {said}\n"


def test_without_a_path_the_folders_of_the_system_are_searched() -> None:
    """Slurm's daemon gives its health check no PATH."""
    told = "import os, sys, tenbin.cli as cli; cli._run = lambda: print(os.environ['PATH']); cli.main()"
    done = subprocess.run([sys.executable, "-c", told], env={}, capture_output=True, text=True, check=True)
    assert {"/usr/bin", "/usr/sbin", "/bin"} <= set(done.stdout.strip().split(":"))


def test_each_option_has_help_and_none_is_described_that_is_not_there() -> None:
    for name, (place, _) in COMMANDS.items():
        if place:
            module, function = place.split()[0].split(":")
            command = getattr(import_module(f"tenbin.commands.{module}"), function)
            described = cli.described(command.__doc__)[1]
            noun, _, last = name.rpartition(" ")
            parameters = {p.name: p for p in cli.Commands(f"{noun} " * bool(noun))[last].params}
            assert described.keys() <= parameters.keys(), name
            bare = {name for name, parameter in parameters.items() if not parameter.help}
            assert bare <= {"job", "help"}, name  # their names say what these are
