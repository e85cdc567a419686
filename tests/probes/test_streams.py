"""The streams at work: kernels, cycles of pointers, the probe, its fits and its pictures."""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probes.memory_plan import CHUNK, LINE, choose_arrays, plan_streams, working_sets
from probes.run import collect
from probes.streams import KERNELS, Arrays, Cycle, Library, Part, PinnedThreads, Times, measure
from probes.topology import data_caches_kib, read_topology
from profiles.fits import fit_samples
from profiles.fits.memory import Step, assign, find_steps, latencies
from profiles.records import Settings
from tenbin.report.probes.memory import STREAMS_EXPLANATION, stream_figures
from tests.support.labs.components import require
from tests.support.labs.machines import (
    MACHINES,
    Pristine,
    Tree,
    amd_many_caches,
    intel_two_sockets,
    virtual_machine,
)

NOW = Times(0.0, 0.0, 0.0)  # a window that ends after one chunk


@pytest.fixture(scope="module")
def library() -> Library:
    require(shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), "a C compiler")
    return Library()


def values(arrays: Arrays) -> list[np.ndarray]:
    """Give a, b and c as arrays of numpy."""
    starts = arrays.starts(0)
    return [np.ctypeslib.as_array((ctypes.c_double * arrays.elements).from_address(p)) for p in starts]


# --- kernels


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_element_has_the_value_that_stream_expects(library: Library, kernel: str) -> None:
    arrays = Arrays(3 * CHUNK)
    library.fill(arrays, 0, arrays.elements)
    a, b, c = values(arrays)
    i = np.arange(arrays.elements)
    assert (a == i % 97 + 1).all() and (b == i % 89 + 1).all() and (c == -1).all()
    s = 5.0
    part = Part(arrays, CHUNK, 2 * CHUNK)
    windows = [library.stream(kernel, part, s, NOW) for _ in range(2)]
    assert [w.done for w in windows] == [CHUNK, CHUNK] and part.at.value == 0
    expected = {
        "read": -np.ones(len(a)),
        "write": np.full(len(a), s),
        "write_nt": np.full(len(a), s),
        "copy": a,
        "scale": s * a,
        "add": a + b,
        "triad": a + s * b,
    }[kernel]
    assert (c[CHUNK:] == expected[CHUNK:]).all()
    assert (c[:CHUNK] == -1).all()  # not its part
    assert (a == i % 97 + 1).all() and (b == i % 89 + 1).all()
    sums = [a[CHUNK : 2 * CHUNK].sum(), a[2 * CHUNK :].sum()]
    assert [w.sum for w in windows] == (sums if kernel == "read" else [0, 0])


def test_bytes_of_an_element_are_streams() -> None:
    assert {name: kernel.bytes for name, kernel in KERNELS.items()} == {
        "read": 8, "write": 8, "write_nt": 8, "copy": 16, "scale": 16, "add": 24, "triad": 24,
    }  # fmt: skip


# --- the cycle of pointers


def test_the_cycle_visits_every_line_once_at_every_size(library: Library) -> None:
    arrays = Arrays(8 * CHUNK)
    library.fill(arrays, 0, arrays.elements)
    cycle = Cycle(library, arrays.lines, seed=7)
    words = values(arrays)[2].view(np.uint64)
    for lines in (1, 2, 64, 100, 4096, 30000):
        cycle.grow(lines)
        at, seen = 0, []
        for _ in range(lines):
            seen.append(at)
            at = (int(words[at * 8]) - arrays.lines) // LINE
        assert at == 0 and sorted(seen) == list(range(lines))
        window = cycle.chase(0.0)
        assert window.done == 512 and window.wall_s > 0


def test_all_cycles_are_as_likely(library: Library) -> None:
    """Of four lines there are 3! cycles; chi-squared with 5 degrees of freedom is seldom above 25."""
    arrays = Arrays(CHUNK)
    library.fill(arrays, 0, arrays.elements)
    words = values(arrays)[2].view(np.uint64)
    counts: dict[tuple[int, ...], int] = {}
    for seed in np.random.default_rng(5).integers(1, 2**63, 3000):
        Cycle(library, arrays.lines, int(seed)).grow(4)
        order = tuple((int(words[k * 8]) - arrays.lines) // LINE for k in range(4))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((n - 500) ** 2 / 500 for n in counts.values()) < 25


# --- the plan


@pytest.mark.parametrize("name", MACHINES)
def test_arrays_are_four_times_the_caches_on_every_machine(pristine: Pristine, name: str) -> None:
    tree = pristine(MACHINES[name])
    topology = read_topology(tree.sysfs, set(range(64)))
    if not topology.cpus:  # a machine that lists none: those of the test's own, as the probe has it
        topology = read_topology(tree.sysfs, {0, 1})
    caches_kib = data_caches_kib(tree.sysfs, topology.cores[0].index)
    elements, amiss = choose_arrays(topology, 1e6, caches_kib)
    assert set(elements) == {cpu.node for cpu in topology.cores}
    for node, n in elements.items():
        llcs = {cpu.llc for cpu in topology.cores_of(node)}
        assert n * 8 / 2**20 >= 4 * len(llcs) * (topology.llc_mb or 64)
        assert n % CHUNK == 0
    assert bool(amiss) == (topology.llc_mb is None)
    counts = [len(p.cpus) for p in plan_streams(topology) if p.numa == "local"]
    assert counts[0] == 1 and counts[-1] == len(topology.cores)


def test_sockets_are_streamed_by_themselves_too(pristine: Pristine) -> None:
    tree = pristine(intel_two_sockets)
    topology = read_topology(tree.sysfs, set(range(16)))
    points = plan_streams(topology)
    assert [(p.numa, len(p.cpus)) for p in points] == [
        ("local", 1), ("local", 2), ("local", 4), ("local", 8), ("0->0", 4), ("1->1", 4),
    ]  # fmt: skip
    assert points[-1].labels["cpus"] == "4,5,6,7"
    assert data_caches_kib(tree.sysfs, 0) == {1: 48, 2: 2048, 3: 30720}
    elements, _ = choose_arrays(topology, 1e6, data_caches_kib(tree.sysfs, 0))
    assert {n * 8 / 2**20 for n in elements.values()} == {4 * 30 + 4 * 4 * 2}


def test_little_memory_shrinks_the_arrays_or_says_so(pristine: Pristine) -> None:
    tree: Tree = pristine(amd_many_caches)  # 4 caches of 32 MB: 1.5 GB and more by the rule
    topology = read_topology(tree.sysfs, set(range(16)))
    caches_kib = data_caches_kib(tree.sysfs, 0)
    elements, amiss = choose_arrays(topology, 1400.0, caches_kib)
    assert 2 * 128 < elements[0] * 8 / 2**20 < 4 * 128 and "flatters" in amiss[-1].reason
    assert 3 * elements[0] * 8 / 2**20 <= 1401
    elements, amiss = choose_arrays(topology, 500.0, caches_kib)
    assert not elements and amiss[-1].what == "memory streams and latency" and amiss[-1].remedy


def test_a_machine_that_names_no_cache(pristine: Pristine) -> None:
    tree = pristine(virtual_machine)
    assert data_caches_kib(tree.sysfs, 0) == {}
    elements, amiss = choose_arrays(read_topology(tree.sysfs, {0, 1, 2, 3}), 1e6, {})
    assert elements == {0: (4 * 64 + 4 * 4 * 2) * 2**20 // 8}
    assert "64 MB assumed" in amiss[0].reason


@pytest.mark.parametrize(("largest_mb", "per_octave"), [(128, 3), (1040, 2), (64, 1)])
def test_working_sets_rise_evenly(largest_mb: int, per_octave: int) -> None:
    sets = np.array(working_sets(largest_mb * 2**20, per_octave)) * LINE
    assert sets[0] == 4096 and sets[-1] == largest_mb * 2**20
    ratios = sets[1:-1] / sets[:-2]
    below = sets[1:-1] <= 64 * 2**20
    assert np.allclose(ratios[below], 2 ** (1 / per_octave), rtol=0.02)


# --- steps


def staircase(sizes: np.ndarray, *, sharp: bool, seed: int) -> np.ndarray:
    """Latencies behind caches of 48, 2048 and 32768 KiB: 1.6, 5, 30 and 110 ns, with noise and outliers."""
    rng = np.random.default_rng(seed)
    ns = np.full(len(sizes), 1.6)
    for cache, before, after in ((48, 1.6, 5), (2048, 5, 30), (32768, 30, 110)):
        misses = np.clip(1 - cache / sizes, 0, 1) if not sharp else (sizes > cache).astype(float)
        ns += np.where(sizes > cache, misses, 0) * (after - before)
    ns *= np.exp(rng.normal(0, 0.04, len(sizes)))
    ns[rng.choice(len(sizes) - 4) + 2] *= 2  # a window that others disturbed
    return ns


@pytest.mark.parametrize("per_octave", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_the_steps_of_a_staircase_are_found(seed: int, per_octave: int) -> None:
    sizes = np.array(working_sets(128 * 2**20, per_octave)) * LINE / 1024
    for sharp in (True, False):
        steps = find_steps(sizes.tolist(), staircase(sizes, sharp=sharp, seed=seed).tolist())
        assert len(steps) == 3
        for step, cache in zip(steps, (48, 2048, 32768), strict=True):
            # One point of the grid; without LRU a cache holds a part of what is too large for it.
            assert cache / 1.5 < step.x < cache * (1.5 if sharp else 2.2)
            assert step.begin <= step.low <= step.x <= step.high <= step.end


def test_level_and_gently_rising_curves_have_no_step() -> None:
    sizes = [2.0**k for k in range(20)]
    assert find_steps(sizes, [3.0] * 20) == []
    assert find_steps(sizes, [1.1**k for k in range(20)]) == []
    assert find_steps(sizes[:3], [1.0, 9.0, 9.0]) == []


def step(x: float) -> Step:
    return Step(x, x / 1.1, x * 1.1, x / 1.3, x * 1.3)


def test_a_step_goes_to_the_nearest_cache_and_a_tlb_to_none() -> None:
    named = {1: 48.0, 2: 2048.0, 3: 32768.0}
    steps = assign([step(50), step(1800), step(8000), step(30000)], named)
    assert {level: s.x for level, s in steps.items()} == {1: 50, 2: 1800, 3: 30000}
    assert {level: s.x for level, s in assign([step(2000)], named).items()} == {2: 2000}
    assert assign([step(3)], named) == {} and assign([], named) == {}


# --- fits and pictures


def table(*, named: bool, rounds: int = 4) -> pd.DataFrame:
    """Make samples of a machine with two cores; bandwidths 12 and 20 GB/s."""
    rows: list[dict[str, object]] = []
    sizes = np.array(working_sets(128 * 2**20, 3)) * LINE / 1024
    for number in range(rounds):
        base = {"round": number, "emulated": False, "repetition": 1, "core": 0}
        if named:
            rows += [
                base | {"kind": "cache", "level": k, "size_kib": s}
                for k, s in ((1, 48), (2, 2048), (3, 32768))
            ]
        for size, ns in zip(sizes, staircase(sizes, sharp=True, seed=number), strict=True):
            row = {"kind": "latency", "working_set_kib": size, "accesses": 1000}
            rows += [base | row | {"wall_s": ns * 1e-6 * disturbed} for disturbed in (1, 1.01, 1, 3)]
        for cores, gbs in ((1, 12.0), (2, 20.0)):
            for core in range(cores):
                row = {"kind": "bandwidth", "kernel": "copy", "cores": cores, "cpus": "0,1"[: 2 * cores - 1]}
                more = {
                    "numa": "local",
                    "wall_s": 1.0,
                    "bytes": gbs / cores * 1e9,
                    "overlap": 1.0,
                    "placed": None,
                }
                rows.append(base | row | more | {"core": core})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("named", [True, False])
def test_levels_and_bandwidths_are_fitted(named: bool) -> None:
    samples = table(named=named)
    models = {m.title.removesuffix("}").replace("{", " "): m for m in fit_samples("streams", samples)}
    for level, ns in (("L1", 1.6), ("L2", 5), ("L3", 30), ("memory", 110)):
        assert models[f"access_latency_ns level={level}"].coefficients[0].value == pytest.approx(ns, rel=0.05)
    for level, kib in (("L1", 48), ("L2", 2048), ("L3", 32768)):
        size = models[f"cache_size_kib level={level}"]
        assert size.coefficients[0].value == pytest.approx(kib, rel=0.3)
        assert size.note == (f"sysfs: {kib} KiB" if named else "")
    copies = [models[f"stream_bandwidth_gbs cores={n},kernel=copy,numa=local"] for n in (1, 2)]
    assert [m.coefficients[0].value for m in copies] == pytest.approx([12, 20])
    drawn = stream_figures(samples, list(models.values()))
    assert [f.layout.title.text for f in drawn] == ["Streams through memory", "Latency of an access"]
    assert "STREAM" in STREAMS_EXPLANATION and len(latencies(samples)) == len(latencies(table(named=named)))


def test_windows_that_do_not_count_are_left_out() -> None:
    samples = table(named=True, rounds=1)
    apart = samples.assign(overlap=0.5, accesses=0)
    assert fit_samples("streams", apart) == [] and stream_figures(apart, []) == []
    one_lost = samples[~((samples["cores"] == 2) & (samples["core"] == 1))]
    counts = [m.labels["cores"] for m in fit_samples("streams", one_lost) if "cores" in m.labels]
    assert counts == ["1"]


# --- the probe


def small_machine(root: Path) -> Path:
    """Make a sysfs of this test's own CPUs with small caches, so that arrays are filled at once."""
    tree = Tree(root)
    allowed = sorted(os.sched_getaffinity(0))
    listed = ",".join(map(str, allowed))
    tree.put("sys/devices/system/cpu/online", listed)
    for cpu in allowed:
        caches = [
            (1, "Data", "48K", str(cpu)),
            (2, "Unified", "2048K", str(cpu)),
            (3, "Unified", "4096K", listed),
        ]
        tree.cpu(cpu, siblings=str(cpu), caches=caches)
    return tree.sysfs


def test_the_probe_measures_every_kernel_and_the_latency(library: Library, tmp_path: Path) -> None:
    samples, absent = collect(
        "streams", Settings(quick=True, budget_s=1, sysfs=small_machine(tmp_path)), measure
    )
    cores = len(read_topology(tmp_path / "sys", os.sched_getaffinity(0)).cores)
    rows = samples[samples["kind"] == "bandwidth"]
    assert set(rows["kernel"]) == set(KERNELS) - ({"write_nt"} if not library.has_write_nt else set())
    assert {1, cores} <= set(rows["cores"])
    sizes = {name: kernel.bytes for name, kernel in KERNELS.items()}
    assert (rows["bytes"] % (CHUNK * rows["kernel"].map(sizes)) == 0).all() and (rows["bytes"] > 0).all()
    assert not [a for a in absent if a.failed]
    curve = latencies(samples)
    assert curve["working_set_kib"].min() == 4 and curve["working_set_kib"].max() >= 64 * 1024
    assert samples[samples["kind"] == "cache"]["size_kib"].tolist() == [48, 2048, 4096]
    assert [t for t in threading.enumerate() if "ThreadPoolExecutor" in t.name] == []


def test_each_thread_stays_on_its_core_and_memory_goes_with_the_context(library: Library) -> None:
    topology = read_topology(Path("/sys"), os.sched_getaffinity(0))
    cpus = topology.cores[:2]
    before = os.sched_getaffinity(0)
    with PinnedThreads(library, cpus) as threads:
        threads.prepare(dict.fromkeys({cpu.node for cpu in cpus}, 64 * CHUNK), within_s=60.0)
        masks = [threads._do(cpu.index, os.sched_getaffinity, 0).result() for cpu in cpus]
        assert masks == [{cpu.index} for cpu in cpus] and os.sched_getaffinity(0) == before
        rows, together = threads.stream("triad", cpus, 0.02)
        assert len(rows) == len(cpus) and 0 <= together <= 1
        assert all(row.bytes % (24 * CHUNK) == 0 and row.wall_s > 0 for row in rows)
    assert threads.arrays == {}


def test_arrays_that_are_filled_too_slowly_are_half_as_large_at_least(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.streams.PIECE", 97 * 89)
    cpus = read_topology(Path("/sys"), os.sched_getaffinity(0)).cores[:1]
    with PinnedThreads(library, cpus) as threads:
        threads.prepare({cpus[0].node: 100 * CHUNK}, within_s=0.0)
        assert 50 * CHUNK <= threads.filled[cpus[0].node] <= 51 * CHUNK


def test_what_lacks_is_absent_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysfs = small_machine(tmp_path)
    monkeypatch.setattr("probes.c_library.COMPILERS", ("no-such-compiler",))
    samples, absent = collect("streams", Settings(quick=True, budget_s=1, sysfs=sysfs), measure)
    assert "gcc" in absent[-1].remedy and "C compiler" in absent[-1].reason
    assert fit_samples("streams", samples) == []
    (tmp_path / "meminfo").write_text("MemAvailable: 20000 kB\n")
    _, absent = collect("streams", Settings(procfs=tmp_path, sysfs=sysfs), measure)
    assert "MB can be taken" in absent[-1].reason
    (tmp_path / "none/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "none/devices/system/cpu/online").write_text("4000\n")
    _, absent = collect("streams", Settings(sysfs=tmp_path / "none"), measure)
    assert "none of the CPUs" in absent[-1].reason
