"""memprobe at work: the writer, writers together, the probe, its fits and its pictures."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.memory import WriterPool, measure, overlap
from probes.memory_plan import NotMeasured, Spot
from probes.memory_writer import MBIND, Area, Pace, Written, placed_on, placement
from probes.order_process import OrderProcess, ProcessLost
from probes.run import Run, collect, samples_of
from probes.topology import Topology
from profiles.fits import fit_samples
from profiles.fits.memory import fit, slowdowns, verdict
from profiles.records import Absent, Settings
from tenbin.report.probes.memory import EXPLANATION, figures
from tests.support.labs.components import require

CORES = sorted(os.sched_getaffinity(0))
WRITER = [sys.executable, "-P", "-m", "probes.memory_writer"]


def words_of(area: Area, size_mb: int) -> np.ndarray:
    n = size_mb * 2**20 // 8
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(area.address))


def small_area(topology: Topology, free_mb: float) -> tuple[float, list[NotMeasured]]:
    """Choose 16 MB, in place of ``choose_area``, so that a test takes a moment."""
    return 16.0, []


def writers() -> dict[int, psutil.Process]:
    """Return the writer processes started by this one, by their CPU."""
    lines = {child: child.cmdline() for child in psutil.Process().children()}
    return {
        int(next(word for word in line if word.startswith("--core=")).split("=")[1]): child
        for child, line in lines.items()
        if "--serve" in line
    }


def gone(pids: list[int], within_s: float = 20) -> bool:
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(alive, timeout=within_s)[1]


# --- the writer


@settings(max_examples=10)
@given(size_mb=st.sampled_from([2, 6, 16]), line=st.sampled_from([64, 128]), chunks=st.integers(0, 20))
def test_each_chunk_stores_one_word_in_every_line_and_the_area_goes_round(
    size_mb: int, line: int, chunks: int
) -> None:
    area = Area(size_mb, line)
    n = size_mb // 2
    written = [area.write_chunk() for _ in range(chunks)]
    assert sum(written) == chunks * 2 * 2**20
    words = words_of(area, size_mb).reshape(n, -1, line // 8)
    assert not words[:, :, 1:].any()
    last = {i % n: i + 1 for i in range(n + chunks)}  # the first round is the touch when the area is made
    for chunk, value in last.items():
        assert (words[chunk, :, 0] == value).all()


@settings(max_examples=30)
@given(
    intensity=st.floats(0.01, 0.99),
    chunks=st.lists(st.floats(1e-4, 3e-3), min_size=1, max_size=20),
    late=st.lists(st.floats(0, 2e-3), min_size=1, max_size=20),
)
def test_the_share_of_time_spent_writing_is_the_intensity(
    intensity: float, chunks: list[float], late: list[float]
) -> None:
    """In virtual time, with chunks of any length and sleeps that end late."""
    pace = Pace(intensity)
    now = busy = 0.0
    i = 0
    while now < 3.0:
        rest = pace.rest_s(now, busy)
        if rest:
            now += rest + late[i % len(late)] * (1 - intensity)
        else:
            now += chunks[i % len(chunks)]
            busy += chunks[i % len(chunks)]
        i += 1
    assert busy / now == pytest.approx(intensity, abs=0.012)


def test_a_writer_that_was_stopped_does_not_catch_up_for_ever() -> None:
    pace = Pace(0.5)
    busy, now = 0.0, 60.0  # not one chunk in the first minute
    while not pace.rest_s(now, busy):
        busy += 1e-4
        now += 1e-4
    assert busy < 0.3


def test_no_intensity_never_writes() -> None:
    assert Pace(0.0).rest_s(10.0, 0.0) > 0.0


def test_placement_is_read_from_the_mapping_that_holds_the_address() -> None:
    numa_maps = [
        "7f0000000000 default anon=512 dirty=512 N0=512 kernelpagesize_kB=4",
        "7f0000200000 default anon=65536 dirty=65536 active=0 N0=1024 N1=64512 kernelpagesize_kB=4",
        "7f0020000000 default file=/lib/N5.so mapped=3 N1=3 kernelpagesize_kB=4",
        "7fff00000000 default stack=1",
    ]
    assert placement(numa_maps, 0x7F0000200000) == {0: 1024, 1: 64512}
    assert placement(numa_maps, 0x7F0000212345) == {0: 1024, 1: 64512}
    assert placement(numa_maps, 0x7F0020000000) == {1: 3}
    assert placement(numa_maps, 0x7FFF00000000) == {}
    assert placement([], 1) == {}


def test_placement_on_this_machine(tmp_path: Path) -> None:
    require(Path("/proc/self/numa_maps").exists(), "a kernel with NUMA support")
    core = CORES[0]
    node = next(iter(Path(f"/sys/devices/system/cpu/cpu{core}").glob("node*")), None)
    require(node, "sysfs that shows the CPU's NUMA node")
    assert node is not None
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        area = Area(8)
    finally:
        os.sched_setaffinity(0, before)
    share = placed_on(area, int(node.name[4:]))
    assert share is not None and share > 0.9
    assert placed_on(area, 4095) == 0.0
    assert placed_on(area, 0, procfs=tmp_path) is None


def test_pages_are_kept_on_their_node() -> None:
    require(platform.machine() in MBIND, "a system call number for this architecture")
    require(Path("/proc/self/numa_maps").exists(), "a kernel with NUMA support")
    area = Area(4)
    assert area.stay_on(0)
    mine = [
        line for line in Path("/proc/self/numa_maps").read_text().splitlines() if f"{area.address:x} " in line
    ]
    assert len(mine) == 1 and "prefer:0" in mine[0].replace("=static", "")
    assert not area.stay_on(3000)  # no such node: refused, the area stays usable
    assert area.write_chunk()


def graded(intensity: float, seconds: float) -> dict[str, Any]:
    command = [
        *WRITER,
        f"--core={CORES[-1]}",
        f"--intensity={intensity}",
        f"--seconds={seconds}",
        "--area-mb=64",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_graded_load_takes_its_share_of_the_core_and_no_more() -> None:
    for intensity in (0, 30):
        done = graded(intensity, 0.4)
        assert done["thread_cpu_s"] / done["wall_s"] <= intensity / 100 + 0.05
        assert (done["bytes"] > 0) == (intensity > 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--core=0", "--intensity=140"], "--intensity 140: must be from 0 to 100"),
        (["--core=0", "--intensity=nan"], "--intensity nan: must be from 0 to 100"),
        (["--core=4000"], "--core 4000"),
        (["--core=0", "--area-mb=1e12"], "--area-mb 1e+12"),
        (["--core=0", "--area-mb=-5"], "--area-mb -5: must be"),
        (["--core=0", "--seconds=-1"], "--seconds -1: must be"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: list[str], says: str) -> None:
    done = subprocess.run([*WRITER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_load_that_is_told_to_stop_says_what_it_did(number: signal.Signals) -> None:
    command = [*WRITER, f"--core={CORES[0]}", "--seconds=600", "--area-mb=16", "--intensity=30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        process = psutil.Process(load.pid)
        while process.cpu_times().user < 0.6 and load.poll() is None:
            time.sleep(0.05)
        load.send_signal(number)
        out, _ = load.communicate(timeout=30)
    assert load.returncode == 0
    done = json.loads(out)
    assert done["bytes"] > 0 and done["wall_s"] < 600


# --- writers together


def spot(core: int) -> Spot:
    return Spot(core, 0, core)


def test_overlap_is_the_common_part_of_the_longest_measured_window() -> None:
    def window(start: float, wall: float) -> Written:
        return Written(start, wall, wall, 1)

    assert overlap([window(0, 2)], [window(0, 2), window(-1, 4)]) == 1
    assert overlap([window(0, 2)], [window(0, 2), window(1, 4)]) == 0.5
    assert overlap([window(0, 1), window(0, 2)], [window(0, 1), window(0, 2)]) == 0.5
    assert overlap([window(0, 1)], [window(0, 1), window(5, 1)]) == 0
    assert overlap([window(0, 0)], [window(0, 0)]) == 0


def test_writers_write_where_they_are_pinned_and_leave_nothing_behind() -> None:
    with WriterPool(16) as pool:
        rows, together = pool.write([spot(core) for core in CORES[:2]], 0.03)
        assert len(rows) == len(CORES[:2]) and 0 <= together <= 1
        assert all(row.wall_s > 0 and row.thread_cpu_s <= row.wall_s * 1.01 for row in rows)
        pids = pool.pids
        assert {core: psutil.Process(pid).cpu_affinity() for core, pid in pids.items()} == {
            core: [core] for core in CORES[:2]
        }
    assert gone(list(pids.values()))


def test_thread_time_sees_through_a_core_that_is_shared() -> None:
    """Beside a program on the same core, wall time doubles and CPU time per byte does not."""
    serve = ["--serve", "--line-bytes=64"]
    with WriterPool(16) as pool, OrderProcess(CORES[0], "probes.memory_writer", serve) as rival:
        pool.prepare([spot(CORES[0])])
        rival.answer()
        rival.order("place", node=0, touch_core=CORES[0], size_mb=16)
        rival.answer()
        rival.order("write", node=0, start_s=time.monotonic(), warm_s=0, seconds=3600, check=False)
        while psutil.Process(rival.pid).cpu_times().user < 0.3:
            time.sleep(0.05)
        [row], _ = pool.write([spot(CORES[0])], 0.5)
        rival.kill()
    assert row.thread_cpu_s < 0.8 * row.wall_s


def test_a_lost_writer_is_named_and_the_next_window_starts_a_new_one() -> None:
    with WriterPool(16) as pool:
        pool.prepare([spot(core) for core in CORES[:2]])
        os.kill(pool.pids[CORES[0]], signal.SIGKILL)
        with pytest.raises(ProcessLost, match=f"CPU {CORES[0]} ended with signal 9"):
            pool.write([spot(core) for core in CORES[:2]], 0.02)
        assert CORES[0] not in pool.pids
        rows, _ = pool.write([spot(core) for core in CORES[:2]], 0.02)
        assert len(rows) == len(CORES[:2])


def test_a_writer_that_cannot_have_its_core_or_its_memory_says_so() -> None:
    with WriterPool(16) as pool, pytest.raises(ProcessLost, match=r"CPU 4000 ended with exit code 2: .*4000"):
        pool.write([spot(4000)], 0.02)
    with WriterPool(1e12) as pool, pytest.raises(ProcessLost, match=r"failed: .*[Mm]emory"):
        pool.write([spot(CORES[0])], 0.02)


# --- the probe


@pytest.fixture(scope="module")
def measured() -> tuple[pd.DataFrame, list[Absent]]:
    """One short real run of the probe on this machine, with small areas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probes.memory.choose_area", small_area)
        for budget_s in (2, 12, 48):  # a busy machine needs more time to see enough
            samples, absent = collect("memory", Settings(quick=True, budget_s=budget_s), measure)
            if fit_samples("memory", samples.assign(overlap=1.0)):
                break
        return samples, absent


def test_the_probe_measures_bandwidth_of_one_and_of_all_cores(
    measured: tuple[pd.DataFrame, list[Absent]],
) -> None:
    samples, _ = measured
    bandwidth = samples[samples["kind"] == "bandwidth"]
    assert {1, len({int(c) for c in bandwidth["core"]})} <= set(bandwidth["cores"])
    rows = bandwidth.groupby(["numa", "repetition", "cores"]).size().reset_index(name="rows")
    assert (rows["rows"] == rows["cores"]).all()
    assert (samples["bytes"] % (2 * 2**20) == 0).all()
    assert writers() == {}


def test_pairs_are_measured_alone_and_beside_in_turn(measured: tuple[pd.DataFrame, list[Absent]]) -> None:
    require(len(CORES) > 1, "two CPUs")
    samples, _ = measured
    for _, pair in samples[samples["kind"] == "pair"].groupby("cpus"):
        assert list(pair["condition"]) == ["alone", "beside"] * (len(pair) // 2)


def test_a_machine_with_one_numa_node_says_so(measured: tuple[pd.DataFrame, list[Absent]]) -> None:
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    assert ("one NUMA node: no remote access" in [a.reason for a in measured[1]]) == (len(nodes) < 2)


def test_no_usable_cpu_or_no_memory_is_said_and_measures_nothing(tmp_path: Path) -> None:
    for folder, text in {"devices/system/cpu/online": "4000", "meminfo": "MemAvailable: 20000 kB"}.items():
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder).write_text(text)
    for settings_, says in [
        (Settings(sysfs=tmp_path), "none of the CPUs"),
        (Settings(procfs=tmp_path), "MB can be taken"),
    ]:
        samples, absent = collect("memory", settings_, measure)
        assert samples.empty and any(says in a.reason for a in absent)


def test_a_writer_lost_in_the_middle_costs_its_own_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.memory.choose_area", small_area)
    require(len(CORES) > 1, "two CPUs")
    events: list[dict[str, Any]] = []
    killed: list[int] = []

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "progress" and "2 cores" in event["doing"] and not killed:
            writer = writers().get(CORES[1])
            if writer:
                killed.append(CORES[1])
                writer.kill()

    measure(Run("memory", Settings(quick=True, budget_s=1, seed=3), emit))
    lost = [e["absent"] for e in events if e["event"] == "absent" and "signal 9" in e["absent"]["reason"]]
    samples = samples_of(events)
    assert (samples["cores"] == 1).any()
    assert killed == [] or [a["what"] for a in lost] == ["bandwidth of 2 cores, local memory"]


# --- fits and pictures


def made_up(
    ratio: float = 1.7,
    gbs: float = 20.0,
    n: int = 20,
    rounds: int = 1,
    *,
    noise: float = 0.02,
    emulated: bool = False,
) -> pd.DataFrame:
    """Make samples of known bandwidth: two cores reach 1.5 times one, a pair slows down by ``ratio``."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []

    def add(speed: float, **labels: Any) -> None:
        wall = 0.06
        row = {
            "emulated": emulated,
            "wall_s": wall,
            "thread_cpu_s": 0.9 * wall,
            "overlap": 1.0,
            "placed": None,
        }
        rows.append(row | labels | {"bytes": int(speed * wall * 1e9 * rng.normal(1, noise))})

    for round_ in range(rounds):
        for repetition in range(1, n + 1):
            at = {"round": round_, "repetition": repetition}
            bandwidth = at | {"kind": "bandwidth", "numa": "local"}
            add(gbs, **bandwidth, cores=1, cpus="0", core=0)
            for core in (0, 1):
                add(0.75 * gbs, **bandwidth, cores=2, cpus="0,1", core=core)
            pair = at | {"kind": "pair", "pair_kind": "same-cache", "cores": 1, "cpus": "0,1", "core": 0}
            add(gbs, **pair, other_core=1, condition="alone")
            add(gbs / ratio, **pair, other_core=1, condition="beside")
    return pd.DataFrame(rows)


def test_the_fit_finds_what_was_put_in() -> None:
    models = {m.title: m for m in fit_samples("memory", made_up(rounds=3))}
    assert set(models) == {
        "memory_bandwidth_gbs{cores=1,numa=local}",
        "memory_bandwidth_gbs{cores=2,numa=local}",
        "memory_slowdown_ratio{clock=thread,pair=same-cache}",
        "memory_slowdown_ratio{clock=wall,pair=same-cache}",
    }
    for title, truth in {
        "memory_bandwidth_gbs{cores=1,numa=local}": 20,
        "memory_bandwidth_gbs{cores=2,numa=local}": 30,
        "memory_slowdown_ratio{clock=wall,pair=same-cache}": 1.7,
    }.items():
        [coefficient] = models[title].coefficients
        assert coefficient.low is not None and coefficient.high is not None
        assert coefficient.low <= truth * 1.01 and truth * 0.99 <= coefficient.high
        assert coefficient.value == pytest.approx(truth, rel=0.02) and coefficient.n == 60
    assert "CPUs 0,1; interference: 100%" in models["memory_slowdown_ratio{clock=wall,pair=same-cache}"].note


def test_windows_that_prove_nothing_are_left_out() -> None:
    samples = made_up(n=15)
    spoilt = samples["repetition"] <= 5
    for column, value in {"overlap": 0.1, "placed": 0.2}.items():
        bad = samples.assign(placed=samples["placed"].astype(float))
        bad.loc[spoilt, column] = value
        bad.loc[spoilt, "bytes"] *= 50
        models = fit(bad)
        assert {m.coefficients[0].n for m in models} == {10}
        assert models[0].coefficients[0].value == pytest.approx(20, rel=0.02)


def test_an_interrupted_run_gives_what_it_supports() -> None:
    samples = made_up(n=12)
    for end in range(0, len(samples) + 1, 2):
        models = fit(samples.iloc[:end])
        pairs = [m for m in models if m.quantity == "memory_slowdown_ratio"]
        assert len(pairs) == (2 if end >= 50 else 0)  # ten whole repetitions of five rows
        assert all(m.coefficients[0].value < 32 for m in models)  # half a window is no window
        figures(samples.iloc[:end], models)


def test_one_kind_of_rows_is_enough_for_its_own_models() -> None:
    samples = made_up()
    for kind, missing, quantity in [
        ("bandwidth", ["pair_kind", "condition", "other_core"], "memory_bandwidth_gbs"),
        ("pair", ["numa"], "memory_slowdown_ratio"),
    ]:
        only = samples[samples["kind"] == kind].drop(columns=missing)
        models = fit_samples("memory", only)
        assert {m.quantity for m in models} == {quantity} and len(models) == 2
        assert len(figures(only, models)) == 1


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.3] * 7 + [1.0] * 3, "interference: 70%"),
        ([1.3] * 6 + [1.0] * 4, "no clear interference: 60%"),
        ([1.15] * 10, "no clear interference: 100%"),
        ([0.9, 3.7] * 5, "no clear interference: 50%"),
    ],
)
def test_interference_needs_a_high_median_and_most_repetitions(ratios: list[float], expected: str) -> None:
    assert verdict(pd.Series(ratios)).startswith(expected)


def test_ratios_are_paired_within_their_repetition() -> None:
    """A drift that halves the speed in mid-run moves both conditions, not their ratio."""
    samples = made_up(noise=0.0)
    samples.loc[samples["repetition"] > 10, "bytes"] //= 2
    assert slowdowns(samples)["wall"].to_numpy() == pytest.approx(1.7, rel=1e-6)


def test_figures_show_every_observation_and_the_medians() -> None:
    samples = made_up()
    bandwidth, slowdown = figures(samples, fit(samples))
    dots = [len(t.x) for t in bandwidth.data if t.mode == "markers"]
    [line] = [t for t in bandwidth.data if "lines" in t.mode]
    assert dots == [40] and list(line.x) == [1, 2] and line.error_y.array[0] > 0
    assert sum(len(t.y) for t in slowdown.data) == 2 * 20 + 2
    assert EXPLANATION.endswith(".")


def test_emulated_samples_are_marked_in_models_and_titles() -> None:
    samples = made_up(emulated=True)
    models = fit_samples("memory", samples)
    assert all(m.emulated for m in models)
    assert all("emulated" in f.layout.title.text for f in figures(samples, models))


def test_the_real_samples_fit_and_draw(measured: tuple[pd.DataFrame, list[Absent]]) -> None:
    samples = measured[0].assign(overlap=1.0)  # the writers' windows may miss each other on a busy machine
    models = fit_samples("memory", samples)
    assert models
    for model in models:
        assert model.coefficients[0].value > 0 and model.labels
    assert len(figures(samples, models)) >= 1
