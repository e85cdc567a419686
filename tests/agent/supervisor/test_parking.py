"""Requests to park the programs of an attempt, as its supervisor sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from agent.attempts.records import Order, Request
from agent.supervisor.parking import NOT_USED, Outcome, Parking
from tests.support.moving import driver


def test_a_request_that_has_ended_is_unsettled_until_its_outcome_is_asked(tmp_path: Path) -> None:
    """A park may end before the supervisor looks again; it must not take it for one without an effect."""
    folder, request = str(tmp_path), Request(1, "park")
    parking = Parking(Order(7, 1, "mark", (sys.executable,), {}, folder, "", "", layer=folder), tmp_path)
    assert not parking.unsettled and parking.news() is None
    told = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: told.set())
    parking.begin(request)
    ended = told.wait(10)
    signal.signal(signal.SIGUSR1, before)
    assert ended and parking.unsettled and not parking.waits(request, runs=True)
    assert parking.news() is False and parking.last == Outcome(1, NOT_USED, for_now=True)
    assert not parking.unsettled and parking.news() is None


def test_a_program_without_the_layer_is_not_taken_for_one_that_is_unused(tmp_path: Path) -> None:
    """Nothing pauses it in place of a park, because it may hold memory of its device."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, driver()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        order = Order(7, 1, "mark", (sys.executable,), {}, str(tmp_path), "", "", layer=str(tmp_path))
        outcome = Parking(order, tmp_path)._park(Request(1, "park"))
        program.communicate(b"\n")
    assert not outcome.for_now
    assert "without the layer" in outcome.refused
