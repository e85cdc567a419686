"""Mistyped commands, and text that terminals must not be sent."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import TENBIN, tenbin

NAMES = (
    "two words",
    "-dash",
    "a\nb",
    "\x1b[2J[red]",
    "名前 é",
    "$(touch x)",
    "'; rm -rf x",
    "[bold]",
    "..",
    "a/b",
)
LEAVES = 'trap "exit 85" URG; while ! [ -e go ]; do sleep 0.02; done'


def test_names_and_arguments_are_only_text(up: Up, tmp_path: Path) -> None:
    """No name is a command, an option, a path or a control sequence; each comes back as it was."""
    up.start("--cores", "1")
    folder = tmp_path / "a folder\nwith é"
    folder.mkdir()
    for name in NAMES:
        printf = ("printf", "%s\n", name, "-n")
        done = up.run("submit", f"--name={name}", "--chdir", str(folder), "--", *printf)
        assert done.returncode == 0, done.stderr
    for number, name in enumerate(NAMES, 1):
        job = up.client.job(number)
        assert job.result(60) == 0 and job.info()["name"] == name
        assert up.client.output(number).decode() == f"{name}\n-n\n"
    shown = up.run("jobs", "--all").stdout + up.run("info", "4").stdout
    assert "\x1b" not in shown and "a\\nb" in shown and "\\x1b[2J[red]" in shown and "名前 é" in shown
    assert list(folder.iterdir()) == []
    assert {path.name for path in (up.home / "jobs").iterdir()} == {str(n + 1) for n in range(len(NAMES))}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("jobs --limit x", "--limit"),
        ("jobs --stag x", "--stage"),
        ("submit --cores x -- true", "--cores"),
        ("simulate --policy", "'--policy' requires an argument"),
        ("info", "Missing argument"),
        ("frob", "No such command 'frob'"),
        ("--frob", "No such option: --frob"),
    ],
)
def test_a_mistyped_command_is_one_line(words: str, said: str) -> None:
    done = tenbin(*words.split())
    assert done.returncode == 2 and not done.stdout
    assert said in done.stderr and "--help" in done.stderr and done.stderr.count("\n") == 1


def test_commands_that_cannot_run(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    (tmp_path / "text").write_text("no program")
    before = up.client.submit(["true"])
    for command in (["no-such-program"], [str(tmp_path / "text")]):
        found = up.client.submit(command, folder="/", after=[before.id]).wait(60)
        assert found["stage"] == "failed" and "could not be started" in found["trouble"], command
        assert found["trouble"].startswith(f"it could not be started: {command[0]}: "), found["trouble"]
    with pytest.raises(TenbinError, match="the name of the program is empty"):
        up.client.submit([""])
    with pytest.raises(TenbinError, match="argument 1 has 140,000 bytes, a program takes 131,071"):
        up.client.submit(["true", "é" * 70_000])
    for arguments, words in (
        (("submit", "--env", "novalue", "--", "true"), "write NAME=VALUE"),
        (("submit", "--priority", "9999999", "--", "true"), "tenbin: priority: must be at most 1000000\n"),
        (
            ("submit", "sleep 10"),
            "there is no program 'sleep 10', with the blanks in its",
        ),
        (("submit", "--array", "1-3", "--", "sleep 10"), "there is no program 'sleep 10'"),
        (("map", "--", "gzip -9", ":::", "a"), "there is no program 'gzip -9'"),
        (("submit", "/etc"), "/etc is a folder; name a script or a program"),
        (("submit", "--after", "99", "--", "true"), "no job 99"),
        (("migrate", "1", "--to", "core"), "has ended"),
    ):
        done = up.run(*arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--chdir", "/tmp/caf\udce9", "--", "true"),
            "working directory: b'/tmp/caf\\xe9' is not UTF-8",
        ),
        (("--name", "\udce9", "--", "true"), "--name: b'\\xe9' is not UTF-8"),
        (("--output", "\udce9", "--", "true"), "--output and --error: b'\\xe9' is not UTF-8"),
        (("--env", "A=\udce9", "--", "true"), "--env: b'\\xe9' is not UTF-8"),
        (("--", "echo", "\udce9"), "command: b'\\xe9' is not UTF-8"),
        (("sleep 10",), "there is no program 'sleep 10'"),
    ],
)
def test_bytes_that_are_no_text_are_named_with_the_remedy(words: tuple[str, ...], message: str) -> None:
    done = tenbin("submit", "--dry-run", *words)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_paths_that_are_not_there(up: Up, tmp_path: Path) -> None:
    """Refused when the job is taken in, with a remedy; one that waits for another may find what that made."""
    up.start("--cores", "1")
    (tmp_path / "file").touch()
    cases = (
        (("--chdir", "/no/such"), "working directory /no/such: No such file or directory; make it"),
        (("--chdir", str(tmp_path / "file")), "Not a directory"),
        (("--output", "/no/such/x"), "output /no/such/x: No such file or directory"),
        (("--error", "sub/x"), f"error {Path.cwd() / 'sub' / 'x'}: No such file"),
        (("--output", str(tmp_path)), f"output {tmp_path}: Is a directory"),
        (("--output", str(tmp_path / ("x" * 300))), "File name too long"),
        (("--array", "1-3", "--chdir", "/no/such"), "working directory /no/such"),
    )
    for options, words in cases:
        done = up.run("submit", *options, "--", "true")
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert "--chdir" in done.stderr or "--output" in done.stderr or "--error" in done.stderr
    assert up.run("jobs", "--all", "--json").stdout.strip() == "[]"
    made = tmp_path / "made"
    maker = up.client.submit(["sh", "-c", f"sleep 0.2; mkdir {made}"])
    assert up.run("submit", "--wait", "--after", "1", "--chdir", str(made), "--", "true").returncode == 0
    maker.wait(60)
    made.rmdir()
    late = up.run("submit", "--wait", "--after", "1", "--chdir", str(made), "--", "true")
    assert late.returncode == 125 and f"could not be started: {made}: No such file" in late.stderr


def test_a_program_that_is_not_here(up: Up, tmp_path: Path) -> None:
    """Refused when the job is taken in; one that waits for another may find what that made."""
    up.start("--cores", "1")
    (tmp_path / "here.sh").touch()
    here = ("--chdir", str(tmp_path))
    for words, message in (
        (("nofile.sh",), "there is no program nofile.sh; correct its name"),
        (("old.sbat",), "there is no program old.sbat; correct its name"),
        ((*here, "--", "here.sh"), "there is no program here.sh; write ./here.sh"),
        (("nofile",), "there is no program nofile; correct its name"),
        (("--", "nofile"), "there is no program nofile; correct its name"),
        ((*here, "--", "./here.sh"), "./here.sh is there, but may not be executed; chmod +x ./here.sh"),
        (("--", "./nofile"), "./nofile: No such file or directory; correct its name"),
        (("--", f"{tmp_path}/here.sh/x"), f"{tmp_path}/here.sh/x: Not a directory"),
        (("--array", "1-3", "/no/such"), "/no/such: No such file or directory"),
    ):
        done = up.run("submit", *words)
        assert done.returncode == 2 and not done.stdout and message in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    (tmp_path / "there.sh").write_text("#!/bin/sh\n")
    (tmp_path / "there.sh").chmod(0o755)
    for words in (
        ("--env", f"PATH={tmp_path}", "--", "there.sh"),
        ("--env", "PATH=.", *here, "--", "there.sh"),
        (*here, "--", "./there.sh"),
    ):
        assert up.run("submit", "--wait", *words).returncode == 0, words
    maker = up.client.submit(
        ["sh", "-c", "printf '#!/bin/sh\\n' > made.sh; chmod +x made.sh"], folder=str(tmp_path)
    )
    made = up.run("submit", "--wait", "--after", str(maker.id), *here, "--", "./made.sh")
    assert made.returncode == 0, made.stderr


def test_a_script_whose_interpreter_is_not_here(up: Up, tmp_path: Path) -> None:
    """Refused when the job is taken in; one that waits for another may find what that installed."""
    up.start("--cores", "1")
    up.client.submit(["true"])
    script = tmp_path / "job"
    script.touch(0o755)
    missing = "No such file or directory"
    for line, message in (
        ("#!/no/such/python -u", f"/no/such/python: {missing}; the first line of job (#!) names"),
        ("#! \t./no-such x", f"./no-such: {missing}"),
        ("#!/etc/passwd", "/etc/passwd: Permission denied"),
        ("#!", "the first line of job (#!) names no program; write #!/bin/sh there"),
    ):
        script.write_text(f"{line}\n")
        for words in ((str(script),), ("--", str(script)), ("--chdir", str(tmp_path), "--", "./job")):
            done = up.run("submit", *words)
            assert done.returncode == 2 and message in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1
        late = up.run("submit", "--wait", "--after", "1", str(script))
        reason = message.partition(";")[0] if line != "#!" else "Exec format error"
        assert late.returncode == 125 and reason in late.stderr, late.stderr
    assert len(json.loads(up.run("jobs", "--all", "--json").stdout)) == 5  # none of those refused


def test_more_than_a_program_can_be_given(up: Up) -> None:
    up.start("--cores", "1")
    words = ["x" * 131_000] * 50  # 6 MiB; the kernel takes no more of anybody
    with pytest.raises(TenbinError, match=r"arguments and variables have .* bytes more than a program takes"):
        up.client.submit(["true", *words])
    with pytest.raises(TenbinError, match=r"arguments and variables have .* bytes more"):
        up.client.submit(["true"], env={f"V{number}": word for number, word in enumerate(words)})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_paths_that_may_not_be_used(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    tmp_path.joinpath("closed").mkdir(mode=0o500)
    done = up.run("submit", "--output", str(tmp_path / "closed" / "x"), "--", "true")
    assert done.returncode == 2 and "Permission denied" in done.stderr


def test_a_job_profile_that_does_not_exist(up: Up) -> None:
    """Refused under every policy: a job would be planned without what its owner believes known."""
    up.start("--cores", "1")
    done = up.run("submit", "--job-profile", "nobody", "--", "true")
    assert done.returncode == 2 and "no job profile 'nobody'" in done.stderr
    assert up.run("submit", "--name", "nobody", "--wait", "--", "true").returncode == 0


def test_a_working_directory_that_is_gone(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    gone = tmp_path / "gone"
    gone.mkdir()
    enter = f"cd {gone} && rmdir {gone} && exec "
    command = shlex.join([*TENBIN, "submit", "--home", str(up.home), "--", "true"])
    done = subprocess.run(["sh", "-c", enter + command], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "the working directory does not exist any more" in done.stderr
    command = shlex.join([*TENBIN, "submit", "--home", str(up.home), "--chdir", "/", "--wait", "--", "true"])
    gone.mkdir()
    done = subprocess.run(["sh", "-c", enter + command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def slow_door(up: Up, home: Path, path: bytes, until: Callable[[], object]) -> Thread:
    """Open a socket in ``home`` that passes calls on; calls of ``path`` pass once ``until`` has come.

    It serves two calls.
    """
    home.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(home / "api.sock"))
    listener.listen(2)

    def serve() -> None:
        for _ in range(2):
            caller, _ = listener.accept()
            with caller, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as on:
                asked = caller.recv(1 << 16)
                while b"POST" in asked[:4] and not asked.endswith(b"}"):
                    asked += caller.recv(1 << 16)
                if path in asked.split(b"\r\n")[0]:
                    until()
                on.connect(str(up.home / "api.sock"))
                on.sendall(asked.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                while said := on.recv(1 << 16):
                    caller.sendall(said)
        listener.close()

    thread = Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_all_jobs_are_cancelled_though_one_ends_meanwhile(up: Up, tmp_path: Path) -> None:
    """Between the list of all jobs and their end one has ended by itself: the others are cancelled."""
    up.start("--cores", "1")
    leaves = "while ! [ -e go ]; do sleep 0.02; done"
    first = up.client.submit(["sh", "-c", leaves], folder=str(tmp_path))
    others = [up.client.submit(["sleep", "60"]) for _ in range(2)]
    up.until(first.running)

    def first_ends() -> None:
        (tmp_path / "go").touch()
        assert first.result(60) == 0

    door = slow_door(up, tmp_path / "door", b"/cancel", first_ends)
    done = up.run("cancel", "all", "--home", str(tmp_path / "door"), "--json")
    door.join(60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ids"] == [job.id for job in others] and "1" in found["left_out"]
    assert [job.wait(60)["stage"] for job in (first, *others)] == ["done", "cancelled", "cancelled"]
    assert up.run("cancel", "all").returncode == 0
    done = up.run("cancel", str(first.id))
    assert done.returncode == 2 and "job 1 has ended (done)" in done.stderr


def test_a_job_moves_to_another_node(up: Up) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up.start("--nodes", "2", "--policy", "las")
    job = up.client.submit(["sh", "-c", LEAVES], folder=str(up.home), checkpoint_signal=23)
    up.until(
        lambda: (
            job.info()["stage"] == "running"
            and (up.home / "jobs" / "1" / "attempt-1" / "state.json").exists()
        )
    )
    (here,) = job.info()["nodes"]
    places = {f"node{here}": "runs there already", "node7": "has 2 nodes", "nowhere": "no pool nowhere"}
    for place, words in places.items():
        done = up.run("migrate", "1", "--to", place)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    cores = job.info()["cpus"]
    up.client.job(1).migrate(f"node{1 - here}")
    up.until(lambda: job.info()["attempt"] == 2 and job.info()["stage"] == "running", 120)
    found = job.info()
    assert found["nodes"] == [1 - here] and not {*found["cpus"]} & {*cores} and found["migrations"] == 1
    other = up.client.submit(["true"])
    (up.home / "go").touch()
    assert job.result(60) == 0 and other.result(60) == 0
    assert "node1" in up.run("nodes").stdout
