"""The files of an attempt are other people's bytes: whatever lies there stops nobody but its own job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.attempts import begin, checked
from agent.attempts.checked import Broken
from agent.attempts.folder import Attempt
from agent.attempts.records import How, Request, Result, RunState, Usage
from agent.multi_node.lease import beat_file
from agent.multi_node.ranks import RANKS, NodeReport, RankFiles
from agent.power import caps
from agent.processes import samples
from agent.supervisor.allocation_reuse import _was_short
from scheduler.engines.slurm.batch_jobs import BY, passed_on_to
from scheduler.engines.slurm.poller import Sign
from scheduler.engines.slurm.poller import _look as look_for_beat
from tests.support.amounts import sweep
from tests.support.coordinator import Up

GOOD = asdict(Result("exited", 1.7e9, 0, usage=Usage(1.0, 1.0, 0.5, 0.5, 10.0)))
HOWS = How.__args__  # type: ignore[attr-defined]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def changed(base: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the record with other values in some of its fields, or without them."""
    fields = st.dictionaries(st.sampled_from(sorted(base)), json_values, max_size=3)
    gone = st.sets(st.sampled_from(sorted(base)), max_size=2)
    return st.builds(lambda new, less: {k: v for k, v in (base | new).items() if k not in less}, fields, gone)


records = st.one_of(
    changed(GOOD),
    changed(GOOD).flatmap(lambda one: changed(GOOD["usage"]).map(lambda usage: {**one, "usage": usage})),
    changed(asdict(RunState(2, 3, 1.7e9))),
    changed(asdict(Request(1, "end"))),
    changed(asdict(caps.CapRequest(100.0, 1, 100.0))),
    changed(asdict(caps.CapRequest(100.0, 1, packages=("0",)))),
    changed(asdict(NodeReport(begun=True))),
)
contents = st.one_of(
    st.binary(max_size=300),
    json_values.map(lambda value: json.dumps(value).encode()),
    records.map(lambda value: json.dumps(value).encode()),
    st.lists(st.text(max_size=9), max_size=9).map(lambda row: ",".join(row).encode("utf-8", "replace")),
)


def read_all(attempt: Attempt) -> None:
    """Read each of its files in every way that a coordinator, a supervisor or a keeper does."""
    state, request, result = attempt.state(), attempt.request(), attempt.result()
    assert state is None or (state.supervisor_pid >= 0 and 0 <= state.started_s < 1e12)
    assert request is None or (request.want in ("run", "pause", "checkpoint", "end") and request.number >= 0)
    for found in (result, attempt.unpublished_result()):
        if found is not None:
            assert found.how in HOWS and 0 <= found.ended_s < 1e12
            assert found.how != "exited" or found.code is not None
            assert found.how != "signalled" or found.signal is not None
            json.dumps(asdict(found), allow_nan=False).encode()
            found.trouble.encode()
    assert result is None or not attempt.broken_result()
    attempt.last_log_line().encode()
    group = attempt.group()
    assert group is None or str(group).startswith("/sys/fs/cgroup/")
    assert all(value is None or value >= 0 for row in samples.read(attempt.samples) for value in row)
    for phase in checked.read_phases(attempt.path):
        json.dumps(phase, allow_nan=False).encode()
        phase.program.encode()
    for cap in (caps.requested_cap(attempt), caps.cap_in_force(attempt)):
        json.dumps(cap if isinstance(cap, float | None) else asdict(cap), allow_nan=False)
    RankFiles(attempt).read_report("node")
    for seen in (attempt.fenced, RankFiles(attempt).command, attempt.lives):
        with suppress(OSError):
            seen()
    look_for_beat(Sign(beat_file(attempt.path, "node")), 1.0)
    assert passed_on_to(attempt, "tenbin:x:") == ""
    assert _was_short(str(attempt.path)) in (True, False)


FILES = (
    *("result.json", ".result.json", "state.json", "request.json", "group", "samples.csv", "fence"),
    *("alive", "cap.json", "held.json", begin.LOG, checked.PHASES, BY, "beat-node", f"{RANKS}/wish"),
    f"{RANKS}/node",
)


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    folder = tmp_path_factory.mktemp("spoiled")
    (folder / RANKS).mkdir()
    return Attempt(folder)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Fail if a call waits for ever, as an open of a pipe without a writer does."""

    def give_up(_number: int, _frame: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@given(content=contents)
@example(content=b"[" * 100_000)
@example(content=b'{"how": "exited", "ended_s": NaN, "code": 0, "usage": {}}')
@example(content=json.dumps({**GOOD, "code": None}).encode())
@example(content=json.dumps({**GOOD, "code": 10**400}).encode())
@example(content=json.dumps({**GOOD, "trouble": "\ud800"}).encode())
@example(content=b'{"phase": "ready", "time_s": 1%s, "bytes": 1, "at_s": 1}' % (b"0" * 400))
def test_no_bytes_are_too_odd(attempt: Attempt, content: bytes) -> None:
    for name in FILES:
        (attempt.path / name).write_bytes(content)
    with nothing_waits():
        read_all(attempt)


def test_what_is_as_it_should_be_is_read(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(GOOD))
    attempt.write_request(Request(3, "run", (0, 7)))
    attempt.write_state(RunState(2, 3, 1.5, True, 4, "looking"))
    assert attempt.result() == Result("exited", 1.7e9, 0, usage=Usage(1.0, 1.0, 0.5, 0.5, 10.0))
    assert attempt.request() == Request(3, "run", (0, 7))
    assert attempt.state() == RunState(2, 3, 1.5, True, 4, "looking") and not attempt.broken_result()


def lay(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
        (path / "x").touch()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path.name)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_text("{}")
        path.chmod(0)


KINDS = ("folder", "pipe", "link", "huge", "unreadable")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    attempt = Attempt(tmp_path)
    (tmp_path / RANKS).mkdir()
    for name in FILES:
        lay(tmp_path / name, kind)
    with nothing_waits():
        read_all(attempt)
        for write in (
            lambda: attempt.write_request(Request(1, "end")),
            lambda: attempt.write_state(RunState(2, 3, 1.0)),
            attempt.fence_off,
            lambda: caps.request_cap(attempt, caps.CapRequest(1.0, 1, 1.0)),
            lambda: caps.set_package_caps(attempt, tmp_path, (), None),
            lambda: samples._append(attempt.samples, "x\n"),
            lambda: RankFiles(attempt).report("node", NodeReport()),
        ):
            with suppress(OSError, Broken):
                write()


# -- real jobs ----------------------------------------------------------------------------------------

SPOILS = {
    "numbers": """echo '{"how": "exited", "ended_s": NaN, "code": 1e999, "usage": {}}' >{0}""",
    "bytes": "head -c 3000 /dev/urandom >{0}",
    "folder": "mkdir {0}",
    "pipe": "mkfifo {0}",
}


def spoil(up: Up, how: str, *files: str, then: str, requeue: bool = False) -> Any:
    """Submit a job that spoils ``files`` of its attempt, and then does something else."""
    steps = [f"rm -rf {file}; {SPOILS[how].replace('{0}', file)}" for file in files]
    script = f"cd $TENBIN_JOB_FOLDER/attempt-$TENBIN_GENERATION; {'; '.join(steps)}; {then}"
    return up.client.submit(["sh", "-c", script], requeue=requeue)


def until_spoiled(up: Up, job: Any) -> None:
    up.until((up.home / "jobs" / str(job.id) / "spoiled").exists)


@pytest.mark.parametrize("how", sweep(SPOILS, {"bytes", "pipe"}))
def test_a_job_that_spoils_its_files_stops_nobody(up: Up, how: str) -> None:
    """The job ends as usual while its supervisor lives; without the supervisor it fails with a reason."""
    up.start("--cores", "2")
    goes_on = spoil(
        up, how, "result.json", "state.json", "samples.csv", then="touch ../spoiled; sleep 1; exit 3"
    )
    until_spoiled(up, goes_on)
    assert up.client.submit(["true"]).result(20) == 0
    assert goes_on.result(30) == 3
    lost = spoil(
        up, how, "result.json", "state.json", "request.json", "group", "supervisor.log",
        then="touch ../spoiled; kill -9 $PPID; sleep 60",
    )  # fmt: skip
    until_spoiled(up, lost)
    assert [up.client.submit(["sh", "-c", "exit 4"]).result(20) for _ in range(4)] == [4, 4, 4, 4]
    info = lost.wait(30)
    assert info["stage"] == "failed" and "result.json cannot be read" in info["trouble"], info["trouble"]
    up.run("info", str(lost.id))
    up.kill()
    up.start("--cores", "2")
    assert up.client.submit(["true"]).result(20) == 0


def test_a_job_is_not_done_because_it_says_so(up: Up) -> None:
    """A whole result that the job itself has written is not believed while its supervisor lives."""
    up.start("--cores", "1")
    said = json.dumps(GOOD).replace('"', '\\"')
    script = (
        f'echo "{said}" >$TENBIN_JOB_FOLDER/attempt-1/result.json; touch $TENBIN_JOB_FOLDER/spoiled; sleep 60'
    )
    job = up.client.submit(["sh", "-c", script])
    until_spoiled(up, job)
    up.kill()
    up.start("--cores", "1")
    time.sleep(6.0)  # a sweep
    assert job.info()["stage"] == "running"
    job.cancel()
    assert job.wait(20)["stage"] == "cancelled"


def test_one_that_is_lost_every_time_is_given_up(up: Up) -> None:
    up.start("--cores", "1")
    job = spoil(up, "numbers", "result.json", then="kill -9 $PPID; sleep 60", requeue=True)
    info = job.wait(60)
    assert info["stage"] == "failed" and info["attempt"] == 6
    assert "result.json cannot be read" in info["trouble"]


def test_a_group_that_only_looks_like_one_is_left_alone(tmp_path: Path) -> None:
    """Processes that it names would be killed."""
    attempt = Attempt(tmp_path)
    odd: list[Callable[[], object]] = []
    for text in (f"{tmp_path}/tenbin-1-1-5", "/sys/fs/cgroup/../../tmp/tenbin-1-1-5", "\0", "", "x" * 9999):
        (tmp_path / "group").write_text(text)
        odd.append(attempt.group())  # type: ignore[arg-type]
    assert odd == [None] * 5
