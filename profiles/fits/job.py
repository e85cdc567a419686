"""From the samples of a job profile to its needs, its sensitivity, the reference and its pressure.

``runs``, one row a run of the job: ``repetition``, ``beside`` ("": alone, "memory": memprobe, "network":
comprobe), ``intensity_percent`` of that (0: alone), ``wall_s``, ``cpu_s``, ``peak_memory_mb``, ``read_mb``,
``written_mb``, ``disk_read_mb``, ``disk_written_mb``; of an MPI program ``mpi_share``; of one that uses
OpenCL ``device_memory_mb`` (peak of buffers and images), ``registered_mb`` (content of its checkpoint),
``kernels``, ``compile_s``, ``drain_s``.

``windows``, one row a writer and window of time: ``repetition``; ``round`` of a reference in it, if there are
several, each with all intensities; ``probe`` ("memory", "network": there a row is of all comprobe,
``thread_cpu_s`` its time in all-to-alls, ``bytes`` what each rank sent); ``phase``
("reference": the probe beside itself, "run": beside the job); ``measured`` (this writer is measured, and does
not disturb); ``intensity_percent`` of the disturbing writers (reference) or of itself (run); ``core``,
``at_s`` since the job's start (run), ``wall_s``, ``thread_cpu_s``, ``bytes``.

Without the columns ``beside`` and ``probe`` all rows are memprobe's.

Every slow-down is a ratio within one repetition, of the same few minutes (of a reference: the median of the
ratios within its rounds, of the same second); the median over the repetitions and its interval are reported.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiles.jobs import (
    COMPROBE_BYTES,
    CapLevel,
    Clock,
    Curve,
    Level,
    NetworkHalf,
    Phases,
    ProbePressure,
    UnderCaps,
)
from profiles.models import constant, knee
from profiles.models.contention import equivalent, share_alone
from profiles.records import Coefficient, Model

CLOCKS: tuple[Clock, ...] = ("wall", "cpu")
RUN_COLUMN = {"wall": "wall_s", "cpu": "cpu_s"}
WRITER_COLUMN = {"wall": "wall_s", "cpu": "thread_cpu_s"}
NEEDS = {
    "run_s": ("wall_s", "s"),
    "cpu_s": ("cpu_s", "s"),
    "peak_memory_mb": ("peak_memory_mb", "MB"),
    "read_mb": ("read_mb", "MB"),
    "written_mb": ("written_mb", "MB"),
    "disk_read_mb": ("disk_read_mb", "MB"),
    "disk_written_mb": ("disk_written_mb", "MB"),
    "mpi_share": ("mpi_share", "ratio"),
    "device_memory_mb": ("device_memory_mb", "MB"),
    "registered_mb": ("registered_mb", "MB"),
    "kernels": ("kernels", "1"),
    "compile_s": ("compile_s", "s"),
    "drain_s": ("drain_s", "s"),
}
SMALL = {"s": 0.01, "MB": 1.0, "ratio": 0.05, "1": 1.0}  # below, a relative interval means nothing
LEAST_CPU_S = 0.05  # less CPU time than this is too coarsely counted for a ratio


class Fitted(NamedTuple):
    """Results of a fit; absent where the samples do not support them."""

    alone: tuple[Coefficient, ...]
    sensitivity: tuple[Curve, ...]
    reference: tuple[Curve, ...]
    pressure: tuple[ProbePressure, ...]
    phases: tuple[Phases, ...] = ()
    network: NetworkHalf | None = None


def fit(runs: pd.DataFrame, windows: pd.DataFrame) -> Fitted:
    """Fit all that ``runs`` and ``windows`` support."""
    windows = windows[windows["bytes"] > 0] if len(windows) else windows
    alone = tuple(
        _median(name, unit, values, SMALL[unit])
        for name, (column, unit) in NEEDS.items()
        if (values := _alone(runs, column))
    )
    inside = next((need for need in alone if need.name == "mpi_share"), None)
    network = _network(_of(runs, "beside", "network"), _of(windows, "probe", "network"), inside)
    runs, windows = _of(runs, "beside", "memory"), _of(windows, "probe", "memory")
    sensitivity, reference, pressure, phases = [], [], [], []
    for clock in CLOCKS:
        if curve := _sensitivity(runs, windows, clock):
            sensitivity.append(curve)
        if curve := _reference(windows, clock):
            reference.append(curve)
            if pressed := _pressure(windows, curve):
                pressure.append(pressed)
        if seen := fit_phases(runs, windows, clock, WRITER_COLUMN[clock]):
            phases.append(seen)
    return Fitted(alone, tuple(sensitivity), tuple(reference), tuple(pressure), tuple(phases), network)


def _alone(runs: pd.DataFrame, column: str) -> list[float]:
    if column not in runs:
        return []
    values: list[float] = runs.loc[runs["intensity_percent"] == 0, column].dropna().tolist()
    return values


def _of(table: pd.DataFrame, column: str, probe: str) -> pd.DataFrame:
    """Select the rows of that probe, or of none."""
    if column not in table:
        return table if probe == "memory" else table[:0]
    return table[table[column].isin((probe, ""))]


def _network(runs: pd.DataFrame, windows: pd.DataFrame, inside_mpi: Coefficient | None) -> NetworkHalf | None:
    if not len(windows):
        return None
    # comprobe pauses between all-to-alls, so its speed is in the time inside them.
    inside = windows.assign(wall_s=windows["thread_cpu_s"])
    reference = _reference(inside, "wall")
    half = NetworkHalf(
        message_bytes=COMPROBE_BYTES,
        sensitivity=_sensitivity(runs, windows, "wall"),
        reference=reference,
        pressure=_pressure(inside, reference, "comprobe") if reference else None,
    )
    if half.pressure is None or half.pressure.equivalent_gbs is None:
        return half
    share = share_alone(half, inside_mpi)
    traffic = share and _as_traffic(share, full_gbs(windows))
    pressure = half.pressure.model_copy(update={"equivalent_gbs": traffic})
    return half.model_copy(update={"pressure": pressure})


def _as_traffic(share: Coefficient, full: float) -> Coefficient:
    """Convert a share of the time to the traffic of comprobe at work for that share."""
    low, high = (None if bound is None else full * bound for bound in (share.low, share.high))
    more = {"name": "equivalent", "value": full * share.value, "low": low, "high": high}
    return share.model_copy(update={**more, "unit": "GB/s", "scale": full})


def full_gbs(windows: pd.DataFrame) -> float:
    """Sum what the measured writers write alone at full intensity, in GB/s of their CPU time."""
    alone = windows[_is_reference(windows, 0)]
    by_core = alone.groupby("core")[["bytes", "thread_cpu_s"]].sum()
    return float((by_core["bytes"] / by_core["thread_cpu_s"]).sum() / 1e9)


def _is_reference(windows: pd.DataFrame, intensity: float) -> pd.Series[bool]:
    chosen = (windows["phase"] == "reference") & windows["measured"]
    return chosen & (windows["intensity_percent"] == intensity)


def _per_byte(windows: pd.DataFrame, clock: Clock, *within: str) -> pd.Series[float]:
    """Compute seconds a byte in each repetition (and ``within``), summed over windows and writers."""
    sums = windows.groupby(["repetition", *within])[[WRITER_COLUMN[clock], "bytes"]].sum()
    return sums[WRITER_COLUMN[clock]] / sums["bytes"]


def _sensitivity(runs: pd.DataFrame, windows: pd.DataFrame, clock: Clock) -> Curve | None:
    times = runs.pivot_table(index="repetition", columns="intensity_percent", values=RUN_COLUMN[clock])
    if 0 not in times or (clock == "cpu" and times[0].median() < LEAST_CPU_S) or not len(windows):
        return None
    levels = []
    full = full_gbs(windows)
    traffic = _traffic_gbs(windows[windows["phase"] == "run"])
    for intensity in times.columns:
        ratios = (times[intensity] / times[0]).dropna().tolist()
        if ratios:
            levels.append(_level(float(intensity), full, ratios, traffic.get(float(intensity))))
    return Curve(clock=clock, levels=tuple(levels)) if len(levels) > 1 else None


def _reference(windows: pd.DataFrame, clock: Clock) -> Curve | None:
    if not len(windows):
        return None
    windows = windows.assign(round=windows["round"].fillna(0) if "round" in windows else 0)
    chosen = windows[windows["phase"] == "reference"]
    per_byte = _per_byte(chosen[chosen["measured"]], clock, "round", "intensity_percent").unstack()
    if 0 not in per_byte:
        return None
    cores = chosen.groupby("measured")["core"].nunique()
    # The writers that disturb are as many as the job has cores; each offers what a measured one does.
    full = full_gbs(windows) * cores.get(False, 0) / cores.get(True, 1)
    levels = []
    for intensity in per_byte.columns:
        slower = (per_byte[intensity] / per_byte[0]).dropna()
        if ratios := slower.groupby("repetition").median().tolist():
            levels.append(_level(float(intensity), full, ratios, None))
    return Curve(clock=clock, levels=tuple(levels)) if len(levels) > 1 else None


def _pressure(windows: pd.DataFrame, reference: Curve, probe: str = "memprobe") -> ProbePressure | None:
    """Compare the probe at full intensity beside the job with the probe alone in the same repetition."""
    clock = reference.clock
    beside = windows[(windows["phase"] == "run") & (windows["intensity_percent"] == 100)]
    alone = _per_byte(windows[_is_reference(windows, 0)], clock)
    ratios = (_per_byte(beside, clock) / alone).dropna().tolist()
    if not ratios:
        return None
    slowdown = _median("slowdown", "ratio", ratios)
    traffic = equivalent(reference, slowdown)
    note = "" if traffic else f"{probe} hardly suffers beside itself here: pressure has no measure"
    return ProbePressure(clock=clock, slowdown=slowdown, equivalent_gbs=traffic, note=note)


def _level(intensity: float, full: float, ratios: list[float], traffic: float | None) -> Level:
    return Level(
        intensity_percent=intensity,
        offered_gbs=full * intensity / 100,
        traffic_gbs=traffic,
        slowdown=_median("slowdown", "ratio", ratios),
    )


def _traffic_gbs(windows: pd.DataFrame) -> dict[float, float]:
    """Sum the mean rates of the writers in the windows of each intensity, in GB/s."""
    by_core = windows.groupby(["intensity_percent", "core"])[["bytes", "wall_s"]].sum()
    rates = by_core["bytes"] / by_core["wall_s"]
    return dict(rates.groupby("intensity_percent").sum() / 1e9)


def _median(name: str, unit: str, values: list[float], small: float = 0.0) -> Coefficient:
    scale = max(abs(pd.Series(values).median()), small) if small else None
    middle = constant.median(values, name=name, unit=unit, scale=scale)
    return middle.model_copy(update={"low": None if middle.low is None else max(middle.low, 0.0)})


# -- memprobe over the course of a job's run ---------------------------------------------------------------
#
# Averages hide peaks (paper D, figure 2). The run is cut into parts by the share that is over, so that
# runs of different length agree. The worst part of several is always worse than the mean, if only by
# luck. So the worst part is found in all repetitions but one, and measured in that one, for each in turn.


MOST_PARTS, LEAST_PARTS = 40, 5
STANDS_OUT = 1.05  # times the whole run's slow-down, at least, by the interval's lower bound


def fit_phases(runs: pd.DataFrame, windows: pd.DataFrame, clock: Clock, column: str) -> Phases | None:
    """Fit memprobe's windows at full intensity; None where there are too few, or one repetition only.

    Args:
        runs, windows: memprobe's only.
        column: of ``windows``, with the time by that clock.
    """
    if "at_s" not in windows or not len(windows):
        return None
    beside = windows[(windows["phase"] == "run") & (windows["intensity_percent"] == 100)]
    alone = windows[
        (windows["phase"] == "reference") & windows["measured"] & (windows["intensity_percent"] == 0)
    ]
    took = runs[runs["intensity_percent"] == 100].set_index("repetition")["wall_s"]
    if not len(beside) or not len(alone):
        return None
    parts = min(int(beside.groupby(["repetition", "core"]).size().median()), MOST_PARTS)
    sums = alone.groupby("repetition")[[column, "bytes"]].sum()
    undisturbed = sums[column] / sums["bytes"]
    repetitions = sorted(set(beside["repetition"]) & set(took.index) & set(undisturbed.index))
    if parts < LEAST_PARTS or len(repetitions) < 2:
        return None
    beside = beside[beside["repetition"].isin(repetitions)]
    seen = _series(beside, took, parts, column).div(undisturbed[repetitions], axis=0).to_numpy(dtype=float)
    if not np.isfinite(seen).any(axis=1).all():
        return None
    return _phases(seen, clock, float(took.median()) / parts)


def _series(rows: pd.DataFrame, took: pd.Series[float], parts: int, column: str) -> pd.DataFrame:
    """Compute seconds a byte in each repetition and part of its run; not a number where no window lies."""
    middle = (rows["at_s"] + rows["wall_s"] / 2) / rows["repetition"].map(took)
    part = (middle * parts).astype(int).clip(0, parts - 1)
    sums = rows.groupby(["repetition", part])[[column, "bytes"]].sum()
    return (sums[column] / sums["bytes"]).unstack().reindex(columns=range(parts))


def _phases(seen: NDArray[np.float64], clock: Clock, bin_s: float) -> Phases | None:
    peaks, excess = [], []
    for i in range(len(seen)):
        worst = int(np.nanargmax(_middle(np.delete(seen, i, axis=0))))
        if np.isfinite(seen[i, worst]):
            peaks.append(float(seen[i, worst]))
            excess.append(float(seen[i, worst] / np.nanmean(seen[i])))
    if not peaks:
        return None
    middle = _middle(seen)
    low = constant.median(excess, name="excess", unit="ratio").low
    return Phases(
        clock=clock,
        bin_s=bin_s,
        slowdown=tuple(None if np.isnan(value) else float(value) for value in middle),
        peak=constant.median(peaks, name="peak", unit="ratio"),
        peak_at_percent=100 * (int(np.nanargmax(middle)) + 0.5) / len(middle),
        bursts=low is not None and low > STANDS_OUT,
    )


def _middle(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the median over the repetitions; not a number where all lack the part."""
    columns = [column[np.isfinite(column)] for column in seen.T]
    return np.array([np.median(column) if len(column) else np.nan for column in columns])


# -- under power caps --------------------------------------------------------------------------------------
#
# Run time, power and energy at each cap, and speed over the cap, of the samples of
# ``agent.job_profile.caps``. Speed under a cap is the run time without cap over the run time under the
# cap, of the same repetition; the curve has the form of the node's loads (``profiles.models.knee``, paper
# C, eq. 4.5).


CAP_NEEDS = {"run_s": ("wall_s", "s"), "power_w": ("power_w", "W"), "energy_j": ("energy_j", "J")}


def fit_caps(samples: pd.DataFrame, emulated: str = "", doubt: str = "") -> UnderCaps:
    """Fit the runs under caps; without a curve where there are too few caps, and then ``note`` says why.

    Args:
        doubt: why there is no curve, if known.
    """
    rows = samples.assign(cap_w=samples["cap_w"].astype(float))
    caps = sorted(set(rows["cap_w"].dropna().tolist()))
    levels = [_cap_level(cap, rows[rows["cap_w"] == cap]) for cap in caps]
    levels.append(_cap_level(None, rows[rows["cap_w"].isna()]))
    speed, note = _speed_under_caps(rows, bool(emulated))
    notes = [doubt or note] if speed is None else [note]
    return UnderCaps(
        levels=tuple(levels), speed=speed, emulated=emulated, note="; ".join(filter(None, notes))
    )


def speed_ratios(samples: pd.DataFrame) -> pd.DataFrame:
    """Select rows under caps that held, with ``speed_ratio`` to the uncapped run of the same repetition."""
    rows = samples.assign(cap_w=samples["cap_w"].astype(float))
    uncapped = rows[rows["cap_w"].isna()].groupby("repetition")["wall_s"].median()
    under = rows[rows["cap_w"].notna() & (rows["held"] == True)]  # noqa: E712 - the column may hold None
    return under.assign(speed_ratio=under["repetition"].map(uncapped) / under["wall_s"]).dropna(
        subset=["speed_ratio"]
    )


def _speed_under_caps(rows: pd.DataFrame, emulated: bool) -> tuple[Model | None, str]:
    under, lost = speed_ratios(rows), int((rows["held"] == False).sum())  # noqa: E712
    note = f"{lost} of {int(rows['cap_w'].notna().sum())} runs did not keep to their cap and were left out"
    try:
        model = knee.fit(
            list(under["cap_w"]),
            list(under["speed_ratio"]),
            probe="job",
            quantity="job_power_speed_ratio",
            emulated=emulated,
        )
    except ValueError as error:
        return None, f"{error}; {note}" if lost else str(error)
    return model, note if lost else ""


def _cap_level(cap_w: float | None, group: pd.DataFrame) -> CapLevel:
    held = [bool(value) for value in group["held"].dropna()]
    needs = {
        name: constant.median(group[column].dropna().astype(float).tolist(), name=name, unit=unit)
        for name, (column, unit) in CAP_NEEDS.items()
    }
    return CapLevel(cap_w=cap_w, held=all(held), **needs)
