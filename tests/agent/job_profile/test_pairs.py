"""``tenbin program pairs``: predictions against brute force, and real runs side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agent.job_profile import pair_trials
from agent.job_profile.pair_trials import Program, Times, run_pairs
from agent.job_profile.trial import CommandFailed
from agent.node_profile.identity import node_kind
from profiles.files.store import JobStore
from profiles.jobs import JobProfile
from profiles.models.contention import beside_on_network as on_network
from scheduler.policies.sharing.pairing import directions, node_s, suggestions
from tests.support.job_profiles import FULL_GBS, RUN_S, make_job, over_hosts, samples
from tests.support.labs.components import processes_below, require
from tests.support.programs import tenbin

pytestmark = pytest.mark.usefixtures("own_lock")
CPUS = sorted(os.sched_getaffinity(0))


def job(name: str, suffers: float, presses: float, run_s: float = RUN_S, **changes: Any) -> JobProfile:
    runs, windows = samples(suffers=suffers, pressure_gbs=presses, repetitions=3)
    runs = runs.assign(wall_s=runs["wall_s"] * run_s / RUN_S)
    return make_job(name, runs, windows, **changes)


@pytest.fixture(scope="module")
def jobs() -> list[JobProfile]:
    return [
        job("a", 0.08, 9.0),
        job("b", 0.06, 8.0),
        job("c", 0.01, 0.5),
        job("d", 0.02, 1.0),
        job("e", 0.0, 2.0),
    ]


def ways(left: Sequence[int], most: int = 2) -> Iterator[list[tuple[int, ...]]]:
    """Every way to divide jobs into groups of at most so many."""
    if not left:
        yield []
        return
    first, *rest = left
    for size in range(most):
        for others in combinations(rest, size):
            for way in ways([member for member in rest if member not in others], most):
                yield [(first, *others), *way]


def far(name: str, presses: float, share: float, memory: float = 0.5) -> JobProfile:
    """Make a job over two hosts: comprobe loses 5 % for each of ``presses``; MPI takes ``share`` of time."""
    runs, windows = over_hosts(
        samples(suffers=0.02, pressure_gbs=memory, repetitions=3),
        samples(suffers=share / 10, pressure_gbs=presses, repetitions=3),
    )
    return make_job(name, runs.assign(mpi_share=share), windows, mpi=True, ranks=2, hosts=("n1", "n2"))


def test_each_direction_is_the_sensitivity_at_the_pressure(jobs: list[JobProfile]) -> None:
    predictions = {(way.job, way.beside): way.predicted for way in directions(jobs[:3])}
    assert len(predictions) == 9
    for (a, b), truth in {("a", "c"): 1 + 0.08 * 0.5, ("c", "a"): 1 + 0.01 * 9, ("a", "a"): 1.72}.items():
        predicted = predictions[a, b]
        assert predicted is not None and predicted.value == pytest.approx(truth)


def test_two_jobs_have_a_node_until_the_longer_one_has_ended_undisturbed() -> None:
    """20 s of work at half speed beside 5 s of work at half speed: 10 s together, then 15 s alone."""
    long, short = job("long", 0.1, 10.0, run_s=20.0), job("short", 0.1, 10.0, run_s=5.0)
    assert node_s([long, short]) == node_s([short, long]) == pytest.approx(10 + 15)
    assert node_s([long]) == pytest.approx(20)
    assert node_s([short, short]) == pytest.approx(10)


def test_a_job_of_which_nothing_is_known_promises_no_gain(jobs: list[JobProfile]) -> None:
    runs, windows = samples()
    mute = make_job("mute", runs, windows[windows["phase"] == "reference"])
    assert node_s([mute, jobs[2]]) == pytest.approx(2 * RUN_S)


def test_three_jobs_go_on_less_disturbed_as_others_end() -> None:
    """Each GB/s costs 2 %, each job presses with 5 GB/s: 1.2 times slower beside two, 1.1 beside one."""
    run_s = {"a": 5.0, "b": 10.0, "c": 15.0}
    first, second, third = (job(name, 0.02, 5.0, run_s=s) for name, s in run_s.items())
    # a ends at 6; b has 5 left: until 11.5; c has 15 - 6 / 1.2 - 5.5 / 1.1 = 5 left.
    assert node_s([first, second, third]) == pytest.approx(6 + 5.5 + 5)
    assert node_s([third, first, second]) == pytest.approx(6 + 5.5 + 5)


@pytest.mark.parametrize(("count", "most"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (5, 4)])
def test_matching_takes_least_time_of_all_ways(jobs: list[JobProfile], count: int, most: int) -> None:
    members = jobs[:count]
    matched = next(entry for entry in suggestions(members, most) if entry.rule == "matching")
    best = min(sum(node_s([members[i] for i in group]) for group in way) for way in ways(range(count), most))
    assert matched.paired_s == pytest.approx(best)
    assert sorted(name for group in matched.groups for name in group) == [member.name for member in members]
    assert matched.alone_s == pytest.approx(count * RUN_S)


def test_the_rule_pairs_least_with_most_pressure(jobs: list[JobProfile]) -> None:
    ruled = next(entry for entry in suggestions(jobs[:4]) if entry.rule == "rule")
    assert {frozenset(group) for group in ruled.groups} == {frozenset("ac"), frozenset("bd")}


def test_groups_that_need_more_cores_than_a_node_has_are_not_made(jobs: list[JobProfile]) -> None:
    for suggestion in suggestions(jobs, 4, cores=3):
        assert max(map(len, suggestion.groups)) == (2 if suggestion.rule == "rule" else 3)
    for suggestion in suggestions(jobs, 4, cores=1):
        assert [len(group) for group in suggestion.groups] == [1] * 5 and suggestion.gain_percent == 0


def test_jobs_over_hosts_suffer_on_the_network_too(jobs: list[JobProfile]) -> None:
    """Memory: 2 % a GB/s at 0.5 GB/s; the network on top of that."""
    far_jobs = [far("a", presses=4.0, share=0.7), far("b", presses=1.0, share=0.0)]
    predictions = {(way.job, way.beside): way.predicted for way in directions(far_jobs)}
    for a, b in [(0, 0), (0, 1), (1, 0)]:
        predicted, network = (
            predictions[far_jobs[a].name, far_jobs[b].name],
            on_network(far_jobs[a], [far_jobs[b]]),
        )
        assert predicted is not None and network is not None
        assert predicted.value == pytest.approx(1.01 + network.value - 1)
        assert predicted.low <= predicted.value <= predicted.high
        assert (network.value > 1.05) == (a == b == 0)
    here = {(way.job, way.beside): way.predicted for way in directions([far_jobs[1], jobs[0]])}
    mixed = here["b", "b"]  # of the other nothing is known over hosts: memory only
    assert mixed is not None and mixed.value == pytest.approx(1.01)


def test_the_network_is_predicted_where_memory_cannot_be() -> None:
    """Memprobe does not suffer beside itself: what it costs is a busy core, and comprobe costs one too."""
    for suffers in (0.01, 0.3):
        tables = over_hosts(samples(suffers, law=0.0), samples(suffers=0.1, pressure_gbs=3.0))
        job = make_job("a", *tables)
        (direction,) = directions([job])
        network = on_network(job, [job])
        assert direction.predicted is not None and network is not None
        assert direction.predicted.value == pytest.approx(max(1 + suffers * FULL_GBS, network.value))


def test_the_rule_passes_over_a_pair_that_the_network_forbids() -> None:
    """By pressure on memory the pair would be quiet + talks.

    But talks is half its time inside MPI, and quiet slows comprobe down by 20 %.
    """
    quiet = far("quiet", presses=4.0, share=0.01, memory=0.1)
    talks = far("talks", presses=0.2, share=0.5, memory=8.0)
    silent = far("silent", presses=0.2, share=0.01, memory=6.0)
    other = far("other", presses=0.2, share=0.01, memory=1.0)
    ruled = next(entry for entry in suggestions([quiet, talks, silent, other]) if entry.rule == "rule")
    assert {frozenset(g) for g in ruled.groups} == {
        frozenset({"quiet", "silent"}),
        frozenset({"talks", "other"}),
    }
    assert ruled.excluded == (("quiet", "talks"),)


# --- real runs


def sleeper(name: str, seconds: float) -> Program:
    return Program(name, ("sleep", str(seconds)), "/", 1)


def test_every_run_of_a_pair_is_beside_the_other() -> None:
    require(len(CPUS) > 1, "two CPUs")
    steps: list[str] = []
    programs = [sleeper("long", 1.0), sleeper("short", 0.2)]
    times = run_pairs(programs, [(0, 1), (1, 1)], CPUS, 2, limit_s=60.0, tell=steps.append)
    assert {name: len(runs) for name, runs in times.alone.items()} == {"long": 4, "short": 4}
    assert {pair: len(runs) for pair, runs in times.beside.items()} == {
        ("long", "short"): 2,
        ("short", "long"): 2,
        ("short", "short"): 2,
    }
    assert all(run["wall"] >= 1.0 for run in times.beside["long", "short"])
    assert len(times.slowdowns("long", "short", "wall")) == 2
    assert len(steps) == 2 * 6 and not processes_below()


def test_a_program_beside_itself_is_not_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program starts at a random time of the other's run."""
    require(len(CPUS) > 1, "two CPUs")
    starts: list[tuple[list[str], float]] = []
    real = pair_trials._together

    def seen(members: Sequence[Program], cpus: Sequence[int], limit_s: float, ahead_s: float) -> Any:
        starts.append(([member.name for member in members], ahead_s))
        return real(members, cpus, limit_s, ahead_s)

    monkeypatch.setattr(pair_trials, "_together", seen)
    programs = [sleeper(name, 0.2)._replace(run_s=0.2) for name in ("a", "b")]
    times = run_pairs(programs, [(0, 0), (0, 1)], CPUS, 4, limit_s=60.0)
    assert len(times.beside["a", "a"]) == len(times.beside["b", "a"]) == 4
    ahead = [ahead_s for names, ahead_s in starts if names == ["a", "a"]]
    assert len(set(ahead)) == 4 and all(0 < ahead_s < 0.2 for ahead_s in ahead)
    assert {ahead_s for names, ahead_s in starts if names != ["a", "a"]} == {0.0}
    assert not processes_below()


def test_one_that_starts_ahead_is_at_work_when_the_other_begins(tmp_path: Path) -> None:
    require(len(CPUS) > 1, "two CPUs")
    notes = tmp_path / "notes"
    late, ahead = (
        Program(name, ("sh", "-euc", f"echo {name} >> {notes}; sleep 0.2"), "/", 1)
        for name in ("late", "ahead")
    )
    [of_late, _] = pair_trials._together([late, ahead], CPUS, 60.0, ahead_s=1.0)
    began = notes.read_text().split()
    assert began[:2] == ["ahead", "ahead"]  # it is started again and again
    assert began.count("late") == 1 == len(of_late) and of_late[0].wall_s >= 0.2
    assert not processes_below()


def test_every_run_of_a_pair_begins_anew() -> None:
    """One with tenbin.Checkpoint would go on where the run before was, from a file in its job folder."""
    require(len(CPUS) > 1, "two CPUs")
    word = (
        'test -z "$(ls -A "$TENBIN_JOB_FOLDER")"; echo 1 > "$TENBIN_JOB_FOLDER/checkpoint.tenbin"; sleep 0.2'
    )
    programs = [Program(name, ("sh", "-euc", word), "/", 1) for name in ("one", "other")]
    times = run_pairs(programs, [(0, 1)], CPUS, 2, limit_s=60.0)
    assert len(times.beside["one", "other"]) == 2


def test_a_program_that_fails_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"broken: .* did not succeed .*no such grid.*measure it again"):
        broken = Program("broken", ("sh", "-c", "echo no such grid >&2; exit 2"), "/", 1)
        run_pairs([broken], [], CPUS, 1, limit_s=60.0)
    with pytest.raises(CommandFailed, match=r"endless: .*took too long"):
        run_pairs([sleeper("endless", 600)], [], CPUS, 1, limit_s=0.5)
    assert not processes_below()


def test_a_slow_down_is_held_against_both_runs_alone_of_its_repetition() -> None:
    alone = [{"wall": seconds, "cpu": 1.0} for seconds in (9.0, 11.0, 20.0, 20.0, 10.0)]
    beside = [{"wall": seconds, "cpu": 1.0} for seconds in (15.0, 30.0, 15.0)]
    times = Times({"a": alone}, {("a", "b"): beside})  # type: ignore[dict-item]
    assert times.slowdowns("a", "b", "wall") == [1.5, 1.5]  # the last repetition is not complete


def test_the_noise_floor_is_the_change_between_runs_alone() -> None:
    runs = [{"wall": seconds, "cpu": 1.0} for seconds in (10.0, 11.0, 11.0, 8.8)]
    times = Times(alone={"a": runs})  # type: ignore[dict-item]
    assert times.noise("a", "wall") == pytest.approx(0.1)
    assert times.noise("a", "cpu") == times.noise("nobody", "wall") == 0.0


# --- the command


def test_pairs_are_printed_with_what_they_gain(tmp_path: Path, jobs: list[JobProfile]) -> None:
    store = JobStore(tmp_path)
    assert "no job profile of this kind of node" in tenbin("program", "pairs", store=tmp_path).stderr
    for entry in jobs[:4]:
        store.save(entry.model_copy(update={"kind": node_kind()}), {})
    shown = tenbin("program", "pairs", store=tmp_path)
    assert shown.returncode == 0 and "least predicted loss (matching)" in shown.stdout
    answer = json.loads(tenbin("program", "pairs", "a", "c", "--json", store=tmp_path).stdout)
    assert len(answer["directions"]) == 4 and answer["noise_ratio"] is None
    matched = next(entry for entry in answer["suggestions"] if entry["rule"] == "matching")
    # a ends first, after 1.04 times its run time; what c, slowed down 1.09 times, has left goes undisturbed.
    assert matched["groups"] == [["a", "c"]]
    assert matched["gain_percent"] == pytest.approx(100 * (1 - (10.4 + 10 - 10.4 / 1.09) / 20))
    bad = tenbin("program", "pairs", "a", "nobody", store=tmp_path)
    assert bad.returncode == 2 and "no job profile 'nobody'" in bad.stderr


@pytest.mark.slow
def test_verify_runs_them_and_prints_the_error(tmp_path: Path) -> None:
    require(len(CPUS) > 1, "two CPUs")
    store = JobStore(tmp_path)
    still = job("still", 0.0, 0.0, run_s=1.0, command=("sleep", "1"), kind=node_kind())
    store.save(still, {})
    done = tenbin("program", "pairs", "still", "--verify", "--repetitions", "2", "--json", store=tmp_path)
    if "another profile is measuring" in done.stderr:
        pytest.skip("this machine is being profiled by somebody else")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["directions"]
    assert row["predicted"]["value"] == pytest.approx(1.0)
    assert row["measured"]["n"] == 2 and 0.3 < row["measured"]["value"] < 3
    assert row["error"] == pytest.approx(1.0 - row["measured"]["value"])
    refused = tenbin("program", "pairs", "still", "--verify", "--limit", "never", store=tmp_path)
    assert refused.returncode == 2
