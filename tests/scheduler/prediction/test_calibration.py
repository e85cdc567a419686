"""Real jobs moved between two OpenCL devices: what was predicted, what it cost, and what is made of that."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from profiles.errors import BadInput
from profiles.files.store import Store
from profiles.fits.checkpoint import refitted
from scheduler.coordinator.journal.journal import Journal, predictions_of
from scheduler.model.jobs import Cluster, Pool
from scheduler.prediction.predictions import TrackedPrediction, samples, summary
from scheduler.prediction.profiles import measured_cluster
from tenbin.client.client import Job
from tenbin.text import headline
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.paths import STENCIL
from tests.support.programs import opencl_devices, tenbin
from tests.support.records import make_inventory, make_profile

CELLS = 1448  # two grids of 16.8 MB
NEEDS = {"checkpoint_signal": int(signal.SIGURG), "folder": str(STENCIL.parents[1])}


def stencil(up: Up, steps: int) -> Job:
    command = [sys.executable, str(STENCIL), "--cells", str(CELLS), "--steps", str(steps)]
    return up.client.submit(command, **NEEDS)


def computes(up: Up, job: Job, attempt: int) -> bool:
    """Wait until that attempt of the job has noted that it computes; False if the job came to its end."""
    path = up.home / "jobs" / str(job.id) / "checkpoint.phases.jsonl"
    deadline = time.monotonic() + 100
    while not path.exists() or path.read_text().count('"ready"') < attempt:
        assert time.monotonic() < deadline, job.info()
        if job.info()["stage"] not in ("waiting", "running", "stopping", "suspended"):
            return False
        time.sleep(0.02)
    return True


def moved(up: Up, steps: int, moves: int, kill_at: int) -> Job | None:
    """Move a job ``moves`` times in the middle of its run and kill the coordinator once while the job leaves.

    Returns: None if the job was too quick for that.
    """
    job = stencil(up, steps)
    for number in range(moves):
        if not computes(up, job, number + 1):
            return None
        here = job.info()["placement"]
        up.client.call("POST", "/migrate", {"ids": [job.id], "to": other(here)})
        if number == kill_at:
            up.kill()
            up.start("--devices", "--policy", "fcfs")
    return job if job.wait(150)["migrations"] == moves else None


def other(place: str) -> str:
    return "pocl-1" if place == "pocl-0" else "pocl-0"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_moved_three_times_the_cost_was_predicted(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit-identical to the undisturbed run; each move has its prediction and its outcome, part by part."""
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    for steps in (300, 1200, 4800, 19_200):
        job = moved(up, steps, moves=3, kill_at=1)
        if job is not None:
            break
    assert job is not None and job.info()["attempt"] == 4
    still = stencil(up, steps).wait(150)
    assert Path(job.info()["stdout"]).read_text() == Path(still["stdout"]).read_text() != ""

    up.kill(signal.SIGTERM)
    found = [f for f in predictions_of(up.home) if f.job == job.id]
    moves = [f for f in found if f.kind == "migration"]
    assert len(moves) == 3 and all(not f.open for f in found)
    outcomes = [f for f in moves if f.measured is not None]
    seen = 3 if moves[1].measured is not None else 2  # the coordinator may have come back too late to see it
    assert len(outcomes) == seen, [f.void for f in moves]
    assert seen == 3 or moves[1].void == "it left while no coordinator was there"
    for one in outcomes:
        assert one.detail["to"] == other(one.detail["pool"]) and one.detail["mb"] == 2 * 8 * CELLS**2 / 1e6
        assert one.detail["measured"].keys() == one.detail["parts"].keys() and len(one.detail["parts"]) == 9
        assert sum(one.detail["measured"].values()) == pytest.approx(one.measured, rel=0.02)
        assert sum(one.detail["parts"].values()) == pytest.approx(one.predicted)
        assert one.predicted > 0  # imports, context and kernels were seen at the first start
        print(f"predicted {one.predicted:.2f} s, measured {one.measured:.2f} s")
    kinds = [f.kind for f in found if f.measured is not None]
    assert kinds.count("checkpoint") == seen and kinds.count("restart") == 3
    shown = up.run("program", "calibration", "--json", "--kind", "migration")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["summary"]
    assert sum(row["n"] for row in rows) == seen and {row["kind"] for row in rows} == {"migration"}
    assert "pocl-0 -> pocl-1" in up.run("program", "calibration").stdout


def test_a_pause_is_predicted_from_the_ones_before(up: Up) -> None:
    up.start("--cores", "1")
    job = up.client.submit(["sleep", "60"])
    state = up.home / "jobs" / str(job.id) / "attempt-1" / "state.json"
    up.until(state.exists)
    for _ in range(3):
        job.suspend()
        up.until(lambda: json.loads(state.read_text())["paused"])
        up.until(lambda: predictions_of(up.home, last=1)[0].detail.get("stop_s") is not None)
        job.resume()
        up.until(lambda: not predictions_of(up.home, last=1)[0].open)
    job.cancel()
    job.wait(30)
    found = predictions_of(up.home, kind="suspension")
    assert len(found) == 3 and all(f.measured is not None and f.measured > 0 for f in found)
    assert found[0].predicted == 0.0 and found[1].predicted == found[0].measured
    (row,) = summary(found)
    assert (row.n, row.blind, row.kind) == (2, 1, "suspension")


def test_a_run_time_beside_what_was_expected(up: Up) -> None:
    require(opencl_devices(), "an OpenCL device (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    done = up.client.submit(["sleep", "0.5"], expect_s={"cpu": 2.0, "gpu": 2.0})
    failed = up.client.submit(["false"], expect_s={"cpu": 2.0, "gpu": 2.0})
    limited = up.client.submit(["true"], time_s=60)
    for job in (done, failed, limited):
        job.wait(30)
    up.kill(signal.SIGTERM)
    found = {f.job: f for f in predictions_of(up.home, kind="run-time")}
    assert found.keys() == {done.id, failed.id}
    assert found[done.id].predicted == 2.0 and found[done.id].measured >= 0.5
    assert found[failed.id].measured is None and found[failed.id].void == "the job has ended"


# -- errors, and fits from jobs -------------------------------------------------------------------------


def outcome(
    number: int, kind: Any, predicted: float, took_s: float | None, **detail: Any
) -> TrackedPrediction:
    return TrackedPrediction(number, number, 1, kind, 0.0, predicted, took_s, detail={"pool": "a", **detail})


def test_errors_are_summed_up_as_the_paper_does() -> None:
    """Against numbers worked out by hand."""
    errors = (0.0, 0.1, -0.1, 0.2, 1.5)
    found = [outcome(n, "migration", 10 * (1 + e), 10.0, to="b") for n, e in enumerate(errors)]
    found += [outcome(5, "migration", 0.0, 1.0, to="b"), outcome(6, "migration", 1.0, None, to="b")]
    found[-1].void = "gone"
    cap = outcome(7, "pairing", 0.9, 0.8)
    cap.emulated = True
    row, emulated = summary([cap, *found])
    assert (row.place, row.n, row.blind, row.open, row.void) == ("a -> b", 5, 1, 0, 1)
    assert (row.median, row.median_absolute, row.within) == pytest.approx((0.1, 0.1, 0.8))
    assert (row.p95, row.worst, row.worst_job) == pytest.approx((0.2 + 0.8 * 1.3, 1.5, 4))
    assert emulated.emulated and emulated.unit == "ratio" and emulated.n == 1


TRUTH = {"alpha_C": 2e-3, "beta_C": 0.05, "alpha_R": 3e-3, "beta_R": 0.2}


def measured_jobs(sizes: tuple[float, ...] = (10, 20, 40, 80, 160)) -> list[TrackedPrediction]:
    """Make the records of jobs on a machine whose truth is known: context 0.1 s of beta_R, K 0.3 s."""
    found = []
    for number, mb in enumerate(sizes * 3):
        noise = 1 + 0.01 * (-1) ** number
        save = (TRUTH["alpha_C"] * mb + TRUTH["beta_C"]) * noise
        took = {"reach": 9.0, "drain": 0.0, "save": save, "leave": 5.0}
        found.append(outcome(2 * number + 1, "checkpoint", 1.0, 14.0, mb=mb, measured=took, parts=took))
        back = TRUTH["alpha_R"] * mb * noise + TRUTH["beta_R"] - 0.1
        again = {"launch": 1.0, "start": 4.0, "context": 0.1, "compile": 0.3, "restore": back}
        found.append(outcome(2 * number + 2, "restart", 1.0, 5.0, mb=mb, measured=again, parts=again))
    for one in found:
        one.detail["program"] = "p"
    return found


def test_a_refit_finds_the_truth_and_leaves_the_rest(tmp_path: Path) -> None:
    old = make_profile()
    layer = [{"save": 9.0}, {"save": 9.0, "restore": 9.0}, {"move": 9.0}]  # parked and moved: on no storage
    others = [outcome(90, "migration", 1.0, 9.0, to="b", mb=10, measured=took) for took in layer]
    others.append(outcome(90, "checkpoint", 1.0, 9.0, mb=10, measured=layer[0]))
    rows = pd.DataFrame(samples([*measured_jobs(), *others], "/jobs"))
    before = pd.DataFrame(
        [
            {"kind": "checkpoint", "device": "a", "storage": "/jobs", "memory_mb": 1, "seconds": 9.0},
            {"kind": "checkpoint", "device": "a", "storage": "/else", "memory_mb": 1, "seconds": 9.0},
        ]
    ).assign(round=0, emulated=False, repetition=0)
    new, tables = refitted(old, {"checkpoint": before}, rows, datetime(2026, 5, 1, tzinfo=UTC))
    out = new.find("checkpoint_s", device="a", storage="/jobs")
    back, kernels = new.find("restart_s", device="a", storage="/jobs"), new.find("compile_s", device="a")
    assert out is not None and back is not None and kernels is not None
    assert out["alpha_C"].value == pytest.approx(TRUTH["alpha_C"], rel=0.05)
    assert out["beta_C"].value == pytest.approx(TRUTH["beta_C"], rel=0.1)
    assert back["alpha_R"].value == pytest.approx(TRUTH["alpha_R"], rel=0.05)
    assert back["beta_R"].value == pytest.approx(TRUTH["beta_R"], rel=0.1)
    assert kernels["K"].value == pytest.approx(0.3)
    assert all(model in new.models for model in old.models) and new.id == "20260501T000000Z"
    assert new.origin == f"{old.id}, refitted from 15 checkpoints and 15 restarts of jobs"
    assert new.refit_of == old.id
    kept = tables["checkpoint"]
    assert len(kept) == len(rows) + 1 and (kept["seconds"] == 9.0).sum() == 1
    Store(tmp_path).save(new, tables)
    assert Store(tmp_path).load() == new


def test_a_refit_that_is_not_supported() -> None:
    two = pd.DataFrame(samples(measured_jobs((10, 20)), "/jobs"))
    with pytest.raises(BadInput, match="a line needs 5, of at least 3 sizes"):
        refitted(make_profile(), {}, two, datetime.now(UTC))
    with pytest.raises(BadInput, match="never mix"):
        refitted(make_profile(emulated=True), {}, two, datetime.now(UTC))


def calibrate(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return tenbin("program", "calibration", *options, store=home / "store", TENBIN_HOME=str(home))


def test_the_command_says_what_is_lacking(up: Up) -> None:
    done = calibrate(up.home)
    assert done.returncode == 2 and "no journal in" in done.stderr and "--home" in done.stderr
    up.start("--cores", "1")
    done = calibrate(up.home, "--kind", "speed")
    assert done.returncode == 2 and "choose from run-time" in done.stderr
    assert "Nothing was predicted yet" in calibrate(up.home).stdout
    assert json.loads(calibrate(up.home, "--json").stdout) == {"summary": [], "forecasts": []}
    assert "make one with 'tenbin profile'" in calibrate(up.home, "--refit").stderr
    store = Store(up.home / "store")
    store.save(make_profile(), {})
    assert "is of node node, jobs ran on" in calibrate(up.home, "--refit").stderr
    here = make_inventory(hostname=socket.gethostname())
    store.save(make_profile(id="20270101T000000Z", inventory=here), {})
    done = calibrate(up.home, "--refit")
    assert done.returncode == 2 and "too few checkpoints" in done.stderr and "Traceback" not in done.stderr


def test_a_refit_is_stored_beside_the_old_profile(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.commit((), predictions=measured_jobs())
    journal.close()
    store = Store(tmp_path / "store")
    old = make_profile(inventory=make_inventory(hostname=socket.gethostname()))
    path = store.save(old, {}) / "profile.json"
    before = path.read_bytes()
    done = calibrate(tmp_path, "--refit", "--json")
    assert done.returncode == 0, done.stderr
    new = store.load()
    assert json.loads(done.stdout)["refitted"]["profile"] == new.id != old.id
    assert f"{old.id}, refitted from 15 checkpoints" in new.origin and path.read_bytes() == before
    model = new.find("checkpoint_s", device="a", storage=str(tmp_path))
    assert model is not None and model["alpha_C"].value == pytest.approx(TRUTH["alpha_C"], rel=0.05)
    cluster = Cluster((Pool("a", 1),))
    costs = measured_cluster(cluster, {"a": new}, tmp_path / "jobs").costs
    assert costs.checkpoint["a"].slope == pytest.approx(TRUTH["alpha_C"], rel=0.05)
    assert costs.begin_s["a"] == pytest.approx(0.1 + 0.3)
    shown = calibrate(tmp_path, "--refit")
    assert "stored" in shown.stdout and "restore" in shown.stdout and shown.returncode == 0, shown.stderr
    assert "refitted" in headline(store.load()) and len(store.paths()) == 3


def test_a_program_that_tells_nothing_is_known_by_what_its_moves_took(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second from the request until it has left; the first time nothing is known of it."""
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    traps = "trap 'sleep 0.5; exit 85' URG; touch attempt-$TENBIN_GENERATION"
    loop = ["sh", "-c", f"{traps}; while :; do sleep 0.05; done"]
    job = up.client.submit(loop, checkpoint_signal=int(signal.SIGURG), folder=str(tmp_path))
    for number in (1, 2, 3):
        up.until((tmp_path / f"attempt-{number}").exists)
        up.until(job.running)
        up.run("migrate", str(job.id), "--to", other(job.info()["placement"]))
    up.until(lambda: job.info()["attempt"] == 4)
    job.cancel()
    stops = [one for one in predictions_of(up.home) if one.kind == "checkpoint"]
    assert [one.predicted > 0.5 for one in stops] == [False, True, True]
    assert all(one.measured is not None and one.measured > 0.5 for one in stops)
    starts = [one for one in predictions_of(up.home) if one.kind == "restart"]
    assert [one.predicted > 0.0 for one in starts] == [False, True, True]
