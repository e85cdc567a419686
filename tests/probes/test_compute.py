"""The probe compute at work: workers together, what is absent, ends of all kinds."""

from __future__ import annotations

import os
import platform
import signal
from pathlib import Path

import pandas as pd
import psutil
import pytest

from probes.c_library import find_compiler
from probes.compute import WorkerPool, measure
from probes.compute_worker import ADD_TAKES_A_CYCLE
from probes.order_process import ProcessLost
from probes.run import collect
from probes.topology import usable_cores
from profiles.fits import fit_samples
from profiles.records import Settings
from tests.support.labs.components import processes_below, require
from tests.support.labs.machines import Tree

CORES = list(usable_cores())


def told_machine(folder: Path) -> Tree:
    """Make files of a machine with the CPUs of this one, whose kernel tells the clock."""
    tree = Tree(folder)
    tree.cpus(max(CORES) + 1)
    for cpu in CORES:
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", 3100000)
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/base_frequency", 2300000)
    return tree


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """One short real run of the probe, on this machine as its emulated sysfs shows it."""
    require(find_compiler(), "a C compiler")
    require(platform.machine() in ADD_TAKES_A_CYCLE, "a processor whose additions take a known time")
    settings = Settings(quick=True, budget_s=1, sysfs=told_machine(tmp_path_factory.mktemp("told")).sysfs)
    samples, absent = collect("compute", settings, measure)
    assert not [a for a in absent if "vector" in a.what and "cores" not in a.what]
    assert processes_below() == []
    return samples


def test_each_kind_is_measured_on_one_core_and_on_all(measured: pd.DataFrame) -> None:
    kinds = {(kind, precision) for kind in ("blas", "vector") for precision in ("double", "single")}
    seen = set(zip(measured["kind"], measured["precision"], measured["cores"], strict=True))
    assert seen >= {(*kind, n) for kind in (*kinds, ("chain", "integer")) for n in (1, len(CORES))}
    windows = measured.groupby(["kind", "precision", "repetition", "cores"]).size().reset_index(name="rows")
    assert (windows["rows"] == windows["cores"]).all()


def test_rows_hold_work_time_and_what_the_kernel_tells_of_the_first_core(measured: pd.DataFrame) -> None:
    working = measured[measured["kind"] != "chain"]
    assert (working["flops"] > 0).all() and (working["busy_s"] <= working["wall_s"]).all()
    assert (measured["adds_s"] > 0).all() and measured["flops"][measured["kind"] == "chain"].isna().all()
    first = measured["core"] == CORES[0]
    assert (measured["cpufreq_ghz"][first] == 3.1).all() and (measured["base_ghz"][first] == 2.3).all()
    assert measured["cpufreq_ghz"][~first].isna().all() and measured["max_ghz"].isna().all()
    notes = {m.note for m in fit_samples("compute", measured) if m.quantity == "compute_clock_ghz"}
    assert notes == {"the kernel says: 3.10 GHz, base 2.30 GHz"}


def test_workers_are_pinned_and_have_one_thread_of_blas_each() -> None:
    with WorkerPool(None, clock=False) as pool:
        rows, together = pool.compute(CORES, "blas", "double", seconds=0.02, halfway=lambda: None)
        assert len(rows) == len(CORES) and 0 <= together <= 1
        assert all(row.adds is None and row.flops for row in rows)
        for core, pid in pool.pids.items():
            assert psutil.Process(pid).cpu_affinity() == [core]
            assert psutil.Process(pid).num_threads() == 1
    assert processes_below() == []


def test_without_a_compiler_products_are_measured_and_the_rest_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    samples, absent = collect("compute", Settings(quick=True, budget_s=1), measure)
    assert set(samples["kind"]) == {"blas"} and samples["adds"].isna().all()
    (gone,) = [a for a in absent if a.what == "vector loop and clock"]
    assert "no C compiler" in gone.reason and gone.remedy == "apt-get install gcc"


def test_no_usable_cpu_is_said(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("sys/devices/system/cpu/online", 4000)
    samples, absent = collect("compute", Settings(sysfs=tree.sysfs), measure)
    assert samples.empty and "none of the CPUs" in absent[0].reason


def test_a_lost_worker_is_named_and_the_next_window_starts_new_ones() -> None:
    with WorkerPool(None, clock=False) as pool:
        pool.start(CORES)
        os.kill(pool.pids[CORES[-1]], signal.SIGKILL)
        with pytest.raises(ProcessLost, match=f"worker on CPU {CORES[-1]} ended with signal 9"):
            pool.compute(CORES, "blas", "single", seconds=0.01, halfway=lambda: None)
        assert processes_below() == []
        assert pool.compute(CORES[:1], "blas", "single", seconds=0.01, halfway=lambda: None)[0][0].flops
        with pytest.raises(ProcessLost, match=r"CPU 4000 ended with exit code 2: .*4000"):
            pool.start([4000])
