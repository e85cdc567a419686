"""The coordinator dies, Slurm does, others change things: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.scheduler.engines.slurm.test_engine import BUSY, START, run, stage
from tests.support.amounts import sweep
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

# Notes each time that it is begun, and runs until it is told to go.
NOTES = "i=$TENBIN_ARRAY_INDEX; echo $i >>begun; until [ -e go ]; do sleep 0.05; done; echo $i >>done"


def begun(folder: Path, name: str = "begun") -> list[str]:
    return sorted((folder / name).read_text().split()) if (folder / name).exists() else []


def slurm_states(lab: SlurmLab) -> list[str]:
    return lab.call("squeue", "-h", "-o", "%T").split()


def test_a_killed_coordinator_finds_its_jobs(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Those that ran on, the one that ended meanwhile, the one that waits, and one that is paused."""
    up.start(*START)
    run(up, "submit", "--array", "1-4", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 3)
    run(up, "suspend", "3")
    up.until(lambda: len(begun(tmp_path)) == 4 and "SUSPENDED" in slurm_states(lab))
    up.kill()
    (tmp_path / "go").touch()
    up.until(lambda: len(begun(tmp_path, "done")) == 3)
    up.start(*START)
    assert [up.client.job(n).result(60) for n in (2, 4, 5)] == [0, 0, 0]
    assert stage(up, 3) == "suspended"
    run(up, "resume", "3")
    assert up.client.job(3).result(60) == 0
    assert begun(tmp_path) == begun(tmp_path, "done") == ["1", "2", "3", "4"]


@pytest.mark.slow
def test_killed_at_any_moment_each_job_runs_once(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    once = 'mkdir "ran-$TENBIN_ARRAY_INDEX"'  # fails the second time
    up.start(*START, "--unit", "1")
    run(up, "submit", "--array", "1-8", "--chdir", str(tmp_path), "--", "sh", "-c", once)
    for moment_s in (0.05, 0.5):
        time.sleep(moment_s)
        up.kill()
        up.start(*START, "--unit", "1")
    assert [up.client.job(n).result(90) for n in range(2, 10)] == [0] * 8
    assert all(up.client.job(n).info()["attempt"] <= 4 for n in range(2, 10))


def test_slurmctld_is_restarted(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    run(up, "submit", "--array", "1-2", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 2)
    lab.keep()
    lab.kill_slurmctld()
    run(up, "submit", "--chdir", str(tmp_path), "--", "true")
    up.until(lambda: "Slurm does not answer" in str(up.client.job(4).info()["why"]), 60)
    lab.start_slurmctld()
    assert up.client.job(4).result(120) == 0
    (tmp_path / "go").touch()
    assert [up.client.job(n).result(60) for n in (2, 3)] == [0, 0]
    assert begun(tmp_path) == ["1", "2"]


def copied_whole(source: Path, target: Path) -> bool:
    """Copy the folder. False: slurmctld has renamed one of its files meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(source, target)
    except shutil.Error:
        return False
    return True


@pytest.mark.slow
def test_slurmctld_has_forgotten_that_it_has_started_a_job(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Slurmctld starts the job again, the node refuses, Slurm cancels it: not a user's cancel."""
    up.start(*START, "--lease", "3")
    other = lab.call(*BUSY, "--wrap", "sleep 600").strip()
    up.until(lambda: "RUNNING" in slurm_states(lab))
    signs = "while :; do echo ${TENBIN_MARK##*:} >>signs; [ -e go ] && exit 0; sleep 0.05; done"
    run(up, "submit", "--chdir", str(tmp_path), "--", "bash", "-c", signs)
    up.until(lambda: "PENDING" in slurm_states(lab))
    lab.keep()
    state, before = lab.folder / "state", tmp_path / "state"
    up.until(lambda: copied_whole(state, before), 30)
    lab.call("scancel", other)
    up.until((tmp_path / "signs").exists, 60)
    time.sleep(2)
    lab.kill_slurmctld()
    shutil.rmtree(state)
    shutil.copytree(before, state)
    lab.start_slurmctld()
    lab.answers()
    lab.call("scancel", other)  # it runs again by that state; that its nodes have none is seen late

    def attempts() -> list[int]:
        return [int(line) for line in (tmp_path / "signs").read_text().splitlines()]

    up.until(lambda: attempts()[-1] > 1, 120)
    (tmp_path / "go").touch()
    assert up.client.job(1).result(60) == 0
    assert attempts() == sorted(attempts()), "two at once"


@pytest.mark.slow
def test_what_others_do_in_slurm_is_respected(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    run(up, "submit", "--array", "1-3", "--chdir", str(tmp_path), "--", "sh", "-c", NOTES)
    up.until(lambda: len(begun(tmp_path)) == 3)
    ids = {job: up.client.job(job).info()["hosts"][0] for job in (2, 3, 4)}
    names = dict(reversed(line.split()) for line in lab.call("squeue", "-h", "-o", "%i %N").splitlines())
    lab.call("scancel", names[ids[2]])
    up.until(lambda: stage(up, 2) == "cancelled")
    lab.call("scontrol", "suspend", names[ids[3]])
    up.until(lambda: "suspended in Slurm by somebody else" in up.client.job(3).info()["why"])
    lab.call("scontrol", "resume", names[ids[3]])
    # A drained node gets no job, and the one that is there goes on.
    lab.call("scontrol", "update", f"nodename={ids[4]}", "state=drain", "reason=service")
    lab.call("scontrol", "update", f"nodename={ids[2]}", "state=drain", "reason=service")
    up.until(lambda: "service" in run(up, "nodes"))
    run(up, "submit", "--", "hostname")
    time.sleep(1)
    assert stage(up, 5) == "waiting"
    (tmp_path / "go").touch()
    assert up.client.job(5).result(60) == 0
    assert up.client.output(5).decode().strip() == ids[3]
    assert [up.client.job(n).result(60) for n in (3, 4)] == [0, 0]
    lab.call("scontrol", "update", f"nodename={ids[2]},{ids[4]}", "state=resume")
    up.until(lambda: all(node.get("up", True) for node in up.client.call("GET", "/nodes")))


def test_the_jobs_of_a_dead_node_run_elsewhere(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm says that it is lost; the job begins anew when its lease is over, and only there."""
    up.start(*START, "--lease", "3")
    run(
        up,
        "submit",
        "--chdir",
        str(tmp_path),
        "--",
        "sh",
        "-c",
        "hostname >>begun; until [ -e go ]; do sleep 0.05; done",
    )
    up.until(lambda: len(begun(tmp_path)) == 1)
    (node,) = begun(tmp_path)
    lab.power_off(node)
    lab.call("scontrol", "update", f"nodename={node}", "state=down", "reason=power")
    up.until(lambda: len(begun(tmp_path)) == 2, 60)
    (tmp_path / "go").touch()
    assert up.client.job(1).result(60) == 0
    assert up.client.job(1).info()["attempt"] == 2 and begun(tmp_path)[0] != begun(tmp_path)[1]


@pytest.mark.slow
def test_a_copy_that_nobody_reaches_ends_itself_first(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """The link is cut, the job lives: it is dead before the other one begins, though nobody could kill it."""
    up.start(*START, "--lease", "3")
    beat = 'while :; do echo "$(hostname) $(date +%s.%N)" >>beats; [ -e go ] && exit 0; sleep 0.05; done'
    run(up, "submit", "--chdir", str(tmp_path), "--", "bash", "-c", beat)
    beats = tmp_path / "beats"
    up.until(lambda: beats.exists() and beats.read_text().count("\n") > 3)
    first = beats.read_text().split()[0]
    lab.cut(first)
    lab.call("scontrol", "update", f"nodename={first}", "state=down", "reason=unreachable")
    up.until(lambda: len({line.split()[0] for line in beats.read_text().splitlines()}) == 2, 60)
    lab.join(first)
    (tmp_path / "go").touch()
    assert up.client.job(1).result(60) == 0
    lines = [line.split() for line in beats.read_text().splitlines()]
    last = max(float(at) for name, at in lines if name == first)
    assert all(float(at) > last for name, at in lines if name != first)


@pytest.mark.parametrize("fence", sweep((True, False), {True}))
def test_a_lease_ends_a_job(lab: SlurmLab, tmp_path: Path, fence: bool) -> None:
    """By a fence at once; without a folder to look at when the time is over."""
    from tests.agent.supervisor.test_foreground import placed
    from tests.agent.supervisor.test_supervisor import Running

    attempt = placed(tmp_path / "job", "sleep", "60", lease_s=2.0)
    running = Running(attempt)
    deadline = time.monotonic() + 30
    while attempt.state() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if fence:
        attempt.fence_off()
        assert running.result().how == "interrupted"
    else:
        moved = attempt.path.with_name("moved")
        attempt.path.rename(moved)
        deadline = time.monotonic() + 30
        state = json.loads((moved / "state.json").read_text())
        while Path(f"/proc/{state['pid']}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{state['pid']}").exists()
        moved.rename(attempt.path)
        running.process.wait(30)
        found = attempt.result() or attempt.unpublished_result()
        assert found is not None and found.how == "interrupted"
