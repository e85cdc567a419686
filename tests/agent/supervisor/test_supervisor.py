"""The supervisor: real processes, ended in every way there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Order, Request, Result
from agent.power.caps import set_package_caps
from agent.processes import control_groups, tree
from tests.probes.test_powercap import LIMITS, write_zone
from tests.support.waiting import until

Start = Callable[..., "Running"]


class Running:
    """A supervisor in a process of its own."""

    def __init__(self, attempt: Attempt, before: tuple[str, ...] = ()) -> None:
        self.attempt = attempt
        code = (
            "import sys; from pathlib import Path; from agent.attempts.folder import Attempt\n"
            "from agent.supervisor.supervisor import supervise\n"
            "supervise(Attempt(Path(sys.argv[1])), lambda what, _at_s: print(what, flush=True))"
        )
        self.process = subprocess.Popen(
            [*before, sys.executable, "-P", "-c", code, str(attempt.path)], stdout=subprocess.PIPE, text=True
        )

    def until(self, what: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == what

    def result(self, limit_s: float = 30.0) -> Result:
        self.process.wait(limit_s)
        found = self.attempt.result()
        assert found is not None
        return found

    def ask(self, number: int, want: str, **more: object) -> None:
        self.attempt.write_request(Request(number, want, **more))  # type: ignore[arg-type]
        self.process.send_signal(signal.SIGUSR1)
        self.until("changed")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def begin(
        *command: str,
        before: tuple[str, ...] = (),
        placed: Callable[[Attempt], object] = lambda attempt: None,
        **more: object,
    ) -> Running:
        attempt = Attempt(tmp_path / f"attempt-{len(running) + 1}")
        order = Order(
            7, len(running) + 1, str(attempt.path), command, dict(os.environ), str(tmp_path),
            str(tmp_path / "out"), str(tmp_path / "err"), **more,  # type: ignore[arg-type]
        )  # fmt: skip
        attempt.place(order)
        placed(attempt)
        running.append(Running(attempt, before))
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()
        assert tree.kill_marked(str(one.attempt.path))


def test_exit_code_output_and_usage(start: Start, tmp_path: Path) -> None:
    """A loop that measures its own processor time must agree with what the supervisor says of it."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('out'); import sys; sys.exit(5)"
    result = start(sys.executable, "-c", burn).result()
    assert (result.how, result.code, result.signal) == ("exited", 5, None)
    assert (tmp_path / "out").read_text() == "out\n"
    assert 0.28 <= result.usage.user_s + result.usage.system_s < 1.0
    assert result.usage.running_s >= 0.3


@pytest.mark.parametrize("there", [True, False])
def test_the_layer_on_a_node_of_a_cluster(start: Start, tmp_path: Path, there: bool) -> None:
    """The supervisor sets its variables and makes its folder; without the library the job runs without it."""
    library, folder = tmp_path / "layer.so", tmp_path / "sockets"
    if there:
        library.touch()
    told = 'echo "$OPENCL_LAYERS $TENBIN_OPENCL_DEVICES $TENBIN_DEVICE"; ls "$TENBIN_OPENCL_FOLDER"'
    more = {"library": str(library), "layer": str(folder), "device": "pocl-1"}
    result = start("sh", "-c", f"TENBIN_DEVICE=${{TENBIN_DEVICE:-1}}; {told}", **more).result()
    assert result.code == (0 if there else 2)
    assert (tmp_path / "out").read_text() == (f"{library} pocl-1 0\n" if there else "  1\n")
    assert not folder.exists()


def test_signal_of_its_own(start: Start) -> None:
    result = start("sh", "-c", "kill -SEGV $$").result()
    assert (result.how, result.code, result.signal) == ("signalled", None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"command": ("no-such-program",)}, "no-such-program: No such file"),
        ({"command": ("/etc/passwd",)}, "/etc/passwd: Permission denied"),
        ({"folder": "/no/such/folder"}, "/no/such/folder: No such file"),
        ({"stdout": "/no/such/file"}, "/no/such/file: No such file"),
        ({"cores": (4095,)}, "cores 4095: Invalid argument"),
    ],
)
def test_what_cannot_be_started_says_why(tmp_path: Path, change: dict[str, object], trouble: str) -> None:
    values: dict[str, object] = {
        "job_id": 1, "attempt": 1, "mark": str(tmp_path), "command": ("true",), "folder": str(tmp_path),
        "environment": dict(os.environ), "stdout": str(tmp_path / "o"), "stderr": str(tmp_path / "e"),
    }  # fmt: skip
    attempt = Attempt(tmp_path / "a")
    attempt.place(Order(**{**values, **change}))  # type: ignore[arg-type]
    result = Running(attempt).result()
    assert result.how == "not-started" and trouble in result.trouble


def test_time_limit_counts_running_time_only(start: Start) -> None:
    began = time.monotonic()
    one = start("sleep", "60", time_limit_s=3600.0)
    one.until("started")
    one.ask(1, "pause")
    limit_s = time.monotonic() - began + 0.3
    one.ask(2, "pause", time_limit_s=limit_s)
    time.sleep(1.0)
    assert one.process.poll() is None
    one.ask(3, "run", time_limit_s=limit_s)
    result = one.result()
    assert result.how == "time-limit" and limit_s <= result.usage.running_s < result.usage.wall_s - 0.9


def test_the_limit_is_that_of_the_last_request(start: Start) -> None:
    """Also of a pause, and one that is none; what asks for nothing else pins nothing."""
    own = start("sleep", "60", time_limit_s=3600.0)
    own.until("started")
    for number, want, limit_s in ((1, "limit", 0.0), (2, "pause", 3600.0), (3, "run", 7200.0)):
        own.ask(number, want, time_limit_s=limit_s)
        assert own.process.poll() is None
    own.attempt.write_request(Request(4, "limit", time_limit_s=0.1))
    own.process.send_signal(signal.SIGUSR1)
    assert own.result().how == "time-limit"


def test_paused_means_the_whole_tree(start: Start, tmp_path: Path) -> None:
    beat = "while :; do echo x >> beat; sleep 0.01; done"
    one = start("sh", "-c", f"({beat}) & setsid sh -c '{beat.replace('beat', 'beat2')}' & wait")
    one.until("started")
    beats = tmp_path / "beat", tmp_path / "beat2"
    until(lambda: all(beat.exists() and beat.stat().st_size for beat in beats))
    one.ask(1, "pause")
    sizes = [beat.stat().st_size for beat in beats]
    time.sleep(0.4)
    assert [beat.stat().st_size for beat in beats] == sizes
    one.ask(2, "run")
    until(lambda: all(beat.stat().st_size > size for beat, size in zip(beats, sizes, strict=True)))
    one.ask(3, "end")
    assert one.result().how == "cancelled"


def without_groups() -> tuple[str, ...]:
    """Return the words before a command that hide all writable control groups from it."""
    if control_groups.place("x") is None:
        return ()
    hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh")
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("hiding control groups needs root")
    return hide


def test_memory_limit_by_looking_is_of_the_whole_tree(start: Start) -> None:
    hog = f"{sys.executable} -c 'x = bytearray(150_000_000); import time; time.sleep(60)'"
    hidden = without_groups()
    result = start("sh", "-c", f"{hog} & {hog} & wait", memory_limit_mb=250.0, before=hidden).result()
    assert result.how == "memory-limit" and result.usage.peak_memory_mb > 250
    assert result.usage.memory_limit_by == "looking"


@pytest.fixture
def group() -> control_groups.Group:
    """Find the control group in which the kernel holds memory limits here."""
    found = control_groups.place("x")
    if found is None:
        pytest.skip("no control group with a memory limit may be made here")
    return found


def test_memory_limit_by_the_kernel_is_of_the_whole_tree(start: Start, group: control_groups.Group) -> None:
    """Two that are too much together: one of them is killed, the other asked to end; no group is left."""
    hog = f"{sys.executable} -c 'x = bytearray(150_000_000); import time; time.sleep(60)'"
    one = start("sh", "-c", f"{hog} & {hog} & wait", memory_limit_mb=250.0)
    one.until("started")
    state = one.attempt.state()
    assert state is not None and state.memory_limit_by == group.version
    result = one.result()
    assert result.how == "memory-limit" and 240 < result.usage.peak_memory_mb <= 250
    assert result.usage.memory_limit_by == group.version
    made = one.attempt.group()
    assert made is not None and made.parent == group.path.parent and not made.exists()


def test_who_grows_faster_than_anybody_looks_is_stopped_by_the_kernel(
    start: Start, group: control_groups.Group
) -> None:
    result = start(sys.executable, "-c", "bytearray(500_000_000)", memory_limit_mb=100.0).result()
    assert (result.how, result.signal) == ("memory-limit", signal.SIGKILL)
    assert result.usage.peak_memory_mb <= 100


def test_shared_memory_counts_once_for_the_kernel(start: Start, group: control_groups.Group) -> None:
    shared = "import os, time; x = bytearray(60_000_000); [os.fork() for _ in range(3)]; time.sleep(0.5)"
    result = start(sys.executable, "-c", shared, memory_limit_mb=200.0).result()
    assert (result.how, result.code) == ("exited", 0)
    assert result.usage.peak_memory_mb > 300  # eight processes, each with all of it


def test_what_is_left_in_a_group_is_killed_and_the_group_removed(
    start: Start, tmp_path: Path, group: control_groups.Group
) -> None:
    """Also what has thrown the mark out of its environment, and what has made a group of its own."""
    inner = "g=$(cat attempt-1/group)/inner; mkdir $g; echo $$ > $g/cgroup.procs"
    one = start(
        "sh", "-c", f"{inner}; env -i setsid sleep 300 & echo $! > pid; sleep 300", memory_limit_mb=100.0
    )
    one.until("started")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    one.process.kill()
    one.process.wait()
    made = one.attempt.group()
    assert made is not None and made.exists()
    assert control_groups.remove(made) and not made.exists()
    with suppress(FileNotFoundError):  # until it is reaped it has its number, and nothing else
        assert (Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline").read_bytes() == b""


def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(start: Start, tmp_path: Path) -> None:
    one = start("sh", "-c", "trap '' TERM; : > ready; while :; do sleep 0.05; done", grace_s=0.3)
    one.until("started")
    until((tmp_path / "ready").exists)
    began = time.monotonic()
    one.ask(1, "end")
    result = one.result()
    assert result.how == "cancelled" and result.signal == signal.SIGKILL
    assert time.monotonic() - began >= 0.3


def test_what_forks_away_does_not_outlive_the_job(start: Start, tmp_path: Path) -> None:
    away = "setsid sh -c 'echo $$ > pid; exec sleep 300' & while [ ! -s pid ]; do sleep 0.01; done"
    assert start("sh", "-c", away).result().how == "exited"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_attempt_runs_once_however_many_supervisors_come(start: Start, tmp_path: Path) -> None:
    one = start("sh", "-c", "echo ran >> count; sleep 0.3")
    others = [Running(one.attempt) for _ in range(3)]
    for other in (one, *others):
        other.process.wait(20)
    late = Running(one.attempt)
    late.process.wait(20)
    assert (tmp_path / "count").read_text() == "ran\n"


def test_a_revoked_attempt_never_runs(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "a")
    out = str(tmp_path / "o")
    attempt.place(Order(1, 1, out, ("touch", "ran"), dict(os.environ), str(tmp_path), out, out))
    assert attempt.claim()
    Running(attempt).process.wait(20)
    assert not (tmp_path / "ran").exists() and attempt.result() is None and not attempt.lives()


@pytest.mark.parametrize("before", ["", "env -i"])
def test_a_killed_supervisor_takes_the_job_with_it(start: Start, tmp_path: Path, before: str) -> None:
    """Also a daemon in a session and with an environment of its own."""
    away = f"{before} setsid sh -c 'echo $$ > away; exec sleep 300'"
    one = start("sh", "-c", f"{away} & echo $$ > pid; sleep 300")
    one.until("started")
    numbers = tmp_path / "pid", tmp_path / "away"
    until(lambda: all(number.exists() and number.read_text() for number in numbers))
    assert one.attempt.lives()
    one.process.kill()
    one.process.wait()
    assert not one.attempt.lives() and one.attempt.result() is None
    assert tree.kill_marked(str(one.attempt.path))
    for number in numbers:
        with suppress(OSError):  # a zombie still has its number
            about = Path(f"/proc/{number.read_text().strip()}/stat").read_text()
            assert about.rpartition(")")[2].split()[0] == "Z"
    assert tree.marked(str(one.attempt.path)) == []


def test_a_terminated_supervisor_ends_the_job_in_order(start: Start, tmp_path: Path) -> None:
    save = "trap 'echo saved > saved; exit 0' TERM; : > ready; while :; do sleep 0.02; done"
    one = start("sh", "-c", save)
    until((tmp_path / "ready").exists)
    one.process.terminate()
    assert one.result().how == "interrupted"
    assert (tmp_path / "saved").exists()


def test_a_checkpoint_is_asked_for_by_signal_and_told_by_exit_code(start: Start, tmp_path: Path) -> None:
    job = "trap 'exit 85' URG; : > ready; while :; do sleep 0.02; done"
    one = start("sh", "-c", job, checkpoint_signal=signal.SIGURG)
    one.until("started")
    until((tmp_path / "ready").exists)
    one.ask(1, "checkpoint")
    assert one.result().how == "checkpointed"


def test_a_job_that_does_not_listen_yet_is_asked_when_it_does(start: Start) -> None:
    job = "sleep 0.6; trap 'exit 85' URG; while :; do sleep 0.02; done"
    one = start("sh", "-c", job, checkpoint_signal=signal.SIGURG)
    one.until("started")
    one.ask(1, "checkpoint")
    assert one.result().how == "checkpointed"


def test_a_checkpoint_that_overtakes_the_request_to_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paused job goes on under its cap, on the cores that it has now."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sysfs, core = tmp_path / "sysfs", max(os.sched_getaffinity(0))
    limit = write_zone(sysfs, "intel-rapl:0", "package-0", **LIMITS) / "constraint_0_power_limit_uw"
    shows = f"cat {limit}; grep Cpus_allowed_list /proc/self/status"
    job = f"trap '{shows}; exit 85' URG; while :; do sleep 0.02; done"
    attempt = start(
        *("sh", "-c", job),
        placed=lambda attempt: set_package_caps(attempt, sysfs, ["package-0"], 40.0),
        checkpoint_signal=signal.SIGURG,
        sysfs=str(sysfs),
    )
    attempt.until("started")
    attempt.ask(1, "pause")
    assert limit.read_text() == f"{LIMITS['constraint_0_power_limit_uw']}\n"
    attempt.ask(2, "checkpoint", cores=(core,))
    assert attempt.result().how == "checkpointed"
    assert (tmp_path / "out").read_text().split() == ["40000000", "Cpus_allowed_list:", str(core)]
    assert limit.read_text().strip() == LIMITS["constraint_0_power_limit_uw"]


def test_who_is_cancelled_is_cancelled_whatever_its_exit_code(start: Start, tmp_path: Path) -> None:
    leave = "trap 'exit 85' TERM; : > ready; while :; do sleep 0.02; done"
    one = start("sh", "-c", leave, checkpoint_signal=signal.SIGURG)
    one.until("started")
    until((tmp_path / "ready").exists)
    one.ask(1, "end")
    result = one.result()
    assert (result.how, result.code) == ("cancelled", 85)


def test_a_request_from_before_the_start_is_obeyed(start: Start, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "early")
    out = str(tmp_path / "o")
    attempt.place(Order(1, 1, out, ("sleep", "60"), dict(os.environ), str(tmp_path), out, out))
    attempt.write_request(Request(1, "end"))
    assert Running(attempt).result().how == "cancelled"


def test_the_result_survives_a_full_disk(tmp_path: Path) -> None:
    """A file system of 1 MB that the job itself fills to the last byte."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    try:
        attempt = Attempt(small / "a")
        out = str(small / "out")
        command = ("sh", "-c", "cat /dev/zero > fill; exit 3")
        attempt.place(Order(1, 1, out, command, dict(os.environ), str(small), out, out))
        result = Running(attempt).result()
        assert (result.how, result.code) == ("exited", 3)
        assert (small / "fill").stat().st_size > 900_000
        full = Attempt(small / "b")
        with pytest.raises(OSError, match="No space"):
            full.place(Order(1, 2, out, command, dict(os.environ), str(small), out, out))
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_start_is_told_before_the_end(start: Start) -> None:
    """Once, of a job that ends before anybody has to know of it too."""
    short, long = start("true"), start("sleep", "60")
    short.until("started")
    long.until("started")
    assert long.attempt.state() is not None
    long.ask(1, "end")
    for one in (short, long):
        one.until("ended")
    assert short.result().code == 0
