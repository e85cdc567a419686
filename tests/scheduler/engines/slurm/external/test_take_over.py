"""Jobs of plain sbatch are taken over: users change nothing, tenbin decides, and what others do counts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab, require_slurm, slurmlab
from tests.support.programs import tenbin
from tests.support.waiting import until


@pytest.fixture(scope="module")
def _cluster() -> Iterator[SlurmLab]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        made = tenbin("slurm", "config", "--job-submit", str(folder / "lease"), "-o", str(folder))
        assert made.returncode == 0, made.stderr
        with slurmlab(folder, extra="JobSubmitPlugins=lua\n") as lab:
            folder.chmod(0o755)
            yield lab


@pytest.fixture
def lab(lab: SlurmLab) -> Iterator[SlurmLab]:
    """Yield a Slurm cluster of three nodes with 2 CPUs each, with tenbin's job_submit.lua."""
    yield lab
    (lab.folder / "lease").unlink(missing_ok=True)


def start(up: Up, lab: SlurmLab, *more: str) -> None:
    up.start("--engine", "slurm", "--take-over", str(lab.folder / "lease"), *more)


def sbatch(lab: SlurmLab, folder: Path, *options: str, script: str = "") -> str:
    """Submit; its number. Unless told otherwise it notes where it begins and runs until told to go."""
    text = script or "hostname >>begun; until [ -e go ]; do sleep 0.05; done; echo $SLURM_JOB_ID >>done"
    words = ("--parsable", f"--chdir={folder}", f"--wrap={text}", *options)
    return lab.call("sbatch", *words).strip()


def taken(up: Up) -> dict[str, dict[str, Any]]:
    """Return the jobs taken over, by their numbers in Slurm (the last job of each number)."""
    return {job["slurm"]: job for job in up.client.call("GET", "/jobs?all=true") if job["slurm"]}


def stage(up: Up, key: str) -> str:
    return str(taken(up).get(key, {}).get("stage"))


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def slurm(lab: SlurmLab, key: str, form: str = "%T") -> str:
    return lab.call("squeue", "-h", "-a", "-t", "all", "-j", key, "-o", form).strip()


def detail(lab: SlurmLab, key: str) -> str:
    return lab.call("scontrol", "show", "job", key)


def eligible(lab: SlurmLab, key: str) -> str:
    return re.findall(r"EligibleTime=(\S+)", detail(lab, key))[0]


def test_jobs_of_sbatch_run_where_and_when_tenbin_says(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Two do not fit together: one runs after the other; numbers, names, output and ends are seen."""
    start(up, lab)
    first = sbatch(lab, tmp_path, "-N2", "-t", "20", "-J", "first")
    second = sbatch(lab, tmp_path, "-n4", "-t", "10", "-J", "se|cond")
    third = sbatch(lab, tmp_path, "-t", "1", script="sleep 0.3; echo said; exit 3")
    up.until(lambda: stage(up, first) == "running" and stage(up, second) == "waiting")
    up.until(lambda: stage(up, third) == "failed")
    job = taken(up)[third]
    assert job["code"] == 3 and up.client.output(job["id"]) == b"said\n"
    assert taken(up)[second]["name"] == "se|cond" and taken(up)[second]["time_limit_s"] == 600
    up.until(lambda: len(lines(tmp_path / "begun")) == 1)
    info = up.client.job(taken(up)[first]["id"]).info()
    assert lab.call("squeue", "-h", "-j", first, "-o", "%D").strip() == "2" and len(info["hosts"]) == 2
    assert lines(tmp_path / "begun")[0] in info["hosts"]
    shown = up.run("jobs").stdout
    assert "slurm" in shown and first in shown and "root" in shown
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, second) == "done" and stage(up, first) == "done")
    assert lines(tmp_path / "done") == [first, second]
    info = up.client.job(taken(up)[second]["id"]).info()
    assert len(info["hosts"]) == 2 and not info["failures"]


@pytest.mark.slow
def test_arrays_dependencies_and_begin(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Of an array with a limit no more run at once; what depends on it waits, then runs."""
    start(up, lab)
    script = "echo b >>log$SLURM_ARRAY_TASK_ID; until [ -e go ]; do sleep 0.05; done; sleep 0.2"
    array = sbatch(lab, tmp_path, "--array=1-3%2", script=script)
    after = sbatch(lab, tmp_path, f"--dependency=afterok:{array}", script="ls log* >after")
    never = sbatch(lab, tmp_path, "--begin=now+1hour", script="true")
    up.until(lambda: [stage(up, f"{array}_{n}") for n in (1, 2)] == ["running"] * 2)
    up.until(lambda: stage(up, after) == "held" and stage(up, never) == "held")
    assert f"{array}_3" not in taken(up)
    assert "afterok" in up.client.job(taken(up)[after]["id"]).info()["why"]
    assert "is to begin" in up.client.job(taken(up)[never]["id"]).info()["why"]
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, after) == "done", 60)
    assert lines(tmp_path / "after") == ["log1", "log2", "log3"]
    assert stage(up, f"{array}_3") == "done" and stage(up, never) == "held"
    lab.call("scancel", never)
    up.until(lambda: stage(up, never) == "cancelled")


def test_what_tenbin_does_not_know_is_left_to_slurm(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """With a remark; srun, and who does not want it, are not held at all."""
    start(up, lab)
    quick = "true"
    constraint = sbatch(lab, tmp_path, "-C", "f3", script=quick)
    node = sbatch(lab, tmp_path, "-w", "node2", script=quick)
    own = sbatch(lab, tmp_path, "--comment=tenbin:no", script=quick)
    assert "AdminComment" not in detail(lab, own)
    assert lab.call("srun", "hostname", timeout_s=30).strip() in lab.nodes
    up.until(lambda: {slurm(lab, key) for key in (constraint, node, own)} == {"COMPLETED"}, 60)
    assert "tenbin:free (Features=f3" in detail(lab, constraint)
    assert "tenbin:free (ReqNodeList=node2" in detail(lab, node)
    assert not taken(up)


def test_a_killed_coordinator_and_a_killed_slurmctld(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Each is found again by its number, exactly once: those that run, wait, and ended meanwhile."""
    start(up, lab)
    keys = [sbatch(lab, tmp_path, "-c2") for _ in range(5)]
    up.until(lambda: [stage(up, key) for key in keys] == ["running"] * 3 + ["waiting"] * 2)
    up.until(lambda: len(lines(tmp_path / "begun")) == 3)
    numbers = {key: job["id"] for key, job in taken(up).items()}
    lab.keep()
    up.kill()
    lab.kill_slurmctld()
    (tmp_path / "go").touch()
    until(lambda: len(lines(tmp_path / "done")) == 3)
    lab.start_slurmctld()
    lab.answers()
    lab.call("scancel", keys[4])
    start(up, lab)
    up.until(lambda: [stage(up, key) for key in keys] == ["done"] * 4 + ["cancelled"], 60)
    assert {key: job["id"] for key, job in taken(up).items()} == numbers
    assert sorted(lines(tmp_path / "done")) == sorted(keys[:4])
    assert len(lines(tmp_path / "begun")) == 4


def taken_info(up: Up, key: str) -> dict[str, Any]:
    return dict(up.client.job(taken(up)[key]["id"]).info())


@pytest.mark.slow
def test_tenbin_cancels_suspends_and_resumes_them(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    start(up, lab)
    keys = [sbatch(lab, tmp_path, "-c2") for _ in range(4)]
    up.until(lambda: stage(up, keys[0]) == "running" and stage(up, keys[3]) == "waiting")
    numbers = [taken(up)[key]["id"] for key in keys]
    assert up.run("cancel", str(numbers[3]), str(numbers[1])).returncode == 0
    up.until(lambda: slurm(lab, keys[3]) == slurm(lab, keys[1]) == "CANCELLED")
    up.until(lambda: stage(up, keys[3]) == stage(up, keys[1]) == "cancelled")
    up.until(lambda: slurm(lab, keys[0]) == "RUNNING")
    assert up.run("suspend", str(numbers[0])).returncode == 0
    up.until(lambda: slurm(lab, keys[0]) == "SUSPENDED")
    assert up.run("resume", str(numbers[0])).returncode == 0
    up.until(lambda: slurm(lab, keys[0]) == "RUNNING")
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, keys[0]) == stage(up, keys[2]) == "done", 60)


@pytest.mark.slow
def test_without_tenbin_nobody_waits(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """New jobs are not held; those that wait start when their time has come, or are let go."""
    before = sbatch(lab, tmp_path, script="true")
    until(lambda: slurm(lab, before) == "COMPLETED")
    start(up, lab, "--gate", "8")
    lab.call("scontrol", "update", f"nodename={','.join(lab.nodes)}", "state=drain", "reason=test")
    waits = sbatch(lab, tmp_path, script="true")
    up.until(lambda: stage(up, waits) == "waiting")
    before = eligible(lab, waits)
    up.until(lambda: eligible(lab, waits) > before)  # it is put off again and again
    up.kill()
    lab.call("scontrol", "update", f"nodename={','.join(lab.nodes)}", "state=resume")
    until(lambda: slurm(lab, waits) == "COMPLETED", 60)
    start(up, lab)
    up.until(lambda: stage(up, waits) == "done")
    lab.call("scontrol", "update", f"nodename={','.join(lab.nodes)}", "state=drain", "reason=test")
    left = sbatch(lab, tmp_path, script="true")
    up.until(lambda: stage(up, left) == "waiting")
    done = up.run("down", "--let-go")
    assert done.returncode == 0 and "1 jobs of sbatch are left" in done.stdout, done
    assert not (lab.folder / "lease").exists() and "tenbin:free" in detail(lab, left)
    lab.call("scontrol", "update", f"nodename={','.join(lab.nodes)}", "state=resume")
    until(lambda: slurm(lab, left) == "COMPLETED", 60)


def started(up: Up, lab: SlurmLab, keys: list[str]) -> None:
    up.until(lambda: [stage(up, key) for key in keys] == ["running"] * len(keys), 60)
    until(lambda: {slurm(lab, key) for key in keys} == {"RUNNING"})


@pytest.mark.slow
def test_one_who_puts_a_job_back_into_the_queue_is_obeyed(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Scontrol requeue: it runs again where tenbin says; requeuehold: when it is released."""
    start(up, lab)
    again, held = (sbatch(lab, tmp_path, "-c2", "--requeue") for _ in range(2))
    started(up, lab, [again, held])
    up.until(lambda: len(lines(tmp_path / "begun")) == 2)  # Slurm calls one running that it has yet to launch
    lab.call("scontrol", "requeuehold", held)
    lab.call("scontrol", "requeue", again)
    up.until(lambda: stage(up, held) == "held" and taken_info(up, again)["attempt"] == 2)
    assert "held in Slurm by somebody else" in taken_info(up, held)["why"]
    up.until(lambda: len(lines(tmp_path / "begun")) == 3, 90)
    assert lines(tmp_path / "begun")[2] == taken_info(up, again)["hosts"][0]
    lab.call("scontrol", "release", held)
    up.until(lambda: len(lines(tmp_path / "begun")) == 4, 90)
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, again) == stage(up, held) == "done")
    assert taken_info(up, held)["failures"] == taken_info(up, again)["failures"] == 1


@pytest.mark.slow
def test_holds_and_changes_of_jobs_that_wait(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Hold and release, of time limit, of size, of nodes."""
    start(up, lab)
    first = sbatch(lab, tmp_path, "-N3")
    started(up, lab, [first])
    held, limit, size, node = (sbatch(lab, tmp_path, "-t", "30") for _ in range(4))
    up.until(lambda: [stage(up, key) for key in (held, limit, size, node)] == ["waiting"] * 4)
    lab.call("scontrol", "hold", held)
    lab.call("scontrol", "update", f"jobid={limit}", "TimeLimit=5")
    lab.call("scontrol", "update", f"jobid={size}", "NumNodes=2", "NumTasks=2")
    lab.call("scontrol", "update", f"jobid={node}", "ReqNodeList=node2")
    up.until(lambda: stage(up, held) == "held" and taken(up)[limit]["time_limit_s"] == 300)
    up.until(lambda: "left to Slurm: ReqNodeList=node2" in taken(up)[node]["trouble"])
    up.until(lambda: taken_info(up, size)["spec"]["nodes"] == 2)
    numbers = [job["id"] for job in up.client.call("GET", "/jobs?all=true") if job["slurm"] == size]
    assert len(numbers) == 2 and stage(up, size) == "waiting"
    lab.call("scontrol", "update", f"jobid={first}", "TimeLimit=77")
    up.until(lambda: taken(up)[first]["time_limit_s"] == 77 * 60)
    (tmp_path / "go").touch()
    up.until(lambda: [stage(up, key) for key in (first, limit, size)] == ["done"] * 3, 60)
    assert stage(up, held) == "held" and len(taken_info(up, size)["hosts"]) == 2
    until(lambda: slurm(lab, node, "%T %N") == "COMPLETED node2")
    lab.call("scontrol", "release", held)
    up.until(lambda: stage(up, held) == "done")


@pytest.mark.slow
def test_one_that_somebody_starts_runs_where_it_is(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """The policy would let it wait; tenbin books it there, and starts nothing else on that node."""
    start(up, lab, "--policy", "fcfs")
    first = sbatch(lab, tmp_path, "-N1", "-c2")
    started(up, lab, [first])
    large = sbatch(lab, tmp_path, "-N3")
    early = sbatch(lab, tmp_path, "-c2")
    up.until(lambda: stage(up, early) == stage(up, large) == "waiting")
    lab.call("scontrol", "update", f"jobid={early}", "StartTime=now")
    started(up, lab, [early])
    assert taken_info(up, early)["hosts"] == [slurm(lab, early, "%N")]
    (tmp_path / "go").touch()
    up.until(lambda: [stage(up, key) for key in (first, early, large)] == ["done"] * 3, 60)


def test_a_policy_that_chooses_caps_and_sizes(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """It takes what sbatch asks for: that has no range, and no budget is held."""
    start(up, lab, "--policy", "parm")
    first = sbatch(lab, tmp_path, "-N3", "-t", "20")
    second = sbatch(lab, tmp_path, "-N1", "-t", "10")
    up.until(lambda: stage(up, first) == "running" and stage(up, second) == "waiting")
    up.until(lambda: len(lines(tmp_path / "begun")) == 1)
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, second) == "done" and stage(up, first) == "done")
    assert lines(tmp_path / "done") == [first, second]


def test_a_budget_over_what_nobody_caps_is_refused(lab: SlurmLab, tmp_path: Path) -> None:
    lease = str(lab.folder / "lease")
    words = ("up", "--engine", "slurm", "--home", str(tmp_path), "--take-over", lease, "--policy", "parm")
    done = tenbin(*words, "--power-budget", "100")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "--take-over with --power-budget: nothing caps what sbatch starts; give one of them" in done.stderr


def test_nobody_forges_the_record_of_another(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """By lines in a comment or a name, which Slurm shows as they are; others are taken over as they are."""
    start(up, lab)
    up.kill()  # both are new at one look
    number = int(sbatch(lab, tmp_path, script="true")) + 2
    record = f"JobId={number} JobName=forged\n   JobState=PENDING Requeue=1 TimeLimit=00:01:00\n"
    record += (
        "   Partition=main\n   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1\n   Command=forged\n   WorkDir=/\n"
    )
    forger = sbatch(lab, tmp_path, "-t", "5", f"--comment=x\n{record}", "-J", "lines|\nof its own")
    honest = sbatch(lab, tmp_path, "-N2", "-t", "10", "-J", "honest")
    assert int(honest) == number and f"\nJobId={number} JobName=forged" in detail(lab, forger)
    own = sbatch(lab, tmp_path, "-t", "5", "-J", "x\n   NumNodes=1 NumCPUs=1")
    start(up, lab)
    up.until(lambda: stage(up, honest) in ("running", "waiting"))
    info = up.client.job(taken(up)[honest]["id"]).info()
    assert info["name"] == "honest" and info["time_limit_s"] == 600 and info["spec"]["nodes"] == 2
    (tmp_path / "go").touch()
    up.until(lambda: stage(up, honest) == "done")
    for key in (forger, own):  # left to Slurm, with the reason
        up.until(lambda key=key: "looks like words of Slurm's" in detail(lab, key))
    later = sbatch(lab, tmp_path, script="true")
    up.until(lambda: stage(up, later) == "done")
