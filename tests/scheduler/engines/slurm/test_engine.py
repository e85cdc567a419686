"""``tenbin up --engine slurm``: what users do works as with this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.page import PageProcess
from tests.support.viewer import Viewer

START = ("--engine", "slurm")
COUNTS = "i=0; until [ -e go ]; do i=$((i+1)); echo $i; sleep 0.1; done"


def run(up: Up, *words: str) -> str:
    done = up.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stage(up: Up, job: int) -> str:
    return str(up.client.job(job).info()["stage"])


def test_jobs_run_on_nodes_of_the_cluster(up: Up, lab: SlurmLab) -> None:
    up.start(*START)
    shell = ("--", "sh", "-c")
    run(up, "submit", "--array", "1-6", *shell, "hostname; exit $TENBIN_ARRAY_INDEX")
    run(up, "submit", "-c", "2", "--time", "10m", *shell, "hostname >&2; echo $SLURM_JOB_ID $TENBIN_TASKS")
    assert [up.client.job(n).result(60) for n in range(2, 9)] == [1, 2, 3, 4, 5, 6, 0]
    where = [up.client.output(n).decode().strip() for n in range(2, 8)]
    assert set(where) == set(lab.nodes)
    assert [up.client.job(n).info()["hosts"] for n in range(2, 8)] == [[name] for name in where]
    slurm, tasks = up.client.output(8).decode().split()
    assert tasks == "1" and "tenbin:" in lab.call("scontrol", "show", "job", slurm)


def test_pause_go_on_and_cancel(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    run(up, "submit", "-c", "2", "--chdir", str(tmp_path), "--", "sh", "-c", COUNTS)
    job = up.client.job(1)
    up.until(lambda: up.client.output(1).count(b"\n") > 3)
    run(up, "suspend", "1")
    up.until(lambda: "SUSPENDED" in lab.call("squeue", "-h", "-o", "%T"))
    said = up.client.output(1)
    run(up, "submit", "-c", "2", "--wait", "--", "true")
    assert up.client.output(1) == said
    run(up, "resume", "1")
    up.until(lambda: up.client.output(1).count(b"\n") > said.count(b"\n") + 3)
    (tmp_path / "go").touch()
    assert job.result(60) == 0
    counted = up.client.output(1).split()
    assert counted == [str(n + 1).encode() for n in range(len(counted))]
    info = job.info()
    assert info["usage"]["running_s"] < info["usage"]["wall_s"] - 0.5
    run(up, "submit", "--", "sleep", "100")
    up.until(lambda: stage(up, 3) == "running")
    run(up, "cancel", "3")
    up.until(lambda: stage(up, 3) == "cancelled")
    up.until(lambda: not lab.call("squeue", "-h", "-o", "%T").strip())


def test_a_job_moves_to_the_node_that_is_named(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """The job leaves with a checkpoint and goes on there; an unknown node is refused."""
    up.start(*START)
    leaves = 'trap "touch kept; exit 85" URG; hostname >>where; [ -e kept ] && exit 0; '
    moves = leaves + "while :; do sleep 0.05; done"
    spec = {"command": ["bash", "-c", moves], "folder": str(tmp_path), "checkpoint_signal": 23}
    (job,) = up.client.submit_all([spec])
    where = tmp_path / "where"
    up.until(lambda: where.exists() and where.read_text())
    first = where.read_text().strip()
    target = next(node for node in lab.nodes if node != first)
    assert "node9" in up.run("migrate", "1", "--to", "node9").stderr
    run(up, "migrate", "1", "--to", target)
    assert job.result(60) == 0
    assert where.read_text().split() == [first, target]
    assert job.info()["migrations"] == 1 and job.info()["hosts"] == [target]


def test_failures_and_ranges_speak_as_on_one_machine(up: Up, lab: SlurmLab) -> None:
    """A path is the node's own: the job that finds none there says where it looked."""
    up.start(*START)
    missing = up.run("submit", "--wait", "--chdir", "/no/such", "--", "true")
    assert missing.returncode == 125 and "/no/such: No such file or directory (on " in missing.stderr
    assert any(f"(on {name})" in missing.stderr for name in lab.nodes)
    failed = up.run("submit", "--wait", "--", "sh", "-c", "echo why >&2; exit 3")
    assert failed.returncode == 3 and failed.stderr == "why\njob 2: failed: exit code 3\n"
    assert "tenbin logs 2 --error" in up.run("logs", "2").stderr
    waits = up.client.submit(["sleep", "600"])
    done = up.run("cancel", "1-3")
    assert done.returncode == 0 and "left out 1-2: has ended (failed)" in done.stderr
    assert waits.wait(60)["stage"] == "cancelled"


def test_memory_that_no_node_has_is_refused_at_submission(up: Up, lab: SlurmLab) -> None:
    up.start(*START)
    for words in (["--memory", "10G"], ["-n", "2", "--memory", "1.5G"]):
        done = up.run("submit", *words, "--", "true")
        assert done.returncode == 2 and "on one node, jobs may have 2.097 GB" in done.stderr


def test_what_slurm_refuses_for_good_is_a_failed_job(up: Up, lab: SlurmLab) -> None:
    """Its nodes have less memory since the coordinator was started, so only sbatch knows."""
    up.start(*START)
    before = lab.conf.read_text()
    try:
        lab.conf.write_text(before.replace("RealMemory=2000", "RealMemory=500"))
        lab.call("scontrol", "reconfigure")
        run(up, "submit", "--memory", "1G", "--", "true")
        up.until(lambda: stage(up, 1) == "failed")
    finally:
        lab.conf.write_text(before)
        lab.call("scontrol", "reconfigure")
    info = up.client.job(1).info()
    assert info["attempt"] == 1 and "Memory specification can not be satisfied" in info["trouble"]


# The page beside a coordinator on a Slurm cluster: a lane a node, in a real browser.


def test_nodes_of_the_cluster_are_lanes(up: Up, lab: SlurmLab, browser: Any) -> None:
    up.start("--engine", "slurm")
    nodes = sorted(lab.nodes)
    jobs = [up.client.submit(["sleep", "600"], name=f"on-{n}", cores=2, expect_s={"": 60}) for n in range(4)]
    page = PageProcess(up.home)
    try:
        up.until(lambda: [job.info()["stage"] for job in jobs] == ["running"] * 3 + ["waiting"], 60)
        where = {job.info()["hosts"][0]: job.id for job in jobs[:3]}
        viewer = Viewer(browser, page)
        tab = viewer.tab
        for node, job in where.items():
            viewer.row(f"on-{job - 1}").get_by_text(node).wait_for()
        viewer.row("on-3").locator(".what").filter(has_text="starts about").wait_for()
        page.address = page.addresses(2)[-1]
        page.enter()

        def lanes() -> dict[str, int]:
            found = page.get("/api/gantt?from_s=0&until_s=1e10")
            assert [lane["name"] for lane in found["lanes"]][:3] == nodes
            return {one[0]: one[6] for one in found["rectangles"] if one[4] == "running"}

        up.until(lambda: lanes() == where)
        viewer.go("gantt")
        rows = tab.get_by_role("table", name="Jobs of the window").locator("tbody tr")
        rows.filter(has_text="on-3").get_by_text("planned").wait_for()
        viewer.go("nodes")
        for node in nodes:
            tab.get_by_role("heading", name=node).wait_for()
        tab.get_by_role("link", name=str(jobs[0].id), exact=True).wait_for()
        viewer.close()
    finally:
        assert page.stop() == 0
        up.run("cancel", "all")
        up.until(lambda: not up.client.call("GET", "/jobs"), 60)


def test_jobs_outside_tenbin_are_shown_where_they_hold_nodes(up: Up, lab: SlurmLab) -> None:
    up.start(*START)
    run(up, "submit", "--", "sleep", "600")
    up.until(lambda: stage(up, 1) == "running")
    (own,) = up.client.job(1).info()["hosts"]
    other = next(name for name in lab.nodes if name != own)
    held = (
        "--nodelist",
        other,
        "--cpus-per-task=1",
        "--output=/dev/null",
        "--chdir=/",
        "--wrap",
        "sleep 600",
    )
    lab.call("sbatch", "--parsable", *held)

    def others() -> dict[str, int]:
        return {node["name"]: node["others"] for node in up.client.call("GET", "/nodes") if "others" in node}

    up.until(lambda: others()[other] > 0)
    up.until(lambda: others()[own] == 0)
    assert f"{other}: " in run(up, "nodes") and "jobs outside tenbin" in run(up, "nodes")
