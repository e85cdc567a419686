"""``tenbin program again``: a job profile of several sessions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer

from agent.job_profile.profiler import check_samples, make_job_profile, pooled, same_again
from agent.job_profile.session import JobOrder
from agent.node_profile.identity import node_kind
from profiles.errors import BadInput
from profiles.files.store import JobStore
from profiles.fits.job import fit
from profiles.models.contention import slowdown_beside
from tenbin.commands.job import again
from tests.support.job_profiles import make_job, samples, shorten_sessions
from tests.support.labs.components import processes_below, require
from tests.support.programs import tenbin
from tests.support.records import make_model

pytestmark = pytest.mark.usefixtures("own_lock")


def test_pooled_is_what_one_longer_session_would_have_said() -> None:
    runs, windows = samples(noise=0.03, repetitions=12)
    parts = []
    for half, shift in ((runs["repetition"] <= 5, 0), (runs["repetition"] > 5, 5)):
        kept = set(runs[half]["repetition"])
        parts.append(
            {
                name: table[table["repetition"].isin(kept)].assign(
                    repetition=lambda rows, shift=shift: rows["repetition"] - shift
                )
                for name, table in (("runs", runs), ("windows", windows))
            }
        )
    first, second = (make_job("a", **part) for part in parts)
    made, tables = pooled(second, parts[1], first, parts[0])
    assert made.repetitions == 12 and made.sessions == 2 and made.duration_s == 120.0
    assert {name: getattr(made, name) for name in fit(runs, windows)._fields} == fit(runs, windows)._asdict()
    assert sorted(tables) == ["runs", "windows"] and len(tables["windows"]) == len(windows)


def test_what_differs_from_hour_to_hour_is_in_the_interval_then() -> None:
    """Each hour its own law: the truth, their mean, is in the interval of both together, and of neither."""
    hours = [
        dict(zip(("runs", "windows"), samples(suffers=s, noise=0.001), strict=True)) for s in (0.04, 0.06)
    ]
    jobs = [make_job("a", **hour) for hour in hours]
    made, _ = pooled(jobs[1], hours[1], jobs[0], hours[0])
    truth = 1 + 0.05 * 5
    *singles, whole = (slowdown_beside(job, [job]) for job in (*jobs, made))
    assert all(single is not None and not single.low <= truth <= single.high for single in singles)
    assert whole is not None and whole.low <= truth <= whole.high
    assert whole.value == pytest.approx(truth, rel=0.05)


def test_what_else_was_known_is_kept_and_the_condition_is_the_mean() -> None:
    hour = dict(zip(("runs", "windows"), samples(), strict=True))
    quiet = make_job("a", note="one")
    busy_condition = quiet.condition.model_copy(update={"duration_s": 180.0, "steal_ratio": 0.2})
    busy = make_job("a", condition=busy_condition, note="two", id="20260102T000000Z")
    scaled = quiet.model_copy(update={"scaling": make_model(), "emulated": True})
    made, tables = pooled(busy, hour, scaled, {**hour, "scaling": hour["runs"]})
    assert made.scaling is not None and made.emulated and "scaling" in tables
    assert made.condition.steal_ratio == 0.15 and made.condition.duration_s == 240.0
    assert made.clock == "cpu"  # on the whole others had a good part of the machine
    assert made.note == "one; two" and made.id == "20260102T000000Z"
    again_made, _ = pooled(quiet, hour, made, tables)
    assert again_made.sessions == 3 and again_made.repetitions == 18


def test_the_same_is_measured_again() -> None:
    order = same_again(make_job("a"), 60.0, None)
    assert order == JobOrder("a", ("sleep", "10"), "/tmp", 1, False, 60.0, None, 2)
    ranks = make_job("b", mpi=True, ranks=4, cpus=(0, 1), hosts=("x", "y"), quick=True)
    order = same_again(ranks, 60.0, 90.0)
    assert (order.cores, order.mpi, order.hosts, order.quick) == (4, True, ("x", "y"), True)


@pytest.mark.slow
def test_a_real_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two CPUs")
    shorten_sessions(monkeypatch)
    store = JobStore(tmp_path)
    made, tables = make_job_profile(JobOrder("sleeper", ("sleep", "0.3"), "/", quick=True))
    store.save(made.model_copy(update={"id": "20260101T000000Z"}), tables)
    with pytest.raises(typer.Exit) as ended:
        again("sleeper", store=tmp_path)
    assert ended.value.exit_code == 0
    said = capsys.readouterr().out
    assert "2 repetitions in 2 sessions" in said and "1 earlier of this name are kept" in said
    newest = store.load("sleeper", node_kind().key)
    assert newest.sessions == 2 and newest.need("run_s") is not None
    need = newest.need("run_s")
    assert need is not None and need.n == 2 and need.value >= 0.3
    shown = tenbin("program", "show", "sleeper", "--json", store=tmp_path)
    assert json.loads(shown.stdout)["sessions"] == 2
    assert store.load("sleeper@20260101", node_kind().key) == made.model_copy(
        update={"id": "20260101T000000Z"}
    )
    assert not processes_below()


def test_what_cannot_go_on_is_said_in_one_line(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(make_job("far"), {})
    store.save(make_job("bare", kind=node_kind()), {})
    for name, says in (
        ("none", "no job profile 'none'"),
        ("far", "made on another kind of node"),
        ("bare", "has no table of runs and windows to go on from"),
    ):
        done = tenbin("program", "again", name, store=tmp_path)
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1
        assert f"tenbin program profile {name} -" in done.stderr  # what to do
    assert len(store.paths()) == 2
    with pytest.raises(BadInput, match="no table of windows"):
        check_samples(make_job("a"), {"runs": samples()[0]})
