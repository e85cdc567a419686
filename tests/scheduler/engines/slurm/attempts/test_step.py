"""Steps of an attempt, row by row: each row is a state, or a race, that was met on a real cluster."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Request, Result, RunState, Usage
from agent.multi_node.lease import MARGIN_S
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempt_step import (
    AGAIN_S,
    PATIENCE_S,
    REST_S,
    SETTLES_S,
    VERDICT_S,
    Cancel,
    ClusterView,
    Do,
    Expect,
    Fence,
    FolderView,
    Look,
    PutBack,
    Refused,
    Revoke,
    SlurmAttempt,
    WaitsAgain,
    requested,
    settled,
    step,
)
from scheduler.engines.slurm.poller import Outcome
from scheduler.engines.slurm.sbatch_queue import SbatchJob
from scheduler.engines.slurm.slurm_commands import (
    SlurmError,
    SlurmForbidden,
    SlurmJob,
    SlurmNodeRefused,
    SlurmSilent,
)

NOW, LEASE_S = 1000.0, 30.0
VIEW = ClusterView(1, NOW, 5000.0, LEASE_S, {}, {}, frozenset(), {})
OWN = SlurmAttempt(
    job_id=7,
    number=1,
    cpus={"n1": 2},
    folder=Attempt(Path("/store/jobs/7/attempt-1")),
    comment="tenbin:me:7:1",
    slurm=42,
)
RUNS = replace(OWN, started=True)
EMPTY = FolderView()
CLAIMED = FolderView(claimed=True)
BEGUN = FolderView(state=RunState(1, 2, 4000.0), claimed=True)
PARKED = RunState(1, 2, 4000.0, paused=True, done=1, parked_mb=8.0, device="pocl-0")
USAGE = Usage(1.0, 1.0, 0.0, 0.0, 0.0)
DONE = Result("exited", 4500.0, code=0, usage=USAGE)
FAILED = Result("exited", 4500.0, code=1, usage=USAGE)
KILLED = Result("signalled", 4500.0, signal=signal.SIGKILL, usage=USAGE)
INTERRUPTED = Result("interrupted", 4500.0, usage=USAGE)
LOST_NODE: dict[str, Any] = {"lost": {"n1": "down"}, "away": {"n1": "down"}}


def seen(state: str, start_s: float = 3999.0, nodes: tuple[str, ...] = ("n1",)) -> SlurmJob:
    return SlurmJob(42, state, "None", nodes, OWN.comment, start_s)


def own(**changes: Any) -> SlurmAttempt:
    return replace(OWN, **changes)


def runs(**changes: Any) -> SlurmAttempt:
    return replace(RUNS, **changes)


def begun(**changes: Any) -> FolderView:
    return replace(BEGUN, **changes)


def ended(attempt: SlurmAttempt) -> SlurmAttempt:
    """Return an attempt whose end Slurm told long ago."""
    return replace(attempt, final_since=NOW - SETTLES_S)


def given_up(attempt: SlurmAttempt, ago_s: float = 1.0) -> SlurmAttempt:
    return replace(attempt, fenced_at=NOW - ago_s, trouble="n1 is lost: down", cancelled=True)


class Row(NamedTuple):
    """A step and what it must say: effects by type, with what stands in them.

    What is not named is as usual: an attempt that has begun, and runs in Slurm.
    """

    about: str
    effects: list[Any]
    attempt: SlurmAttempt = RUNS
    folder: FolderView = BEGUN
    job: SlurmJob | str | None = "RUNNING"
    view: dict[str, Any] = {}  # noqa: RUF012
    trouble: str = ""


ROWS = [
    # Results.
    Row("a result is believed before Slurm", ["ended"], folder=begun(result=DONE)),
    Row("a result is reported though Slurm forgot the job", ["ended"], folder=begun(result=DONE), job=None),
    Row(
        "who ended a killed job Slurm is asked once, at once",
        [Look(0.1, ("n1",))],
        folder=begun(result=KILLED),
    ),
    Row("nor asked again in the same snapshot", [], runs(awaits_after=1), folder=begun(result=KILLED)),
    Row("cancelled in Slurm", ["ended cancelled"], folder=begun(result=KILLED), job="CANCELLED"),
    Row("its limit in Slurm", ["ended time-limit"], folder=begun(result=KILLED), job="TIMEOUT"),
    Row(
        "slurmctld had forgotten the start: CANCELLED is no user's cancel",
        ["ended interrupted"],
        folder=begun(result=INTERRUPTED),
        job=seen("CANCELLED", start_s=4010.0),
    ),
    Row(
        "killed, and its node does not answer: Slurm will not explain that",
        ["ended interrupted"],
        folder=begun(result=INTERRUPTED),
        view={"mute": frozenset({"n1"})},
    ),
    Row(
        "killed, and waited in Slurm when it was seen last: it may have begun since",
        [Look(VERDICT_S, ("n1",))],
        folder=begun(result=INTERRUPTED),
        job="PENDING",
    ),
    Row(
        "killed after a restart of tenbin, before Slurm was seen",
        [Look(VERDICT_S, ("n1",))],
        runs(slurm=None, snapshot=1),
        folder=begun(result=INTERRUPTED),
        job=None,
    ),
    Row(
        "killed, and waits in Slurm again: slurmctld is of an earlier state",
        ["ended interrupted"],
        runs(awaits_after=0),
        folder=begun(result=INTERRUPTED),
        job="PENDING",
    ),
    Row(
        "Slurm was told to end it, because it did not answer",
        ["ended cancelled"],
        runs(want="end", cancelled=True),
        folder=begun(result=INTERRUPTED),
        job="CANCELLED",
    ),
    Row(
        "mpiexec ends by a code of its own when Slurm cancels it with its node",
        ["lost"],
        given_up(RUNS),
        folder=begun(result=FAILED),
        job="CANCELLED",
        trouble="n1 is lost: down",
    ),
    Row(
        "ranks that failed wait for a snapshot: a node may be lost",
        [Look(0.0, ("n1", "n2"))],
        runs(cpus={"n1": 1, "n2": 1}),
        folder=begun(result=FAILED),
    ),
    Row(
        "the snapshot after says that one is",
        ["lost"],
        runs(cpus={"n1": 1, "n2": 1}, awaits_after=1, snapshots=1),
        folder=begun(result=FAILED),
        view={"mute": frozenset({"n2"})},
        trouble="n2 is lost: no sign of life",
    ),
    Row(
        "or that none is: the program failed",
        ["ended"],
        runs(cpus={"n1": 1, "n2": 1}, awaits_after=1, snapshots=1),
        folder=begun(result=FAILED),
    ),
    Row(
        "its supervisor saw that a node is lost",
        ["lost"],
        runs(awaits_after=1, snapshots=1, cancelled=True),
        folder=begun(result=replace(INTERRUPTED, trouble="n2 is lost")),
        job="COMPLETED",
        trouble="n2 is lost",
    ),
    # The job as Slurm has it.
    Row("begun", [Expect(True), "started"], OWN),
    Row("waits", [Expect(False)], OWN, folder=EMPTY, job=seen("PENDING", nodes=())),
    Row("a submission under way may be missing", [], own(slurm=None, calling=True), folder=EMPTY, job=None),
    Row("never came to Slurm", [Expect(False), "revoke never"], own(slurm=None), folder=EMPTY, job=None),
    Row(
        "Slurm has forgotten a job that began",
        [Expect(False), Fence(), Cancel(42)],
        job=None,
        trouble="Slurm does not know it any more",
    ),
    Row("what a node writes is seen late: Slurm's end alone is none yet", [], job="COMPLETED"),
    Row("its supervisor was killed", [PutBack(), "lost"], ended(RUNS), job="FAILED"),
    Row("cancelled before it wrote", [PutBack(), "ended cancelled"], ended(RUNS), job="CANCELLED"),
    Row("memory limit of Slurm", [PutBack(), "ended memory-limit"], ended(RUNS), job="OUT_OF_MEMORY"),
    Row(
        "cancelled by slurmctld that had forgotten the start",
        [PutBack(), "lost"],
        ended(RUNS),
        job=seen("CANCELLED", start_s=4010.0),
    ),
    Row(
        "a noted result counts, though its supervisor died",
        [PutBack(), "ended"],
        ended(RUNS),
        folder=begun(noted=DONE),
        job="FAILED",
    ),
    Row(
        "refused by its node, for a number used before: begins again",
        ["revoke lost"],
        ended(OWN),
        folder=EMPTY,
        job="CANCELLED",
    ),
    Row(
        "cancelled while it waited",
        ["revoke ended"],
        ended(OWN),
        folder=EMPTY,
        job=seen("CANCELLED", nodes=()),
    ),
    Row(
        "its Python is not there",
        ["revoke never"],
        ended(OWN),
        folder=EMPTY,
        job="FAILED",
        trouble="n1 could not start it (FAILED): are /store and its Python there under the same paths?",
    ),
    Row("preempted before it began", ["revoke lost"], ended(OWN), folder=EMPTY, job="PREEMPTED"),
    Row("its node did not boot", ["revoke lost"], ended(OWN), folder=EMPTY, job="BOOT_FAIL"),
    Row(
        "an allocation to be reused was gone",
        ["revoke never"],
        ended(own(passed_on=True)),
        folder=EMPTY,
        job="COMPLETED",
    ),
    Row(
        "a node failed under it",
        [PutBack(), Fence(), Cancel(42)],
        ended(RUNS),
        job="NODE_FAIL",
        trouble="n1: lost (NODE_FAIL)",
    ),
    # Nodes.
    Row("its node is lost", [Expect(True), Fence(), Cancel(42)], view=LOST_NODE, trouble="n1 is lost: down"),
    Row(
        "no beat, and the node is mute",
        [Expect(True), Fence(), Cancel(42)],
        folder=begun(silent=frozenset({"n1"})),
        view={"mute": frozenset({"n1"})},
        trouble="n1 is lost: no sign of life",
    ),
    Row(
        "no more beats, and the node answers: what runs there sees no disk",
        [Expect(True), Fence(), Cancel(42)],
        folder=begun(silent=frozenset({"n1"}), begun=frozenset({"n1"})),
        trouble="what runs on n1 gives no sign of life",
    ),
    Row(
        "never a beat, and the node answers: Slurm is slow to start it",
        [Expect(True)],
        OWN,
        folder=FolderView(silent=frozenset({"n1"})),
    ),
    Row(
        "waits for a node that is drained: taken back",
        [Expect(False), "revoke lost"],
        OWN,
        folder=EMPTY,
        job=seen("PENDING", nodes=()),
        view={"away": {"n1": "drained: service"}},
        trouble="n1 could not be used: drained: service",
    ),
    Row(
        "started, as Slurm believes, on a mute node: taken back",
        [Expect(True), "revoke lost"],
        OWN,
        folder=EMPTY,
        view={"mute": frozenset({"n1"}), "away": {"n1": "no sign"}},
    ),
    Row("on a drained node what has begun goes on", [Expect(True)], view={"away": {"n1": "drained"}}),
    # Attempts that were given up.
    Row("its lease is not over", [], given_up(RUNS), job="NODE_FAIL"),
    Row(
        "its lease is over",
        ["lost"],
        given_up(RUNS, LEASE_S + MARGIN_S),
        job="NODE_FAIL",
        trouble="n1 is lost: down",
    ),
    Row(
        "its keepers say that it has ended",
        ["lost"],
        given_up(RUNS),
        folder=begun(ended=frozenset({"n1"})),
        job="NODE_FAIL",
    ),
    Row(
        "its node is gone, and gave beats until then: nothing runs there any more",
        ["lost"],
        given_up(RUNS),
        folder=begun(begun=frozenset({"n1"}), silent=frozenset({"n1"})),
        job="NODE_FAIL",
        view=LOST_NODE,
    ),
    Row("slurmctld has forgotten that it was cancelled", [Cancel(42)], given_up(RUNS)),
    Row(
        "given up before it began: nobody else may begin it",
        ["revoke lost"],
        given_up(OWN),
        folder=EMPTY,
        job=None,
    ),
    # Requests.
    Row(
        "paused before it began", ["revoke never"], own(want="pause", request=1), folder=EMPTY, job="PENDING"
    ),
    Row(
        "a claim is not begun yet: its supervisor will look for requests",
        [],
        own(want="pause", request=1),
        folder=CLAIMED,
    ),
    Row("told to pause", [Do("wake")], runs(want="pause", request=1)),
    Row("told a moment ago", [], runs(want="pause", request=1, wake_at=NOW + AGAIN_S)),
    Row("told while Slurm has forgotten its start", [], runs(want="pause", request=1), job="PENDING"),
    Row(
        "its clock has stopped: Slurm gets its CPUs back",
        ["obeyed", Do("suspend")],
        runs(want="pause", request=1),
        folder=begun(state=RunState(1, 2, 4000.0, done=1)),
    ),
    Row("one call at a time", [], runs(want="pause", request=1, calling=True)),
    # Programs that are parked.
    Row(
        "to be parked before it began",
        ["revoke never"],
        own(want="park", request=1),
        folder=EMPTY,
        job="PENDING",
    ),
    Row("told to park", [Do("wake")], runs(want="park", request=1)),
    Row(
        "parked: now Slurm gets its CPUs back",
        ["obeyed", Do("suspend")],
        runs(want="park", request=1),
        folder=begun(state=PARKED),
    ),
    Row(
        "parked, and the coordinator was killed before Slurm heard of it",
        [Expect(False), Do("suspend")],
        runs(want="park", request=1, done=1),
        folder=begun(state=PARKED),
    ),
    Row(
        "parked, and Slurm has suspended it",
        [Expect(False)],
        runs(want="park", request=1, done=1),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "cannot be parked: it runs on, and Slurm does not hear of it",
        ["obeyed"],
        runs(want="park", request=1),
        folder=begun(state=replace(PARKED, paused=False, parked_mb=None, refused="uses pipes")),
    ),
    Row(
        "its program is being parked, and its node beats",
        [Expect(True)],
        runs(want="park", request=1, wake_at=NOW + AGAIN_S),
    ),
    Row(
        "parked, and told to go on",
        [Do("resume")],
        runs(want="run", request=2, done=1),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "to be parked again before it went on: it is parked still",
        ["obeyed"],
        runs(want="park", request=3, done=1),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "and looked at again, it is left as it is",
        [],
        runs(want="park", request=3, done=3),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "to be parked again while Slurm lets it go on: its supervisor will tell",
        [],
        runs(want="park", request=3, done=1, calling=True, suspended=True),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "to be parked while somebody else has suspended it: it has to go on for that",
        [Do("resume")],
        runs(want="park", request=1),
        job="SUSPENDED",
    ),
    Row(
        "parked, and cancelled: it has to go on for that",
        [Do("resume")],
        runs(want="end", request=2, done=1, asked_at=NOW),
        folder=begun(state=PARKED),
        job="SUSPENDED",
    ),
    Row(
        "its supervisor was killed while it was parked",
        [PutBack(), "lost"],
        ended(runs(want="park", request=1, done=1)),
        folder=begun(state=PARKED),
        job="FAILED",
    ),
    Row("goes on", [Do("resume")], runs(want="run", request=2), job="SUSPENDED"),
    Row("suspended by somebody else", [], job="SUSPENDED"),
    Row(
        "does not end: Slurm ends it",
        [Cancel(42)],
        runs(want="end", request=1, asked_at=NOW - PATIENCE_S - 1),
    ),
    Row("its cap was changed", [Do("wake")], folder=begun(recap=True)),
    Row(
        "its files were removed: it is told all the same",
        [Do("wake")],
        runs(want="end", request=1, asked_at=NOW),
        folder=EMPTY,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.about for row in ROWS])
def test_step(row: Row) -> None:
    job = seen(row.job) if isinstance(row.job, str) else row.job
    attempt, effects = step(row.attempt, row.folder, job, replace(VIEW, **row.view))
    # Where a row is not about heartbeats, it does not name them.
    about_beats = any(isinstance(effect, Expect) for effect in row.effects)
    effects = [effect for effect in effects if about_beats or not isinstance(effect, Expect)]
    told = [
        in_words(effect, row.effects[n] if n < len(row.effects) else "") for n, effect in enumerate(effects)
    ]
    assert told == row.effects
    if row.trouble:
        reports = [getattr(effect, "report", effect) for effect in effects]
        assert row.trouble in [attempt.trouble, *(getattr(one, "trouble", "") for one in reports)]


def in_words(effect: Any, expected: object) -> object:
    """Return a report as "ended", "ended cancelled" or "revoke lost", as the row says it."""
    report = effect.report if isinstance(effect, Revoke) else effect
    if not isinstance(report, Report):
        return effect
    words = [*(["revoke"] if isinstance(effect, Revoke) else []), report.what]
    if report.result is not None and isinstance(expected, str) and report.result.how in expected:
        words.append(report.result.how)
    return " ".join(words)


def test_what_is_reported_of_a_parked_attempt() -> None:
    """Its state, by the number of the request, though its supervisor has stood still since the one before."""
    attempt = replace(RUNS, want="park", request=3, done=1)
    _, effects = step(attempt, replace(BEGUN, state=PARKED), seen("SUSPENDED"), VIEW)
    (report,) = [effect for effect in effects if isinstance(effect, Report)]
    assert (report.done, report.state) == (3, replace(PARKED, done=3))


def test_a_snapshot_counts_once() -> None:
    """The fence is put up once, and who waits for the next snapshot sees none in the same one."""
    attempt, effects = step(RUNS, BEGUN, None, VIEW)
    assert Fence() in effects
    assert step(attempt, BEGUN, None, VIEW) == (attempt, [])


@pytest.mark.parametrize(
    ("attempt", "outcome", "effects"),
    [
        (replace(OWN, slurm=None), ("submit", 9, None), [Look(2.0)]),
        (replace(OWN, slurm=None), ("submit", None, SlurmSilent("no answer", "")), [Look()]),
        (replace(OWN, slurm=None), ("submit", None, SlurmError("invalid account", "")), ["revoke never"]),
        (replace(OWN, slurm=None), ("submit", None, SlurmNodeRefused("no n1", "")), ["revoke lost"]),
        (replace(OWN, slurm=None), ("submit", None, SlurmError("node n1", "")), ["revoke never"]),
        (RUNS, ("resume", False, None), [Look(0.3)]),
        (RUNS, ("suspend", None, SlurmForbidden("no", "")), []),
        (RUNS, ("wake", None, None), []),
    ],
)
def test_outcomes(attempt: SlurmAttempt, outcome: tuple[Any, ...], effects: list[Any]) -> None:
    attempt, found = settled(replace(attempt, calling=True), Outcome(OWN.key, *outcome), VIEW)
    assert [in_words(effect, "") for effect in found] == effects and not attempt.calling
    if outcome[0] == "suspend":
        assert not attempt.suspended and attempt.wait_until == NOW + 60.0


# -- external jobs --------------------------------------------------------------------------------

PENDING = SbatchJob(
    key="12",
    number="12",
    state="PENDING",
    reason="BeginTime",
    eligible_s=9e9,
    start_s=0.0,
    end_s=0.0,
    submitted_s=1.0,
    status=0,
    request=(),
    required="",
    cpus=2,
    limit_s=600.0,
    restarts=0,
    dependency="",
    held=False,
    user="eve",
    nodes=(),
    begin_s=0.0,
)
RUNNING = PENDING._replace(state="RUNNING", nodes=("n1",), start_s=4000.0)
EXTERNAL = SlurmAttempt(job_id=7, number=1, cpus={"n1": 2}, external="12", restarts=0, seen=PENDING)
HERE = replace(EXTERNAL, started=True)


@pytest.mark.parametrize(
    ("attempt", "job", "effects", "view"),
    [
        (EXTERNAL, PENDING, [Do("start")], {}),
        (replace(EXTERNAL, seen=None), PENDING, [Do("start")], {}),  # tenbin was started again
        (replace(EXTERNAL, seen=None), RUNNING, ["started"], {}),
        (EXTERNAL, PENDING._replace(eligible_s=0.0), [], {}),  # started: Slurm only has not begun it
        (EXTERNAL, PENDING._replace(held=True), [Do("hold")], {}),
        (EXTERNAL, PENDING, [Do("hold")], {"away": {"n1": "drained"}}),
        (replace(EXTERNAL, calling=True), None, [], {}),  # the snapshot may be from before
        (EXTERNAL, None, ["never"], {}),
        (EXTERNAL, RUNNING, ["started"], {}),
        (HERE, PENDING._replace(restarts=1), [Do("hold")], {}),
        (EXTERNAL, RUNNING._replace(nodes=("n2",)), ["lost"], {}),
        (HERE, RUNNING._replace(state="COMPLETED"), ["ended exited"], {}),
        (HERE, RUNNING._replace(state="NODE_FAIL"), ["ended not-started"], {}),
        (replace(HERE, want="pause", request=1), RUNNING, [Do("suspend")], {}),
        (replace(EXTERNAL, want="pause", request=1), PENDING, [Do("hold")], {}),
        (replace(HERE, want="run", request=1), RUNNING._replace(state="SUSPENDED"), [Do("resume")], {}),
        (replace(HERE, want="run", request=1, done=1), RUNNING._replace(state="SUSPENDED"), [], {}),
        (replace(HERE, want="end", request=1), RUNNING, [Do("cancel")], {}),
        (replace(HERE, want="checkpoint", request=1), RUNNING, ["obeyed"], {}),
        # Its node refuses it in the second in which it was killed there, and Slurm says then that it failed.
        (
            replace(EXTERNAL, restarts=1),
            PENDING._replace(restarts=1),
            [Look(REST_S - 0.5)],
            {"put_back": {("12", 1): NOW - 0.5}},
        ),
        (
            replace(EXTERNAL, restarts=1),
            PENDING._replace(restarts=1),
            [Do("start")],
            {"put_back": {("12", 1): NOW - REST_S}},
        ),
    ],
)
def test_external_jobs(
    attempt: SlurmAttempt, job: SbatchJob | None, effects: list[Any], view: dict[str, Any]
) -> None:
    _, found = step(attempt, None, job, replace(VIEW, **view))
    expected = [*effects, *[""] * len(found)]
    assert [in_words(effect, expected[n]) for n, effect in enumerate(found)] == effects


@pytest.mark.parametrize("settled_first", [True, False])
def test_an_external_job_goes_on_that_was_suspended_a_moment_before(settled_first: bool) -> None:
    """Slurm has suspended it, and was not looked at since; or was not even heard to have done so."""
    attempt, effects = requested(replace(HERE, seen=RUNNING), Request(1, "pause"), VIEW)
    assert effects == [Do("suspend")]
    outcome, found = Outcome(EXTERNAL.key, "suspend", None, None), list[Any]()
    for first in (settled_first, not settled_first):
        attempt, effects = (
            settled(attempt, outcome, VIEW) if first else requested(attempt, Request(2, "run"), VIEW)
        )
        found += effects
    assert Do("resume") in found
    assert [effect.done for effect in found if isinstance(effect, Report)] == ([1] if settled_first else [])
    _, effects = settled(attempt, Outcome(EXTERNAL.key, "resume", True, None), VIEW)
    assert [effect.done for effect in effects if isinstance(effect, Report)] == [2]


def test_an_external_job_that_slurm_refuses_or_takes_back() -> None:
    refused = Outcome(EXTERNAL.key, "start", None, SlurmError("no", ""))
    _, effects = settled(replace(EXTERNAL, calling=True), refused, VIEW)
    assert isinstance(effects[0], Refused) and in_words(effects[1], "") == "lost"
    limited = PENDING._replace(reason="QOSMaxJobsPerUserLimit", eligible_s=0.0)
    _, effects = step(EXTERNAL, None, limited, VIEW)
    assert isinstance(effects[0], Refused) and "QOSMaxJobsPerUserLimit" in effects[0].why
    assert in_words(effects[1], "") == "lost", "its nodes are free for others"
    leaving, _ = step(EXTERNAL, None, PENDING._replace(held=True), VIEW)
    _, effects = settled(leaving, Outcome(EXTERNAL.key, "hold", True, None), VIEW)
    assert effects[0] == WaitsAgain() and in_words(effects[1], "") == "never"  # it has not begun
    _, effects = settled(leaving, Outcome(EXTERNAL.key, "hold", False, None), VIEW)
    assert effects == [Look(0.0)], "it has just started, and runs after all"
