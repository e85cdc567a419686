"""The coordinator as its users see it: real processes, a real journal, real crashes."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Request
from agent.processes import control_groups
from profiles.errors import BadInput, Busy
from profiles.files.store import Store
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.engine import LocalEngine
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool
from tenbin.errors import TenbinError
from tests.support.amounts import sweep
from tests.support.coordinator import Up, fill, small_disk
from tests.support.labs.components import require
from tests.support.records import make_profile


def test_jobs_run_and_their_codes_are_handed_on(shared: Up) -> None:
    assert shared.client.submit(["sh", "-c", "exit 3"]).result(20) == 3
    assert (
        shared.client.submit(
            ["sh", "-c", "printf '%s\\n' \"$0\" > out", "a b\n'c' -d é"], folder=str(shared.home)
        ).result(20)
        == 0
    )
    assert (shared.home / "out").read_text() == "a b\n'c' -d é\n"
    with pytest.raises(TenbinError, match="there is no program no-such-program; correct its name"):
        shared.client.submit(["no-such-program"])
    before = shared.client.submit(["true"])
    missing = shared.client.submit(["no-such-program"], after=[before.id]).wait(20)
    assert missing["stage"] == "failed" and "no-such-program: No such file" in missing["trouble"]


def test_cores_are_not_shared(shared: Up) -> None:
    """Each job sees the cores that it may use; two at once never see the same."""
    show = (
        "import os, time; print(sorted(os.sched_getaffinity(0)), time.time()); "
        "time.sleep(0.5); print(time.time())"
    )
    jobs = [shared.client.submit(["python3", "-c", show]) for _ in range(4)]
    spans = []
    for job in jobs:
        found = job.wait(30)
        cores, begin, end = (
            Path(found["stdout"]).read_text().replace("]", "|").replace("\n", "|").split("|")[:3]
        )
        assert json.loads(cores + "]") == found["cpus"] and len(found["cpus"]) == 1
        spans.append((found["cpus"][0], float(begin), float(end)))
    for i, (core, begin, end) in enumerate(spans):
        for other, b, e in spans[i + 1 :]:
            assert core != other or end <= b or e <= begin


def test_a_request_for_a_checkpoint_names_the_cores(tmp_path: Path) -> None:
    """It may overtake the request by which a paused job goes on, on cores that need not be those before."""
    journal, core = Journal(tmp_path / "j"), min(os.sched_getaffinity(0))
    engine = LocalEngine(tmp_path / "j", tmp_path / "report.sock", Cluster((Pool("core", 1),)), [[core]])
    try:
        coordinator = Coordinator(journal, engine, "fcfs")
        spec = JobSpec(command=("sleep", "600"), folder="/", checkpoint_signal=int(signal.SIGURG))
        (job,) = coordinator.submit([spec], dict(os.environ))
        attempt = Attempt(tmp_path / "j" / "jobs" / "1" / "attempt-1")
        job.request += 1
        engine.ask(job, "checkpoint")
        assert attempt.request() == Request(1, "checkpoint", (core,), time_limit_s=0.0)
        coordinator.cancel([job.id])
        deadline = time.monotonic() + 60
        while not coordinator.job_table.settled(job.id):
            assert time.monotonic() < deadline
            time.sleep(0.01)
            coordinator.turn()
    finally:
        engine.close()
        journal.close()


def test_nobody_is_let_go_where_no_jobs_are_taken_over(tmp_path: Path) -> None:
    """An earlier coordinator has taken a job over; this one cannot leave it to Slurm, so it keeps it."""
    journal = Journal(tmp_path / "j")
    engine = LocalEngine(tmp_path / "j", tmp_path / "report.sock", Cluster((Pool("core", 1),)), [[0]])
    try:
        coordinator = Coordinator(journal, engine, "fcfs")
        origin = {"id": "12", "user": "somebody", "submitted_s": 1.0}
        spec = JobSpec.model_validate({"command": ("true",), "slurm": origin})
        (job,) = coordinator.job_table.add([spec], {}, time.time(), blocked=["held in Slurm"])
        assert coordinator.let_external_jobs_go(True) == 0
        assert job.stage is Stage.HELD
    finally:
        engine.close()
        journal.close()


def test_las_pauses_a_job_of_two_tasks_on_both_nodes(up: Up, tmp_path: Path) -> None:
    """Adopted after the coordinator was killed, it still makes room on both nodes, and goes on afterwards."""
    require(len(os.sched_getaffinity(0)) >= 2, "two cores")
    options = ("--cores", "2", "--nodes", "2", "--policy", "las,spare_s=0.2")
    up.start(*options)
    wide = up.client.submit(["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"], tasks=2)
    up.until(lambda: wide.info()["stage"] == "running")
    assert wide.info()["cores"] == 2
    up.kill()
    up.start(*options)
    assert up.client.submit(["true"]).wait(60)["stage"] == "done"
    (tmp_path / "go").touch()
    found = wide.wait(60)
    assert (found["stage"], found["preemptions"], found["attempt"]) == ("done", 1, 1)


@pytest.mark.parametrize("number", sweep((signal.SIGKILL, signal.SIGTERM), {signal.SIGKILL}))
def test_running_jobs_survive_the_coordinator(up: Up, number: int, tmp_path: Path) -> None:
    """Killed with a job that ends meanwhile, one that goes on, one paused and two that wait."""
    up.start("--cores", "2")
    until = f"until [ -e {tmp_path}/%s ]; do sleep 0.05; done; echo %s >> {tmp_path}/log"
    ends = up.client.submit(["sh", "-c", until % ("killed", "ends") + "; exit 7"])
    stays = up.client.submit(["sh", "-c", until % ("resumed", "stays")])
    waits = up.client.submit(["sh", "-c", f"echo waits >> {tmp_path}/log"], cores=2)
    follows = up.client.submit(["sh", "-c", f"echo follows >> {tmp_path}/log"], after=[waits.id])
    up.until(lambda: stays.info()["stage"] == "running" and ends.info()["stage"] == "running")
    stays.suspend()
    up.kill(number)
    (tmp_path / "killed").touch()
    up.until((tmp_path / "log").exists)
    up.start("--cores", "2")
    assert ends.result(20) == 7
    assert stays.info()["held_by_user"]
    stays.resume()
    (tmp_path / "resumed").touch()
    for job in (stays, waits, follows):
        assert job.wait(20)["stage"] == "done"
    assert all(job.info()["attempt"] == 1 for job in (ends, stays, waits, follows))
    assert sorted((tmp_path / "log").read_text().split()) == ["ends", "follows", "stays", "waits"]


def test_a_killed_supervisor_costs_one_attempt(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    log = tmp_path / "log"
    script = f"echo begin >> {log}; [ $(grep -c begin {log}) = 2 ] || sleep 60; echo end >> {log}"
    job = up.client.submit(["sh", "-c", script])
    once = up.client.submit(["sleep", "60"], requeue=False)
    for current in (job, once):
        up.until(lambda current=current: current.info()["stage"] == "running")  # type: ignore[misc]
        state = up.home / "jobs" / str(current.id) / "attempt-1" / "state.json"
        up.until(state.exists)
        up.until(log.exists)
        os.kill(json.loads(state.read_text())["supervisor_pid"], signal.SIGKILL)
        current.wait(20)
    assert (job.info()["stage"], job.info()["attempt"], job.info()["failures"]) == ("done", 2, 1)
    assert log.read_text().split() == ["begin", "begin", "end"]
    assert once.info()["stage"] == "failed" and "supervisor was killed" in once.info()["trouble"]


def test_a_killed_supervisor_leaves_no_control_group(up: Up) -> None:
    if control_groups.place("x") is None:
        pytest.skip("no control group with a memory limit may be made here")
    up.start("--cores", "1")
    job = up.client.submit(["sleep", "60"], memory_mb=100, requeue=False)
    up.until(lambda: job.info()["memory_limit_by"])
    attempt = Attempt(up.home / "jobs" / "1" / "attempt-1")
    group, state = attempt.group(), attempt.state()
    assert group is not None and group.exists() and state is not None
    up.kill()
    os.kill(state.supervisor_pid, signal.SIGKILL)
    up.start("--cores", "1")
    assert job.wait(20)["stage"] == "failed" and not group.exists()


def test_a_supervisor_that_fails_says_why(up: Up) -> None:
    """Its order cannot be read any more: tried again, as often as one that was killed, and then said."""
    up.start("--cores", "1")
    assert up.process is not None
    blocker = up.client.submit(["sleep", "60"])
    up.until(lambda: blocker.info()["stage"] == "running")
    spawner = psutil.Process(up.process.pid).children()[0]
    spawner.suspend()
    blocker.cancel()
    home = up.home / "jobs" / "2" / "attempt-1"
    threading.Thread(target=lambda: up.client.submit(["true"], requeue=False), daemon=True).start()
    up.until((home / "order.json").exists)
    (home / "order.json").write_text("{}")
    spawner.resume()
    found = up.client.job(2).wait(30)
    assert found["stage"] == "failed" and found["trouble"] == "its supervisor failed: KeyError: 'command'"


def test_without_another_process_it_is_tried_again(up: Up) -> None:
    """The spawner may not fork (a control group that counts processes): the job starts when it may."""
    limit = Path("/sys/fs/cgroup/pids") / f"tenbin-test-{os.getpid()}"
    try:
        limit.mkdir()
    except OSError:
        pytest.skip("no control group that counts processes may be made here")
    try:
        up.start("--cores", "1")
        assert up.process is not None and up.client.submit(["true"]).result(20) == 0
        spawner = psutil.Process(up.process.pid).children()[0]
        (limit / "cgroup.procs").write_text(str(spawner.pid))
        (limit / "pids.max").write_text("1")
        waiting = spawner.children()
        for supervisor in waiting:
            supervisor.kill()
        psutil.wait_procs(waiting, 10)  # one that still dies could be given the job
        job = up.client.submit(["true"])
        time.sleep(1.0)
        assert job.info()["stage"] == "running" and spawner.is_running()
        (limit / "pids.max").write_text("max")
        assert job.result(30) == 0 and job.info()["attempt"] == 1
    finally:
        up.kill()
        up.until(lambda: not (limit / "cgroup.procs").read_text())
        limit.rmdir()


def test_a_killed_spawner_is_started_again(up: Up) -> None:
    up.start("--cores", "1")
    assert up.process is not None
    for _ in range(3):
        assert up.client.submit(["true"]).result(20) == 0
        (spawner,) = psutil.Process(up.process.pid).children()
        waiting = spawner.children()
        spawner.kill()
        assert waiting and not psutil.wait_procs(waiting, 20)[1]


def test_another_takes_the_place_of_a_killed_supervisor_that_waits(up: Up) -> None:
    up.start("--cores", "1")
    assert up.process is not None and up.client.submit(["true"]).result(20) == 0
    (spawner,) = psutil.Process(up.process.pid).children()
    waiting = spawner.children()
    for supervisor in waiting:
        supervisor.kill()
    assert waiting and not psutil.wait_procs(waiting, 20)[1]
    job = up.client.submit(["true"])
    assert job.result(20) == 0 and job.info()["attempt"] == 1 and spawner.is_running()


def test_a_second_coordinator_is_refused(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    up.start("--cores", "1")
    done = up.run("up")
    assert done.returncode == 3 and f"pid {up.process and up.process.pid}" in done.stderr
    done = up.run("up", "--daemon")
    assert done.returncode == 3 and "already runs" in done.stderr
    monkeypatch.setenv("TENBIN_SHARE", "")  # not because its cores are in use
    done = up.run("up", "--cores", str(len(os.sched_getaffinity(0))))
    assert done.returncode == 3 and "already runs" in done.stderr
    with pytest.raises(Busy):
        Journal(up.home)
    assert up.client.submit(["true"]).result(20) == 0


def test_a_daemon_leaves_the_folder_in_which_it_was_started(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it can be unmounted; what was named from there is found all the same."""
    begun = tmp_path / "begun"
    begun.mkdir()
    monkeypatch.chdir(begun)
    up.home = Path("../home")
    assert up.run("up", "--cores", "1", "--daemon").returncode == 0
    up.home = tmp_path / "home"
    pid = up.client.call("GET", "/status")["pid"]
    assert up.client.submit(["true"], folder="/").result(30) == 0
    below = [process.pid for process in psutil.Process(pid).children(recursive=True)]
    assert {Path(f"/proc/{one}/cwd").readlink() for one in (pid, *below)} == {Path("/")}
    assert up.run("down").returncode == 0


def test_malformed_calls_are_refused_and_lose_nothing(shared: Up) -> None:
    last, spec = shared.client.submit(["true"]), {"command": ["true"], "folder": "/"}
    cases: list[tuple[object, str]] = [
        ({"specs": []}, "specs: must have at least 1 item"),
        ({"specs": [{"folder": "/"}]}, "specs.0.command: is missing"),
        ({"specs": [{**spec, "command": []}]}, "specs.0.command"),
        ({"specs": [{**spec, "command": ["a\0b"]}]}, "contains a zero byte"),
        ({"specs": [{**spec, "cores": -1}]}, "specs.0.cores: must be at least"),
        ({"specs": [{**spec, "folder": "here"}]}, "must be an absolute path"),
        ({"specs": [{**spec, "memory_mb": 0.5}]}, "memory_mb: must be at least 1"),
        ({"specs": [{**spec, "surprise": 1}]}, "specs.0.surprise: is no field"),
        ({"specs": [{**spec, "device": "gpu"}]}, "device 'gpu': no devices are scheduled"),
        ({"specs": [spec, {**spec, "cores": 99}]}, "can never run here|needs 99 cores"),
        (
            {"specs": [spec, {**spec, "cores": 99}], "arrays": {0: [1, 2]}},
            "job 2 of 2: the job needs 99 cores",
        ),
        ({"specs": [spec], "arrays": {1: [1]}}, "arrays: of 1 specs the places are 0 to 0"),
        ({"specs": [spec], "arrays": {0: []}}, "arrays.0: must have at least 1 item"),
        ({"specs": [spec], "arrays": {0: [1, 2, 1]}}, "arrays: 0: an index stands there twice"),
        ({"specs": [spec], "arrays": {0: [-1]}}, "arrays.0.0: must be at least"),
        ({"specs": [spec] * 2, "arrays": {0: list(range(100_000))}}, "more than 100,000 jobs"),
    ]
    for body, message in cases:
        with pytest.raises(TenbinError, match=message) as caught:
            shared.client.call("POST", "/jobs", body)
        assert caught.value.exit_code == 2
    assert shared.client.submit(["true"]).id == last.id + 1


def test_who_is_busy_is_not_said_to_be_absent(up: Up) -> None:
    """A coordinator that stands still, one that is about to listen, and none."""
    up.start("--cores", "1")
    assert up.process is not None
    up.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TenbinError, match="is busy: no answer within") as caught:
        up.client.call("GET", "/status", timeout_s=0.3)
    assert caught.value.exit_code == 4
    (up.home / "api.sock").rename(up.home / "aside")
    with pytest.raises(TenbinError, match=rf"is starting or ending \(pid {up.process.pid}\)"):
        up.client.call("GET", "/status")
    (up.home / "aside").rename(up.home / "api.sock")
    up.process.send_signal(signal.SIGCONT)
    assert up.client.call("GET", "/status")["pid"] == up.process.pid
    up.kill()
    with pytest.raises(TenbinError, match="no coordinator answers"):
        up.client.call("GET", "/status")


def test_a_full_disk_takes_no_job_in_and_loses_none(up: Up) -> None:
    with small_disk(up, "2m") as small:
        if not small:
            pytest.skip("mounting needs root")
        up.start("--cores", "1")
        running = up.client.submit(["sleep", "1"])
        waiting = up.client.submit(["true"])
        fill(up.home / "ballast")
        with pytest.raises(TenbinError, match="free some space") as caught:
            up.client.submit_all([{"command": ["true"], "folder": "/", "name": "n" * 200}] * 500)
        assert caught.value.exit_code == 1
        time.sleep(1.5)  # the first job ends, which cannot be journalled
        (up.home / "ballast").unlink()
        assert running.wait(30)["stage"] == "done" and waiting.wait(30)["stage"] == "done"
        assert up.client.submit(["true"]).result(20) == 0


def test_wait_and_logs_as_json(shared: Up) -> None:
    job = shared.client.submit(["sh", "-c", "printf 'a\\377'; echo b >&2; exit 3"])
    done = shared.run("wait", "last", "--json")
    assert done.returncode == 3 and [job["stage"] for job in json.loads(done.stdout)] == ["failed"]
    said = json.loads(shared.run("logs", "last", "--json").stdout)
    assert said == {"id": job.id, "stdout": "a\ufffd", "stderr": "b\n"}
    shared.client.submit(["seq", "9"]).wait(20)
    assert shared.run("logs", "last", "-n", "2", "--follow").stdout == "8\n9\n"
    assert json.loads(shared.run("logs", "last", "--tail", "1", "--json").stdout)["stdout"] == "9\n"


def test_metrics_are_prometheus(shared: Up) -> None:
    shared.client.submit(["true"]).wait(20)
    text = shared.client.call("GET", "/metrics")
    assert 'tenbin_jobs_ended_total{stage="done"} ' in text and 'tenbin_units{pool="core"} 2.0' in text


def test_a_job_that_runs_keeps_its_cores_where_fewer_are_given_to_jobs(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    command = ["sh", "-c", "while [ ! -e go ]; do sleep 0.1; done"]
    job = up.client.submit(command, cores=2, folder=str(tmp_path))
    up.until(lambda: job.info()["stage"] == "running")
    up.kill(signal.SIGTERM)
    up.start("--cores", "1")
    other = up.client.submit(["true"])
    assert [one.info()["stage"] for one in (job, other)] == ["running", "waiting"]
    assert "0 of 2" in str(other.info()["why"])
    said = "core: 0 of 1 free; jobs that began when there was more keep 1 core besides until they end"
    assert said in up.run("nodes").stdout
    (tmp_path / "go").touch()
    assert job.wait(20)["stage"] == other.wait(20)["stage"] == "done"
    assert "the job needs 2 cores" in up.run("submit", "-c", "2", "--", "true").stderr


def test_a_division_in_which_a_running_job_has_no_place_is_refused(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    command = ["sh", "-c", "while [ ! -e go ]; do sleep 0.1; done"]
    job = up.client.submit(command, cores=2, folder=str(tmp_path))
    up.until(lambda: job.info()["stage"] == "running")
    up.kill(signal.SIGTERM)
    done = up.run("up", "--cores", "2", "--nodes", "2", "--policy", "las-mq")
    assert done.returncode == 2 and "divided otherwise (" in done.stderr
    up.start("--cores", "2", "--policy", "las-mq")  # one node, of which the job has both cores
    assert "node0: 0 of 2 cores" in up.run("nodes").stdout
    (tmp_path / "go").touch()
    assert job.wait(20)["stage"] == "done"


def test_a_job_that_keeps_up_from_starting_can_be_ended(up: Up) -> None:
    up.start("--cores", "2")
    job = up.client.submit(["sleep", "600"], cores=2, requeue=False)
    up.until(job.running)
    up.kill(signal.SIGTERM)
    options = ("--cores", "2", "--nodes", "2", "--policy", "las-mq")
    said = re.search(r"or end it: kill (\d+)$", up.run("up", *options).stderr.strip())
    assert said is not None
    os.kill(int(said[1]), signal.SIGTERM)
    up.until((up.home / f"jobs/{job.id}/attempt-1/result.json").exists)
    up.start(*options)
    assert job.wait(20)["stage"] == "failed"


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    spec = JobSpec(command=("a", "b c"), folder="/x", after=(1, 2), time_s=3.5)
    entry = Entry(
        1, spec, journal.keep_environment({"A": "1"}), 5.0, 7, 3, 2, True, (0, 5), (1,), 7, "pause", True,
        0.1, 0.2, None, None, None, "x", {"wall_s": 1.5}, stage=Stage.RUNNING, start_s=6.0, since_s=6.5,
        placement=Placement("node", 3, ((0, 1), (4, 2)), 40.0, "r1", "near"), served_s=0.5, done=0.25,
        preemptions=1, migrations=2, failures=3,
    )  # fmt: skip
    journal.commit([], [(1.0, 1, "start", "d")], [entry], [(9.0, ("tag", 1))])
    journal.close()
    again = Journal(tmp_path / "j")
    assert again.open_jobs() == [entry] and again.entry(1) == entry
    assert again.history(1) == [(1.0, "start", "d")] and again.timers() == [(9.0, ("tag", 1))]
    assert again.environment(entry.environment) == {"A": "1"} and again.next_id() == 2
    entry.stage = Stage.DONE
    again.commit([entry])
    assert again.open_jobs() == [] and again.entries() == [entry] and again.count_ended()["done"] == 1
    again.close()


def test_a_damaged_journal_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j" / "journal.sqlite"
    Journal(tmp_path / "j").close()
    path.write_bytes(b"\0" * 4096 + path.read_bytes()[4096:])
    content = path.read_bytes()
    with pytest.raises(BadInput, match=r"journal\.sqlite"):
        Journal(tmp_path / "j")
    assert path.read_bytes() == content


def test_command_line(up: Up, tmp_path: Path) -> None:
    assert up.run("jobs").returncode == 4
    up.start("--cores", "2")
    done = up.run(
        "submit", "--wait", "--name", "a b", "--chdir", str(tmp_path), "--", "sh", "-c", "pwd; exit 9"
    )
    assert (done.returncode, done.stdout) == (9, f"1\n{tmp_path}\n")
    assert up.run("logs", "last").stdout == f"{tmp_path}\n"
    done = up.run("submit", "--array", "1-2,7", "--json", "--", "sh", "-c", "echo $TENBIN_ARRAY_INDEX")
    assert json.loads(done.stdout) == {"ids": [3, 4, 5], "arrays": [2], "remarks": []}
    assert up.run("wait", "3-5").returncode == 0
    assert [up.run("logs", str(job)).stdout for job in (3, 4, 5)] == ["1\n", "2\n", "7\n"]
    assert "a b" in up.run("jobs", "--all").stdout and "exit code 9" in up.run("info", "1").stdout
    status = json.loads(up.run("status", "--json").stdout)
    assert up.process is not None and status["pid"] == up.process.pid
    stored = Store(tmp_path / "store").save(make_profile(), {})
    for arguments, message in (
        (("submit", "--time", "5 apples", "--", "true"), "--time '5 apples' is no duration"),
        (("submit", "--memory", "much", "--", "true"), "--memory 'much' is no size"),
        (("submit", "--array", "3-1", "--", "true"), "--array '3-1'"),
        (("submit", "-c", "64", "--", "true"), "the job needs 64 cores"),
        (("cancel", "x"), "'x' is no job"),
        (("info", "77"), "no job 77"),
        (("up", "--policy", "esay"), "did you mean easy"),
        (("up", "--devices", "--cores", "1"), "--cores with --devices"),
        (("up", "--devices", "--nodes", "1"), "--nodes with --devices"),
        (("up", "--policy", "las", "--profile", str(stored)), "las uses nothing of it here"),
    ):
        done = up.run(*arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, arguments
    assert up.run("down").returncode == 0
    assert up.process.wait(20) == 0 and up.run("status").returncode == 4
