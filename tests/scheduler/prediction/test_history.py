"""Predictions from earlier runs, against distributions and laws that are known."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from scheduler.prediction.run_times import History, JobSignature, PastRun, program_of

pytestmark = pytest.mark.computes
SIM = JobSignature("sim", ("--steps", "100"), "ann", (1, 0))


def known(*times: float, asked: JobSignature = SIM) -> History:
    return History(PastRun(asked, seconds) for seconds in times)


def programs(*times: float) -> History:
    """Make a history of one run of each program."""
    return History(PastRun(SIM._replace(program=f"p{n}"), seconds) for n, seconds in enumerate(times))


def test_nothing_is_known_of_a_stranger() -> None:
    assert History().predict(SIM) is None
    assert known(5.0).predict(SIM, "memory_mb") is None
    assert known(5.0).predict(JobSignature("other", (), "ben")) is None


def test_one_run_two_runs() -> None:
    """One: a factor 2 is assumed. Two: geometric mean, and Student's t with one degree of freedom."""
    one = known(10.0).predict(SIM)
    assert one is not None and (one.low, one.middle, one.high) == pytest.approx((5.0, 10.0, 20.0))
    assert one.n == 1 and "assumed" in one.rule
    two = known(8.0, 12.5).predict(SIM)
    assert two is not None and two.middle == pytest.approx(10.0) and two.basis == "arguments"
    spread = math.log(12.5 / 8.0) / math.sqrt(2)
    assert two.high == pytest.approx(10.0 * math.exp(3.077684 * spread * math.sqrt(1.5)), rel=1e-5)
    assert two.low == pytest.approx(100.0 / two.high)


def test_a_prediction_imports_nothing() -> None:
    """A prediction is made in the middle of a coordinator's turn: all it needs is imported before."""
    program = (
        "import sys\n"
        "import scheduler.coordinator.coordinator\n"
        "from scheduler.prediction.run_times import JobSignature, History, PastRun\n"
        "history = History(PastRun(JobSignature('sim', (str(n),)), 2.0 * n) for n in (1, 2, 3, 4, 4))\n"
        "before = set(sys.modules)\n"
        "for n, basis in ((4, 'arguments'), (6, 'scaled')):\n"
        "    assert history.predict(JobSignature('sim', (str(n),))).basis == basis\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
        "assert 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_order_statistics() -> None:
    """Of nine runs the first, fifth and last are the 10, 50 and 90 % quantiles of the tenth."""
    found = known(*(9.0, 1.0, 3.0, 5.0, 2.0, 8.0, 7.0, 4.0, 6.0)).predict(SIM)
    assert found is not None and (found.low, found.middle, found.high, found.n) == (1.0, 5.0, 9.0, 9)
    many = known(*range(1, 101)).predict(SIM)
    assert many is not None and many.n == 20 and many.low > 80  # the last ones count


@pytest.mark.parametrize("runs", [2, 3, 5, 9, 20])
@pytest.mark.parametrize("heavy", [False, True])
def test_quantiles_cover_what_they_say(runs: int, heavy: bool) -> None:
    """Of 4000 next runs 10, 50 and 90 % lie below; a heavy tail from nine runs on as well."""
    rng = np.random.default_rng(runs)
    if heavy and runs < 9:
        return
    below = np.zeros(3)
    for _ in range(4000):
        draws = np.exp(rng.normal(2.0, 0.3, runs + 1)) if not heavy else rng.pareto(1.1, runs + 1) + 1
        found = known(*draws[:-1]).predict(SIM)
        assert found is not None
        below += draws[-1] <= np.array([found.low, found.middle, found.high])
    assert below / 4000 == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_numbers_among_the_arguments_scale_the_time() -> None:
    """T = 0.01 n^2 with 5 % noise: n = 400 from runs at 50 to 200; the interval covers the truth."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        sizes = rng.permutation([50, 80, 100, 120, 150, 200])
        runs = [
            PastRun(
                JobSignature("sim", (f"--n={n}", "in.txt"), "ann"),
                0.01 * n**2 * math.exp(rng.normal(0, 0.05)),
            )
            for n in sizes
        ]
        found = History(runs).predict(JobSignature("sim", ("--n=400", "in.txt"), "ann"))
        assert found is not None and found.basis == "scaled"
        assert found.middle == pytest.approx(1600, rel=0.3)
        inside += found.low <= 1600 * math.exp(rng.normal(0, 0.05)) <= found.high
    assert inside / 300 == pytest.approx(0.8, abs=0.07)


def test_two_numbers_and_their_powers() -> None:
    runs = [
        PastRun(JobSignature("sim", ("-n", str(n), "-k", str(k))), 1e-3 * n * k**2.0)
        for n in (10, 20, 40)
        for k in (3, 6, 9)
    ]
    found = History(runs).predict(JobSignature("sim", ("-n", "30", "-k", "5")))
    assert found is not None and found.middle == pytest.approx(0.75, rel=1e-6)
    assert "to the power 1, 2" in found.rule


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--seed", "1000"), "the number explains nothing"),
        (("--seed", "7", "--more"), "other words"),
        (("--seed", "0"), "no logarithm"),
    ],
)
def test_numbers_that_explain_nothing_are_left_alone(arguments: tuple[str, ...], why: str) -> None:
    """A seed: by the program then, whatever its arguments."""
    rng = np.random.default_rng(5)
    times = np.exp(rng.normal(3, 0.2, 12))
    runs = [PastRun(JobSignature("sim", ("--seed", str(s + 1))), float(t)) for s, t in enumerate(times)]
    found = History(runs).predict(JobSignature("sim", arguments))
    assert found is not None and (found.basis, found.n) == ("name", 12), why


def test_far_beyond_what_was_seen_no_law_is_trusted() -> None:
    runs = [PastRun(JobSignature("sim", (str(n),)), float(n)) for n in (1, 2, 3, 4, 5)]
    near, far = (History(runs).predict(JobSignature("sim", (str(n),))) for n in (20, 21))
    assert near is not None and near.basis == "scaled" and near.middle == pytest.approx(20)
    assert far is not None and far.basis == "name"


def test_another_size_or_device_is_another_thing() -> None:
    history = known(10.0, 10.0)
    gpu, bigger = history.predict(SIM._replace(pool="gpu")), history.predict(SIM._replace(size=(4, 0)))
    assert bigger is not None and bigger.basis == "name"
    assert gpu is not None and gpu.basis == "user"
    history.add(PastRun(SIM._replace(pool="gpu"), 1.0))
    found = history.predict(SIM._replace(pool="gpu"))
    assert found is not None and found.middle == 1.0


def test_what_was_asked_before_changes_no_answer() -> None:
    """Predictions after each run are those of somebody who is asked for the first time."""
    rng = np.random.default_rng(7)
    runs = [
        PastRun(
            SIM._replace(arguments=(f"--n={n}",), pool=pool), n * rng.lognormal(0, 0.1), memory_mb=10.0 + n
        )
        for n, pool in zip(rng.permutation(range(1, 25)), ["", "gpu"] * 12, strict=True)
    ]
    questions = [
        SIM._replace(arguments=(f"--n={n}",), pool=pool) for n in (3, 20, 200) for pool in ("", "gpu")
    ]
    history, bases = History(), set()
    for end, run in enumerate(runs, 1):
        history.add(run)
        for asked in questions:
            told = [history.predict(asked), history.predict(asked, "memory_mb")]
            anew = History(runs[:end])
            assert told == [anew.predict(asked), anew.predict(asked, "memory_mb")]
            bases |= {found.basis for found in told if found is not None}
    assert bases == {"user", "name", "scaled", "arguments"}


def test_last_resort_the_last_two_of_the_user() -> None:
    """EASY++: their mean; its quantiles are those of this rule's own errors."""
    history = known(100.0, 10.0, 20.0)
    other = JobSignature("new", (), "ann")
    found = history.predict(other)
    assert found is not None and (found.middle, found.n, found.basis) == (15.0, 2, "user")
    assert history.predict(other, "memory_mb") is None
    rng = np.random.default_rng(1)
    below = 0
    for _ in range(400):
        times = rng.lognormal(3, 1, 61)
        one = programs(*times[:-1]).predict(other)
        assert one is not None and one.low <= one.middle <= one.high
        below += times[-1] <= one.high
    assert below / 400 == pytest.approx(0.9, abs=0.05)


def test_the_rule_by_user_is_planned_with_where_it_was_right() -> None:
    """8 of 10 of its last outcomes, of nine at least, within a factor 2; told in any case, as what it is."""
    other = JobSignature("new", (), "ann")

    def proved(*times: float) -> bool:
        found = programs(*times).predict(other)
        assert found is not None and found.basis == "user"
        assert ("not used for planning" in found.rule) != found.proved
        return found.proved

    steady = [10.0, 12.0] * 5
    assert not proved(0.0105) and not proved(*steady[:9])  # eight outcomes
    assert proved(*steady) and proved(*steady, *steady, *steady)
    assert proved(*steady, 100.0) and not proved(*steady, 100.0, 12.0, 10.0)  # 9 of 10, 9 of 12
    assert not proved(*steady, *steady, 0.01, 500.0, 0.01, 0.5, 700.0)  # 15 of the last 20
    assert proved(*[0.01, 6.0] * 20, *steady, *steady, 10.0)  # forgotten after twenty
    assert not programs(*steady).proved("ben")
    own = known(*steady).predict(SIM)
    assert own is not None and own.proved


def test_many_runs_of_one_program_prove_nothing_of_others() -> None:
    """An array of 100 short jobs: of another program nothing is planned by them, and the interval is wide."""
    history = known(*[0.05] * 100)
    other = history.predict(JobSignature("sleep", ("30",), "ann"))
    assert other is not None and other.basis == "user" and not other.proved and other.high > 4 * other.middle


def test_memory_is_predicted_like_time() -> None:
    history = History(PastRun(SIM, 1.0, memory_mb=mb, compile_s=0.5) for mb in (90.0, 100.0, 110.0))
    memory, kernels = history.predict(SIM, "memory_mb"), history.predict(SIM, "compile_s")
    assert memory is not None and memory.middle == pytest.approx(99.7, abs=0.1)
    assert kernels is not None and kernels.middle == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("command", "program", "arguments"),
    [
        (["./sim", "-n", "3"], "sim", ("-n", "3")),
        (["/usr/bin/python3.11", "-u", "run/fit.py", "7"], "fit.py", ("7",)),
        (["python", "-m", "fit", "7"], "-m fit", ("7",)),
        (["sh", "-c", "sleep 3; echo"], "sleep 3; echo", ()),
        (["bash"], "bash", ()),
    ],
)
def test_what_program_a_command_runs(command: list[str], program: str, arguments: tuple[str, ...]) -> None:
    assert program_of(command) == (program, arguments)
