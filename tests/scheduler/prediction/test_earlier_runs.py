"""Jobs whose owner says nothing of their run time: earlier runs do, in the coordinator as users start it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal, ended_jobs
from scheduler.engines.local.discovery import divide
from scheduler.engines.local.engine import LocalEngine
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, EstimateKind, Placement, Pool
from scheduler.prediction.run_times import AT_ONCE, RunTimePredictor, better, run_of
from tests.support.coordinator import Up
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit

NAP = ["sleep", "0.4"]
CORES = Cluster((Pool("core", 4),))
DEVICES = Cluster((Pool("gpu-0", 1, kind="gpu"), Pool("pocl-0", 1, 1, kind="cpu")))


def ended(number: int, spec: JobSpec, seconds: float, **more: object) -> Entry:
    usage = {"running_s": seconds, "peak_memory_mb": 50.0}
    return Entry(number, spec, "", 0.0, stage=Stage.DONE, attempt=1, usage=usage, **more)  # type: ignore[arg-type]


def test_what_ran_before_is_what_is_expected(up: Up) -> None:
    """From nothing, after a first run, over a kill, to the calibration."""
    up.start("--policy", "easy")
    first = up.client.submit(NAP, name="nap")
    assert first.wait(60)["predicted"] is None
    up.client.submit(NAP, name="nap").wait(60)
    up.kill()
    up.start("--policy", "easy")
    third = up.client.submit(NAP, name="nap")
    found = third.wait(60)["predicted"]
    told = found["run_s"][""]
    assert told["basis"] == "arguments" and told["n"] == 2 and told["low"] < told["middle"] < told["high"]
    assert told["middle"] >= 0.4 and found["memory_mb"]["middle"] > 0
    one = next(f for f in third.info()["forecasts"] if f["kind"] == "run-time")
    assert one["predicted"] == pytest.approx(told["middle"]) and one["measured"] >= 0.4
    assert one["detail"]["rests_on"] == "same program and arguments"
    words = up.run("info", "last").stdout
    assert "expected to run 0.4" in words and "same program and arguments" in words
    rows = json.loads(up.run("program", "calibration", "--kind", "run-time", "--json").stdout)["summary"]
    assert sum(row["n"] for row in rows) == 2
    said = json.loads(up.run("program", "predict", "nap", "--json").stdout)
    (took,) = [row for row in said["predictions"] if row["quantity"] == "run_s"]
    assert took["n"] == 3 and said["arguments"] == ["0.4"]
    scaled = json.loads(up.run("program", "predict", "nap", "--json", "--", "0.8").stdout)["predictions"]
    assert scaled[0]["basis"] == "name"
    assert "same program and arguments" in up.run("program", "predict", "nap").stdout
    unknown = up.run("program", "predict", "nothing", "--user", "nobody-at-all")
    assert unknown.returncode == 2 and "nothing is known of nothing" in unknown.stderr


@pytest.mark.slow
def test_what_users_state_is_no_prediction(up: Up) -> None:
    """Said by --expect: told as that, and kept apart from what earlier runs say."""
    up.start("--policy", "easy")
    for needs in ({"expect_s": {"": 5.0}}, {"expect_s": {"": 5.0}}, {}):
        job = up.client.submit(NAP, name="nap", **needs)
        found = job.wait(60)
        (one,) = found["forecasts"]
        words = up.run("info", str(job.id)).stdout
        if needs:
            assert found["predicted"] is None
            assert (one["predicted"], one["stated"], one["detail"]["rests_on"]) == (
                None,
                5.0,
                "stated by the user",
            )
            assert "stated by the user to run 5 s\n" in words and "expected" not in words
            assert "run-time: stated by the user 5, measured" in words and "predicted" not in words
        else:
            assert one["predicted"] == pytest.approx(0.4, rel=0.5) and one["stated"] is None
            assert "run-time: predicted" in words and "stated" not in words
    told = json.loads(up.run("program", "calibration", "--kind", "run-time", "--json").stdout)
    assert [(row["n"], row["stated"]) for row in told["summary"]] == [(1, None), (2, 5.0)]
    assert [one["stated"] for one in told["forecasts"]] == [5.0, 5.0, None]
    assert "core, stated by users" in up.run("program", "calibration").stdout


def test_unrelated_jobs_are_no_plan(up: Up) -> None:
    """One short job has ended: nothing is expected of another program, and what is known is told."""
    up.start("--policy", "easy", "--cores", "1")
    up.client.submit(["true"]).wait(60)
    long = up.client.submit(["sleep", "60"])
    job = up.client.submit(["sh", "-c", "echo hello", "other"])
    found = job.info()
    assert found["predicted"] is None and long.info()["forecasts"] == []
    unrelated = found["from_unrelated_jobs"]
    assert unrelated["n"] == 1 and unrelated["middle"] < 5 and not unrelated["proved"]
    assert "from unrelated jobs of yours; not used for planning: " in up.run("info", str(job.id)).stdout
    said = up.run("program", "predict", "other", "--json")
    (row,) = json.loads(said.stdout)["predictions"]
    assert not row["proved"] and row["rule"].endswith("unrelated jobs; not used for planning")
    long.cancel()
    assert job.wait(60)["forecasts"] == [] and job.info()["from_unrelated_jobs"] is None


def test_a_prediction_lets_pass_and_never_kills(tmp_path: Path) -> None:
    """A short job passes the one that waits for both cores, because the running job is known to run longer.

    A job that then runs four times as long as ever before comes to its end.
    """
    engine = ManualEngine(cores=2)
    with engine.coordinator(tmp_path / "home", "easy") as coordinator:
        for name, seconds in (("slow", 2.0), ("quick", 0.1)):
            earlier = submit(coordinator, name=name, time_s=None)
            coordinator.turn()
            engine.wait(seconds)
            engine.end(earlier, ran_s=seconds)
            coordinator.turn()
        runs = submit(coordinator, name="slow", time_s=None)
        coordinator.turn()
        wide = submit(coordinator, name="wide", time_s=None, cores=2)
        passes = submit(coordinator, name="quick", time_s=None)
        coordinator.turn()
        assert shown(coordinator, runs, wide, passes) == ["running", "waiting", "running"]
        engine.wait(9.0)
        engine.end(passes, ran_s=0.1)
        coordinator.turn()
        assert shown(coordinator, runs, wide) == ["running", "waiting"] and engine.asks == []
        engine.end(runs, ran_s=9.0)
        coordinator.turn()
        assert shown(coordinator, wide) == ["running"] and engine.asks == []


def test_jobs_that_wait_hear_of_the_first_that_ends(tmp_path: Path) -> None:
    """Submitted all at once, they keep their order; what the second now expects outlives a restart."""
    engine, spec = ManualEngine(cores=1), JobSpec(command=("sleep", "1"), folder="/", name="nap")
    with engine.coordinator(tmp_path / "home", "easy") as coordinator:
        jobs = [entry.id for entry in coordinator.submit([spec] * 3, {})]
        coordinator.turn()
        engine.wait(1.0)
        engine.end(jobs[0], ran_s=1.0)
        coordinator.turn()
        before = coordinator.job_table.entries[jobs[2]].predicted
    with engine.coordinator(tmp_path / "home", "easy") as coordinator:
        assert before and coordinator.job_table.entries[jobs[2]].predicted == before
        for job in jobs[1:]:
            coordinator.turn()
            engine.wait(1.0)
            engine.end(job, ran_s=1.0)
        coordinator.turn()
        first = coordinator.job_table.entry(jobs[0])
        assert first is not None and first.predicted is None
    assert engine.begun == [(job, 1) for job in jobs]


def test_who_says_something_is_believed() -> None:
    """A limit stays a limit, an expectation an expectation."""
    spec = JobSpec(command=("sim", "5"), folder="/")
    predictor = RunTimePredictor([ended(1, spec, 10.0)], "ann", CORES)
    limited = spec.model_copy(update={"time_s": 60.0})
    (told, nothing) = predictor.expect([spec, limited])
    assert nothing is None
    job, other = (as_job(2, 0.0, one, CORES, user="ann", predicted=told) for one in (spec, limited))
    assert (job.estimate_s, job.estimate_kind) == (
        20.0,
        EstimateKind.PREDICTED,
    )  # 9 of 10 keep to it; a factor 2 of one run
    assert job.quantiles_s == {"": pytest.approx((5.0, 10.0, 20.0))}
    assert (other.estimate_s, other.estimate_kind) == (60.0, EstimateKind.LIMIT)
    assert other.quantiles_s == {}
    failed = ended(3, spec, 1.0)
    failed.stage = Stage.FAILED
    again = ended(4, spec, 1.0)
    again.attempt = 2
    assert run_of(failed, "ann") is run_of(again, "ann") is None


def test_each_device_has_its_own_history() -> None:
    """A device on which it has never run is tried: it is taken to be as good as the best known."""
    spec = JobSpec(command=("sim", "5"), folder="/", checkpoint_signal=23)
    on_cpu = ended(1, spec, 60.0, placement=Placement("pocl-0", 1), devices=(1,))
    assert on_cpu.usage is not None
    on_cpu.usage["registered_mb"] = 800.0
    predictor = RunTimePredictor([on_cpu], "ann", DEVICES)
    (told,) = predictor.expect([spec])
    job = as_job(2, 0.0, spec, DEVICES, user="ann", predicted=told)
    assert job.estimates_s == {"gpu-0": 60.0, "pocl-0": 60.0} and job.estimate_kind is EstimateKind.PREDICTED
    assert job.quantiles_s == {"pocl-0": pytest.approx((30.0, 60.0, 120.0))}
    predictor.ended(ended(3, spec, 6.0, placement=Placement("gpu-0", 1), devices=(0,)))
    (told,) = predictor.expect([spec])
    job = as_job(4, 0.0, spec, DEVICES, user="ann", predicted=told)
    assert job.estimates_s == {"gpu-0": 6.0, "pocl-0": 60.0}


def test_a_sweep_is_looked_at_seldom() -> None:
    """550 jobs of ever new arguments are predicted anew after 1, 2, 4, 8, ... kinds, and each twelfth."""
    predictor = RunTimePredictor([], "ann", CORES)
    specs = [JobSpec(command=("sim", str(n)), folder="/") for n in range(1, 101)]
    for number in range(1000, 1000 + 11 * AT_ONCE):
        predictor.watch(Entry(number, JobSpec(command=("sim", str(number)), folder="/"), "", 0.0))
    looks = [n for n, spec in enumerate(specs, 1) if predictor.ended(ended(n, spec, 1.0))]
    assert looks == sorted({1, 2, 4, 8, 16, 32, 64, *range(12, 101, 12)}) and not predictor.ended(
        ended(200, specs[0], 1.0)
    )


@pytest.mark.parametrize("cluster", [CORES, DEVICES])
def test_an_end_is_told_to_those_whom_it_tells_something(cluster: Cluster) -> None:
    """After each new kind of run all that wait are predicted as if each had been looked at."""
    chance = random.Random(5)
    on_device = cluster is DEVICES
    words = [(), *((str(2**n), *more) for n in range(6) for more in ((), ("x",), ("3",), ("x", "7")))]
    kinds = [
        (JobSpec(command=(name, *more), folder="/", account=user, cores=cores), pool.name)
        for name in ("sim", "fit", "fft")
        for more in words
        for user in ("ann", "ben")
        for cores in (1, 2)
        for pool in cluster.pools
    ]
    others = [
        (JobSpec(command=(f"other{n}",), folder="/", account="ann"), pool)
        for n, (_, pool) in enumerate(kinds[:20])
    ]
    bases = set()
    for _ in range(4):
        predictor = RunTimePredictor([], "ann", cluster)
        waiting = {n: Entry(n, chance.choice(kinds)[0], "", 0.0) for n in range(40)}
        for entry in waiting.values():
            predictor.watch(entry)
        for number, (spec, pool) in enumerate([*others, *chance.sample(kinds, 80)], 100):
            seconds = chance.choice((1.0, 1.1) if number < 120 else (1.0, 1.1, 1.5, 9.0))
            more = {"placement": Placement(pool, 1), "devices": (0,)} if on_device else {}
            told = [waiting[n] for n in predictor.ended(ended(number, spec, seconds, **more)) if n in waiting]
            so_far = [entry.predicted for entry in told]
            for entry, new in zip(told, predictor.expect([e.spec for e in told], so_far), strict=True):
                if new is not None:
                    entry.predicted = new
                    predictor.watch(entry)
            fresh = predictor.expect([entry.spec for entry in waiting.values()])
            for entry, new in zip(waiting.values(), fresh, strict=True):
                assert new is None or not better(new, entry.predicted), (entry, new)
            bases |= {
                found["basis"]
                for e in waiting.values()
                if e.predicted
                for found in e.predicted["run_s"].values()
            }
            if number % 4 == 0:
                predictor.forget(waiting.popitem()[1])
    assert bases == {"user", "name", "scaled", "arguments"}


def test_an_end_costs_no_more_where_more_wait(tmp_path: Path) -> None:
    """Names of their own, and nothing said of run times: each job is predicted when it comes.

    And once more if the rule by user has proved right, but not at each end.
    """
    machine = divide("easy", 1, None)
    for count in (50, 400):
        home = tmp_path / str(count)
        journal, engine = Journal(home), LocalEngine(home, home / "r", machine.cluster, machine.cores)
        try:
            coordinator = Coordinator(journal, engine, "easy")
            specs = [JobSpec(command=("true",), folder="/", name=f"n{n}") for n in range(count)]
            coordinator.submit(specs, dict(os.environ))
            while len(coordinator.job_table.entries) > count - 20:
                coordinator.turn()
            assert coordinator.run_times.predictions <= 2 * count
        finally:
            engine.close()
            journal.close()


def test_the_journal_is_read_while_its_coordinator_runs(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    spec = JobSpec(command=("sim", "5"), folder="/")
    one = ended(journal.next_id(), spec, 10.0, predicted={"run_s": {}})
    journal.commit((), added=[one, Entry(journal.next_id(), spec, "", 1.0)])
    assert ended_jobs(tmp_path, 10) == [one]
    journal.close()
