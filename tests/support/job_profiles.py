"""Job profiles of programs whose behaviour is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probes.memory import Stream
from profiles.fits.job import fit
from profiles.jobs import Curve, JobProfile, Level, NetworkHalf, ProbePressure
from profiles.records import Coefficient, Condition, NodeKind, Quality

INTENSITIES = (0.0, 25.0, 50.0, 75.0, 100.0)
FULL_GBS = 10.0  # of one writer
RUN_S = 10.0


def shorten_sessions(
    patch: pytest.MonkeyPatch, repetitions: int = 1, intensities: tuple[float, ...] = (0.0, 100.0)
) -> None:
    """For tests that ask neither about caches, which a gigabyte fills, nor about how long one looks."""
    patch.setattr("agent.job_profile.profiler.choose_area", lambda topology, free_mb: (16.0, []))
    for name, value in {
        "Stream": partial(Stream, window_s=0.05),
        "LEAST_RUN_S": 0.1,
        "QUICK_LEAST": repetitions,
        "QUICK_MOST": repetitions,
        "QUICK_INTENSITIES": intensities,
    }.items():
        patch.setattr(f"agent.job_profile.session.{name}", value)


def samples(
    suffers: float = 0.05,
    pressure_gbs: float = 5.0,
    law: float = 0.05,
    job_cores: int = 1,
    *,
    noise: float = 0.0,
    repetitions: int = 6,
    seed: int = 1,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables ``runs`` and ``windows`` of a job that takes 10 s alone.

    Args:
        suffers: what a GB/s beside it adds to its time, as a share. law: likewise of memprobe.
        pressure_gbs: what it presses with.
        noise: standard deviation of each time, as a share.
    """
    rng = np.random.default_rng(seed)
    runs: list[dict[str, float]] = []
    windows: list[dict[str, Any]] = []

    def noisy(value: float) -> float:
        return value * float(np.exp(rng.normal(0, noise)))

    def window(repetition: int, phase: str, intensity: float, beside_gbs: float, **more: Any) -> None:
        took = noisy(0.2)
        written = 0.2 * FULL_GBS * 1e9 / (1 + law * beside_gbs)
        row = {"repetition": repetition, "phase": phase, "measured": True, "intensity_percent": intensity}
        row |= {"core": 8, "wall_s": took, "thread_cpu_s": took, "bytes": written}
        windows.append(row | more)

    for repetition in range(1, repetitions + 1):
        for intensity in INTENSITIES:
            beside = intensity / 100 * FULL_GBS * job_cores
            window(repetition, "reference", intensity, beside)
            for core in range(job_cores if intensity else 0):
                window(repetition, "reference", intensity, FULL_GBS, measured=False, core=core)
            if intensity:
                window(repetition, "run", intensity, pressure_gbs)
            slowed = 1 + suffers * intensity / 100 * FULL_GBS
            took = {name: noisy(RUN_S * slowed) for name in ("wall_s", "cpu_s")}
            runs.append({"repetition": repetition, "intensity_percent": intensity, **took, **_NEEDS})
    return pd.DataFrame(runs), pd.DataFrame(windows)


_NEEDS = {
    "peak_memory_mb": 100.0,
    "read_mb": 1.0,
    "written_mb": 2.0,
    "disk_read_mb": 0.0,
    "disk_written_mb": 2.0,
}


def make_job(
    name: str, runs: pd.DataFrame | None = None, windows: pd.DataFrame | None = None, **changes: Any
) -> JobProfile:
    """Fit the profile of these samples."""
    if runs is None or windows is None:
        runs, windows = samples()
    whole: dict[str, Any] = {
        "name": name,
        "id": "20260101T000000Z",
        "node": "node",
        "kind": NodeKind(key="0123456789ab", title="Example 9000, 2 cores, 7 GiB"),
        "created": datetime(2026, 1, 1, tzinfo=UTC),
        "duration_s": 60.0,
        "tenbin_version": "0",
        "command": ("sleep", "10"),
        "folder": "/tmp",
        "cpus": (0,),
        "probe_cpus": (8,),
        "repetitions": int(runs["repetition"].nunique()),
        "clock": "wall",
        "condition": Condition(
            probe="job", round=0, duration_s=60.0, reference_s=0.005, steal_ratio=0.0, others_ratio=0.0
        ),
        **fit(runs, windows)._asdict(),
    }
    return JobProfile(**{**whole, **changes})


def over_hosts(
    memory: tuple[pd.DataFrame, pd.DataFrame], network: tuple[pd.DataFrame, pd.DataFrame]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One job's tables, from those beside memprobe and those beside comprobe (as ``samples`` makes them)."""
    (runs, windows), (other_runs, other_windows) = memory, network
    beside = np.where(runs["intensity_percent"] == 0, "", "memory")
    other_runs = other_runs[other_runs["intensity_percent"] > 0].assign(beside="network")
    return (
        pd.concat([runs.assign(beside=beside), other_runs], ignore_index=True),
        pd.concat([windows.assign(probe="memory"), other_windows.assign(probe="network")], ignore_index=True),
    )


def bursty(
    pressure: Callable[[float], float], noise: float = 0.0, repetitions: int = 6, seed: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of a job of 10 s that slows memprobe down by ``pressure(share of its run that is over)``."""
    rng = np.random.default_rng(seed)
    runs, windows = [], []
    for repetition in range(1, repetitions + 1):
        runs.append({"repetition": repetition, "intensity_percent": 100.0, "wall_s": RUN_S})
        row = {"repetition": repetition, "measured": True, "core": 8, "wall_s": 0.2, "thread_cpu_s": 0.2}
        windows.append(row | {"phase": "reference", "intensity_percent": 0.0, "bytes": 0.2 * FULL_GBS * 1e9})
        for i in range(50):
            slowed = pressure((i + 0.5) / 50) * float(np.exp(rng.normal(0, noise)))
            written = 0.2 * FULL_GBS * 1e9 / slowed
            more = {"phase": "run", "intensity_percent": 100.0, "at_s": 0.2 * i, "bytes": written}
            windows.append(row | more)
    return pd.DataFrame(runs), pd.DataFrame(windows)


def on_network(
    name: str,
    share: float,
    slowed: float,
    inside: float,
    *,
    reference: float = 1.75,
    spread: float | None = 0.0,
) -> JobProfile:
    """Make a job with ``share`` of its time on the network beside comprobe, which slows it ``slowed`` times.

    Args:
        inside: share of its time inside MPI. reference: comprobe's slow-down beside itself.
        spread: half of each interval; None: none is known.
    """

    def ratio(value: float) -> Coefficient:
        low, high = (None, None) if spread is None else (value - spread, value + spread)
        return Coefficient(
            name="slowdown", value=value, unit="ratio", low=low, high=high, n=6, quality=Quality.GOOD
        )

    def curve(full: float) -> Curve:
        """Speeds are straight over the share of time that comprobe is at work."""
        levels = [
            Level(
                intensity_percent=i, offered_gbs=i / 1000, slowdown=ratio(1 / (1 - i / 100 * (1 - 1 / full)))
            )
            for i in INTENSITIES
        ]
        return Curve(clock="wall", levels=tuple(levels))

    pressure = ProbePressure(clock="wall", slowdown=ratio(1 / (1 - share * (1 - 1 / reference))))
    half = NetworkHalf(
        message_bytes=1 << 20, sensitivity=curve(slowed), reference=curve(reference), pressure=pressure
    )
    mpi = ratio(inside).model_copy(update={"name": "mpi_share"})
    job = make_job(name, mpi=True, ranks=2, hosts=("n1", "n2"))
    return job.model_copy(update={"network": half, "alone": (*job.alone, mpi)})
