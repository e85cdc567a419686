"""Requests to park the programs of an attempt, as its supervisor sees them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

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
    assert parking.news() is False and parking.last == Outcome(1, NOT_USED, for_now=True, unused=True)
    assert not parking.unsettled and parking.news() is None


PARKED = {
    "hindrances": [],
    "devices": [],
    **dict.fromkeys(("moves", "parks", "failures", "parked_bytes", "last_steps"), 0),
    **dict.fromkeys(("last_pause_s", "last_total_s", "last_park_s", "estimate")),
    **{"state": "parked", "device": "gpu-0", "movable": True, "postponed": False, "parked_in": "file"},
    "last_trouble": "",
}


@contextmanager
def layer(folder: Path, answers: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    """Answer requests in place of the layer in a program, by their first words; yield the requests."""
    asked: list[str] = []
    with subprocess.Popen(["sleep", "60"]) as program, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / str(program.pid)))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:  # closed
                    return
                with suppress(BrokenPipeError), line, line.makefile("rw") as lines:  # it may have gone
                    asked.append(lines.readline().strip())
                    verb = next((verb for verb in answers if asked[-1].startswith(verb)), "")
                    lines.write(json.dumps({"pid": program.pid, **answers.get(verb, PARKED)}) + "\n")

        threading.Thread(target=serve, daemon=True).start()
        yield asked
        program.kill()


def refused(code: str, *, postponed: bool = False) -> dict[str, Any]:
    return {"trouble": "words that nobody reads", "postponed": postponed, "code": code}


@pytest.mark.parametrize(
    ("answers", "requests", "outcome"),
    [
        ({"move": refused("device-memory")}, ["move gpu-1", "park"], Outcome(1)),
        ({"move": refused("")}, ["move gpu-1"], Outcome(1, "words that nobody reads")),
        (
            {"move": refused("", postponed=True)},
            ["move gpu-1"],
            Outcome(1, "words that nobody reads", for_now=True),
        ),
        (
            {"move": refused("device-memory"), "park": refused("host-memory")},
            ["move gpu-1", "park", "park"],
            Outcome(1, "words that nobody reads"),
        ),
    ],
)
def test_codes_of_the_layer_decide_and_not_its_words(
    tmp_path: Path, answers: dict[str, dict[str, Any]], requests: list[str], outcome: Outcome
) -> None:
    """Too little memory on the device: it is parked; in memory too: to a file."""
    order = Order(7, 1, "mark", (sys.executable,), {}, str(tmp_path), "", "", layer=str(tmp_path))
    parking = Parking(order, tmp_path)
    told = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: told.set())
    with layer(tmp_path, answers) as asked:
        parking.begin(Request(1, "park", device="gpu-1", reserved=True))
        ended = told.wait(60)
    signal.signal(signal.SIGUSR1, before)
    assert ended and parking.last == outcome
    assert [words.split(" 30")[0] for words in asked] == requests
    assert [words.endswith(f" {tmp_path}") for words in asked][2:] == [True] * (len(requests) - 2)


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
