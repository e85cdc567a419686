"""Causes by pattern: a table of what was found, and the names of the causes that explain it."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.checks.causes import explain
from profiles.checks.check import Change, Consumer
from profiles.quantities import Difference
from tests.support.checks import QUIET

SPEED, CLOCK, CORE = "compute_gflops", "compute_clock_ghz", "compute_core_ratio"
ONE, ALL = "stream_bandwidth_gbs cores=1", "stream_bandwidth_gbs cores=2"
FAR, NEAR = "access_latency_ns level=memory", "access_latency_ns level=L2"
READ, LINK, MESSAGE = "storage_read_mbs", "message_latency_s scope=hosts", "message_latency_s scope=node"
HELD = Consumer(name="python", pid=7, user="eve", processors=1.0)


def worse(losses: dict[str, float]) -> list[Change]:
    """Make changes of losses by quantity and label."""
    found = []
    for what, loss in losses.items():
        quantity, *labels = what.split()
        about = dict(label.split("=") for label in labels)
        found.append(
            Change(quantity=quantity, labels=about, unit="", was=1, now=1, loss_ratio=loss, state="worse")
        )
    return found


Row = tuple[dict[str, float], list[Difference], dict[str, Any], bool, list[str]]
TABLE: list[Row] = [
    # what is worse, what differs, conditions, disturbed -> names of causes
    ({}, [], {}, False, []),
    ({SPEED: 0.2, CLOCK: 0.2, ONE: 0.05}, [], {}, False, ["clock"]),
    ({SPEED: 0.2, CLOCK: 0.2}, [Difference("governor", "performance", "powersave")], {}, False, ["governor"]),
    ({SPEED: 0.2, CLOCK: 0.2}, [Difference("cap of package-0", "200 W", "90 W")], {}, False, ["power-cap"]),
    ({SPEED: 0.2, CLOCK: 0.2}, [], {"throttled": 12}, False, ["heat"]),
    ({SPEED: 0.2, CLOCK: 0.2}, [], {"temperature_c": 97.0}, False, ["heat"]),
    ({SPEED: 0.4}, [], {}, False, ["shared-cores"]),
    ({CORE: 0.4}, [], {}, False, ["one-core"]),
    ({ONE: 0.2, ALL: 0.3, FAR: 0.2}, [], {}, False, ["memory"]),
    ({ONE: 0.2, FAR: 0.2}, [Difference("memory", "24 GiB", "16 GiB")], {}, False, ["memory-lost"]),
    ({FAR: 0.3}, [], {}, False, ["far-memory"]),
    (
        {FAR: 0.3, ONE: 0.1},
        [Difference("transparent huge pages", "madvise", "never")],
        {},
        False,
        ["huge-pages"],
    ),
    ({NEAR: 0.2}, [], {}, False, ["shared-cores"]),
    ({READ: 0.5}, [], {}, False, ["storage"]),
    ({LINK: 0.5}, [Difference("queue of eth0", None, "tbf, 500 Mbit/s")], {}, False, ["link"]),
    ({MESSAGE: 0.5}, [], {}, False, ["messages"]),
    ({}, [Difference("CPU quota", None, "1 processors")], {"cpu_share_ratio": 0.6}, False, ["cpu-quota"]),
    ({}, [], {"consumers": (HELD,), "others_processors": 1.0}, True, ["processor-time"]),
    (
        {ONE: 0.3, ALL: 0.3},
        [],
        {"consumers": (HELD,), "others_processors": 1.0},
        True,
        ["processor-time", "memory-neighbour"],
    ),
    (
        {ONE: 0.3, FAR: 0.3},
        [Difference("transparent huge pages", "madvise", "never")],
        {"consumers": (HELD,), "others_processors": 1.0},
        True,
        ["processor-time", "huge-pages"],
    ),
    ({}, [], {"steal_ratio": 0.2}, True, ["stolen-time"]),
    ({"network_jitter_ratio": 0.5}, [], {}, False, ["unknown"]),
]


@pytest.mark.parametrize("row", TABLE, ids=[" ".join(row[-1]) or "none" for row in TABLE])
def test_causes(row: Row) -> None:
    losses, differ, conditions, disturbed, names = row
    met = QUIET.model_copy(update=conditions)
    found = explain(worse(losses), differ, met, disturbed=disturbed)
    assert [cause.name for cause in found] == names
    for cause in found:
        assert cause.sentence and "\n" not in cause.sentence


def test_a_process_is_named_with_what_it_takes() -> None:
    met = QUIET.model_copy(update={"consumers": (HELD,), "others_processors": 1.0})
    (cause,) = explain([], [], met, disturbed=True)
    assert cause.sentence == (
        "something takes processor time, 1 of 2 processors: python (pid 7 of eve, 1.00 processors)"
    )


def test_the_reason_that_differs_is_named() -> None:
    (cause,) = explain(
        worse({FAR: 0.3}), [Difference("transparent huge pages", "madvise", "never")], QUIET, disturbed=False
    )
    assert cause.sentence == "memory is slower: transparent huge pages madvise -> never"
