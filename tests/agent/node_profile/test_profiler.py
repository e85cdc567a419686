"""A profile survives what its probes do: real processes that crash, hang, fail and are interrupted."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agent.node_profile import probe_process, profiler
from agent.node_profile.probe_process import run_child
from probes.registry import PROBES
from probes.run import Event
from profiles.errors import BadInput
from profiles.records import Settings
from tests.support.labs.components import processes_below
from tests.support.paths import ROOT

ODD_PROBES = str(ROOT / "tests" / "support" / "odd_probes")


@pytest.fixture(autouse=True)
def odd_probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", ODD_PROBES, prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")  # nobody is measured here
    monkeypatch.syspath_prepend(ODD_PROBES)
    odd = importlib.import_module("odd_probes_registered")
    before = dict(PROBES)
    odd.register()
    yield
    PROBES.clear()
    PROBES.update(before)


def _run(
    probe: str, limit_s: float = 60, when: str = "", act: Callable[[], None] = lambda: None
) -> tuple[probe_process.ProbeExit, list[Event]]:
    """Return the events of a probe; call ``act`` as soon as the probe reports ``when``."""
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        if event.get("doing") == when:
            act()

    return run_child(probe, Settings(budget_s=1), hear, limit_s), events


def _values(events: list[Event]) -> list[float]:
    return [event["row"]["value_s"] for event in events if event["event"] == "sample"]


def _interrupt_after(seconds: float, times: int = 1) -> None:
    def interrupt() -> None:
        for _ in range(times):
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_a_probe_that_goes_well() -> None:
    ended, events = _run("well")
    assert (ended.returncode, ended.trouble, _values(events)) == (0, "", [0.0, 1.0, 2.0])


def test_what_a_library_prints_is_not_an_event() -> None:
    ended, events = _run("chatty")
    assert not ended.trouble and len(_values(events)) == 3


def test_a_crash_keeps_what_was_measured() -> None:
    ended, events = _run("crash")
    assert ended.trouble == "died of SIGSEGV" and _values(events) == [0.0, 1.0]


def test_a_failure_says_its_last_words() -> None:
    ended, events = _run("fail")
    assert "the device is gone" in ended.trouble and _values(events) == [0.0, 1.0]


@pytest.mark.measures
def test_a_probe_that_hangs_is_stopped() -> None:
    ended, events = _run("hang", limit_s=2)
    assert ended.trouble == "hung and was stopped" and _values(events) == [0.0, 1.0]
    assert not processes_below()


def test_an_interrupt_lets_the_probe_clean_up() -> None:
    ended, events = _run("patient", when="waiting", act=lambda: _interrupt_after(0.1))
    assert ended.interrupted and not ended.trouble and _values(events) == [0.0, 1.0, 99.0]


def test_a_second_interrupt_kills_the_probe_and_all_it_started() -> None:
    ended, _ = _run("stubborn", when="deaf", act=lambda: _interrupt_after(0.5, times=2))
    assert ended.interrupted
    assert not processes_below()


def test_a_profile_of_probes_that_go_wrong(tmp_path: Path) -> None:
    settings = Settings(quick=True, only=("crash", "fail", "well"), storage=(tmp_path,))
    steps: list[profiler.Progress] = []
    made, samples = profiler.make_profile(settings, steps.append)
    assert made.samples == {"crash": 2, "fail": 2, "well": 3}
    assert [(a.probe, a.failed) for a in made.absent] == [("crash", True), ("fail", True)]
    assert "while at: the second half" in made.absent[0].reason
    assert list(samples["well"]["value_s"]) == [0.0, 1.0, 2.0]
    assert [c.probe for c in made.conditions] == ["well", "crash", "fail"]
    assert not made.interrupted and steps[-1].left_s == 0


def test_ctrl_c_ends_a_profile_with_what_was_measured(tmp_path: Path) -> None:
    settings = Settings(quick=True, only=("well", "patient", "hang"), storage=(tmp_path,))
    interrupted = False

    def interrupt_once(progress: profiler.Progress) -> None:
        nonlocal interrupted
        if progress.step.probe == "patient" and progress.doing == "waiting" and not interrupted:
            interrupted = True
            _interrupt_after(0.2)

    made, _ = profiler.make_profile(settings, interrupt_once)
    assert made.interrupted and made.samples == {"well": 3, "patient": 3}
    assert [(a.probe, a.reason) for a in made.absent] == [
        ("hang", "the profile was interrupted before its turn")
    ]
    assert made.partly == "interrupted, only well,patient,hang"


def test_full_profiles_visit_every_probe_in_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "FULL_ROUNDS", 2)
    made, samples = profiler.make_profile(Settings(only=("well", "chatty"), storage=(tmp_path,)))
    assert [(c.probe, c.round) for c in made.conditions] == [
        (probe, number) for number in range(profiler.FULL_ROUNDS) for probe in ("well", "chatty")
    ]
    assert samples["well"]["round"].tolist() == [n for n in range(profiler.FULL_ROUNDS) for _ in range(3)]


def test_an_unknown_probe_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(BadInput, match="no probe 'memroy'"):
        profiler.make_profile(Settings(only=("memroy",)))


def test_a_probe_ends_when_its_parent_is_killed() -> None:
    code = (
        "from agent.node_profile.probe_process import run_child; from profiles.records import Settings;"
        "run_child('hang', Settings(budget_s=1), lambda e: print(e['event'], flush=True), 60)"
    )
    parent = psutil.Popen([sys.executable, "-c", code], stdout=-1, text=True)
    parent.stdout.readline()
    (probe,) = parent.children()
    assert probe.is_running()
    parent.kill()
    parent.wait()
    assert psutil.wait_procs([probe], timeout=30)[1] == []
