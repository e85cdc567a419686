"""Power of the node at rest and under load, and its speed under caps (paper C, eq. 4.5).

Samples, one row an observation; powers are means over the row's window:

- ``kind`` idle: nothing runs. uncapped: a load on every core under the limits as found.
- ``kind`` cap: under ``cap_w``, the sum over all packages. ``kind`` reference: the same load under the
  limits as found, just before and just after. ``speed_ratio`` of a row is relative to the mean of the
  references next to the row (of a reference too), so that drift cancels.
- ``held``: whether the measured package power obeyed the cap. A cap may read back right and not hold.
- ``kind`` gpu: an NVIDIA GPU at rest or busy, with its limits.

``total_w`` is the whole platform (psys) where it has a counter, otherwise packages and DRAM.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probes import nvml
from probes.meters import Meter, choose_meter, nvml_meter, power_w
from probes.power_load import Loads, speed
from probes.powercap import Caps, find_caps
from probes.run import Run
from probes.topology import free_memory_mb, read_topology
from probes.visits import Point, Visits
from profiles.errors import Unavailable, UserError

# -- NVIDIA GPUs: power at rest and busy, and speed under limits -------------------------------------------
#
# An OpenCL kernel of multiply-adds keeps the GPU busy. Limits are set only if ``settings.set_gpu_limits``
# is true, and through the restore journal, which knows ``nvml/<uuid>/power_limit_mw`` as a control file.


NVIDIA = "0x10de"  # its vendor number on the PCI bus
GPU_WINDOW_S = 1.0
GPU_IDLE_WINDOWS = 3
GPU_LIMITS = 8
GPU_SETTLE_S = 0.5
GPU_KERNEL = """
kernel void burn(global float *x, int rounds) {
    float a = x[get_global_id(0)], b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < rounds; i++) {
        a = fma(a, 0.999f, 0.5f); b = fma(b, 0.999f, 0.5f);
        c = fma(c, 0.999f, 0.5f); d = fma(d, 0.999f, 0.5f);
    }
    x[get_global_id(0)] = a + b + c + d;
}
"""
GPU_ITEMS = 1 << 20
GPU_KERNEL_S = 0.02  # of one kernel: short enough to end a window on time


@dataclass(frozen=True)
class GpuLimits:
    """Power limits of a GPU as NVML tells them, in watts."""

    name: str  # gpu-0
    bus: int  # its number on the PCI bus, by which OpenCL finds it too
    limit_w: float
    min_w: float
    max_w: float
    control: Path

    def row(self) -> dict[str, Any]:
        return {
            "gpu": self.name,
            "limit_w": self.limit_w,
            "limit_min_w": self.min_w,
            "limit_max_w": self.max_w,
        }


def measure_gpus(run: Run) -> None:
    """Measure the power of every NVIDIA GPU, at rest and busy; an emulated node has none."""
    if run.settings.emulated or run.settings.meter == "none":
        return
    try:
        meter = nvml_meter()
    except Unavailable as error:
        if _has_nvidia(run.settings.sysfs) or run.settings.meter == "nvml":
            run.absent("power of GPUs", error.what, error.remedy)
        return
    with meter:
        for index, part in enumerate(meter.parts):
            try:
                _measure_gpu(run, meter, read_limits(index))
            except UserError as error:
                run.absent(f"power of {part}", error.what, error.remedy)


def _has_nvidia(sysfs: Path) -> bool:
    """Tell whether a device of NVIDIA's is on the PCI bus, with a driver or without."""
    vendors = sysfs.glob("bus/pci/devices/*/vendor")
    return any(vendor.read_text().strip() == NVIDIA for vendor in vendors)


def read_limits(index: int) -> GpuLimits:
    """Read the power limits of GPU ``index``.

    Raises:
        Unavailable: this GPU has none.
    """
    library = nvml.load()
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        least, most = library.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        limit = library.nvmlDeviceGetPowerManagementLimit(handle)
        bus = int(library.nvmlDeviceGetPciInfo(handle).bus)
        uuid = library.nvmlDeviceGetUUID(handle)
    except library.NVMLError as error:
        raise Unavailable(f"NVML tells no power limits of gpu-{index}: {error}") from None
    control = Path("nvml") / str(uuid) / "power_limit_mw"
    return GpuLimits(f"gpu-{index}", bus, limit / 1e3, least / 1e3, most / 1e3, control)


def _measure_gpu(run: Run, meter: Meter, limits: GpuLimits) -> None:
    for _ in range(GPU_IDLE_WINDOWS):
        run.progress(f"power of {limits.name} at rest")
        _gpu_window(run, meter, limits.row() | {"state": "idle"}, lambda: time.sleep(GPU_WINDOW_S))
    burn = _burner(limits.bus)
    burn()  # the clocks rise
    _gpu_window(run, meter, limits.row() | {"state": "busy"}, burn)
    if run.settings.set_gpu_limits:
        _over_limits(run, meter, limits, burn)


def _over_limits(run: Run, meter: Meter, limits: GpuLimits, burn: Callable[[], float]) -> None:
    """Measure speed under each limit, in random order, the original limit in between."""

    def under(limit_w: float, state: str) -> float:
        run.control(limits.control, str(round(limit_w * 1e3)))
        time.sleep(GPU_SETTLE_S)
        row = limits.row() | {"limit_w": limit_w, "state": state}
        return _gpu_window(run, meter, row, burn)

    try:
        for limit_w in run.rng.permutation(np.linspace(limits.min_w, limits.limit_w, GPU_LIMITS)).tolist():
            run.progress(f"speed of {limits.name} under {limit_w:.0f} W")
            under(limit_w, "limited")
            under(limits.limit_w, "busy")
    finally:
        run.control(limits.control, str(round(limits.limit_w * 1e3)))


def _gpu_window(run: Run, meter: Meter, row: dict[str, Any], work: Callable[[], Any]) -> float:
    """Sample a row: mean power while ``work`` runs, and the rate that ``work`` returns."""
    before, start = meter.read(), time.monotonic()
    rate = work()
    watts = power_w(before, meter.read(), [row["gpu"]])
    seconds = time.monotonic() - start
    run.sample(kind="gpu", meter=meter.name, gpu_w=watts, speed=rate, window_s=round(seconds, 4), **row)
    return float(rate or 0.0)


def _burner(bus: int) -> Callable[[], float]:
    """Make a function that keeps the GPU on this PCI bus busy for a window; it returns the rate.

    Raises:
        Unavailable: OpenCL does not reach the GPU.
    """
    import pyopencl as cl

    def on_bus(device: Any) -> bool:
        try:
            return int(device.pci_bus_id_nv) == bus
        except (cl.Error, AttributeError):
            return False

    try:
        devices = [d for p in cl.get_platforms() for d in p.get_devices() if on_bus(d)]
        if not devices:
            raise Unavailable(
                "OpenCL does not reach this GPU, so it cannot be made busy",
                "name libnvidia-opencl.so.1 in a file /etc/OpenCL/vendors/nvidia.icd",
            )
        context = cl.Context(devices[:1])
        queue = cl.CommandQueue(context)
        kernel = cl.Program(context, GPU_KERNEL).build().burn
        data = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * GPU_ITEMS)

        def run_once(rounds: int) -> float:
            start = time.monotonic()
            kernel(queue, (GPU_ITEMS,), None, data, np.int32(rounds))
            queue.finish()
            return time.monotonic() - start

        run_once(1000)
        rounds = max(int(1000 * GPU_KERNEL_S / max(run_once(1000), 1e-5)), 1)
    except cl.Error as error:
        raise Unavailable(f"OpenCL: {error}") from None

    def burn() -> float:
        start, done = time.monotonic(), 0
        while time.monotonic() - start < GPU_WINDOW_S:
            run_once(rounds)
            done += 1
        return 4.0 * GPU_ITEMS * rounds * done / (time.monotonic() - start)

    return burn


# -- the node: at rest, under a load on every core, and under caps -----------------------------------------


LOADS = ("compute", "memory")
CAPS = 8
SETTLE_S = 0.15  # a package follows a new cap within some tens of milliseconds
WINDOW_S = 0.25  # many short windows: disturbances change more slowly, and the references cancel them
TRIES = 4
HEADROOM = 1.15  # caps from the lowest up to this much above what the load draws
SLACK_RATIO, SLACK_W = 1.1, 2.0  # a package may be above its cap by this much: windows are short
LEAST_AREA_MB = 16.0
LEAST_SWEEP_S = 4.0  # in less time the start of the loads does not pay


@dataclass(frozen=True)
class PowerWindow:
    """Power and speed in a stretch of time; ``total_w`` is None where DRAM's or psys' counter failed."""

    seconds: float
    package_w: float
    total_w: float | None
    speed: float | None = None

    def row(self) -> dict[str, Any]:
        return {
            "window_s": round(self.seconds, 4),
            "package_w": self.package_w,
            "total_w": self.total_w,
            "speed": self.speed,
        }


@dataclass
class PowerBench:
    """State of a power measurement; ``caps`` is None where none can be set."""

    run: Run
    meter: Meter
    caps: Caps | None = None
    plans: dict[str, list[float]] = field(default_factory=dict)  # caps for each load, from its first sweep

    def window(self, loads: Loads | None = None) -> PowerWindow:
        """Measure power, and speed of ``loads``, over one window.

        Raises:
            Unavailable: the counters failed several times running.
        """
        for _ in range(TRIES):
            start, before = time.monotonic(), self.meter.read()
            work = loads.read() if loads else None
            time.sleep(WINDOW_S)
            rate = speed(work, loads.read()) if loads and work else None
            after = self.meter.read()
            package_w = power_w(before, after, self.meter.packages)
            if package_w is not None and (rate is not None or not loads):
                total_w = power_w(before, after, self.meter.total_parts)
                return PowerWindow(time.monotonic() - start, package_w, total_w, rate)
        if package_w is None:
            raise Unavailable(
                f"the energy counters failed: {describe(self.meter)}", "see the kernel log (dmesg)"
            )
        raise Unavailable("other processes leave the load no time", "measure when the node is quiet")

    def under_cap(self, cap_w: float | None, loads: Loads) -> PowerWindow:
        """Measure a window under a cap (None: under the limits as found)."""
        if self.caps:
            self.caps.reset() if cap_w is None else self.caps.set_w(cap_w)
        time.sleep(SETTLE_S)
        return self.window(loads)


def measure(run: Run) -> None:
    """Measure idle power, then for each load uncapped power and speed over caps, again and again.

    Without a meter nothing of the processor is measured; without caps, no curve.
    """
    measure_gpus(run)
    try:
        meter = choose_meter(run.settings)
    except Unavailable as error:
        run.absent("power of the processor", error.what, error.remedy)
        return
    if not meter.packages:  # --meter nvml
        meter.close()
        return
    with meter:
        try:
            _measure_node(run, meter)
        finally:
            if troubles := describe(meter):
                run.absent(
                    "some readings of the energy counters", troubles, "they are left out or allowed for"
                )


def describe(meter: Meter) -> str:
    """Describe the meter's faults; empty where it had none (a wrap loses nothing and is none)."""
    return "; ".join(
        f"{part} {what} ({n} times)"
        for part, troubles in meter.troubles().items()
        for what, n in troubles.items()
    )


def _measure_node(run: Run, meter: Meter) -> None:
    bench = PowerBench(run, meter)
    try:
        _idle(bench)
    except Unavailable as error:
        run.absent("power of the processor", error.what, error.remedy, failed=True)
        return
    with _capping(bench):
        _sweep_all(bench)


@contextmanager
def _capping(bench: PowerBench) -> Iterator[None]:
    """Set up caps where this process may set them; they are restored at the end."""
    try:
        caps = find_caps(bench.run.settings.sysfs, bench.run.control)
        caps.remember()
    except Unavailable as error:
        bench.run.absent("speed under power caps", error.what, error.remedy)
        yield
        return
    bench.caps = caps
    try:
        yield
    finally:
        caps.reset()


def _idle(bench: PowerBench) -> None:
    deadline = time.monotonic() + 0.08 * bench.run.settings.budget_s
    while True:
        bench.run.progress("power at rest")
        bench.run.sample(kind="idle", meter=bench.meter.name, **bench.window().row())
        if time.monotonic() >= deadline:
            return


def _sweep_all(bench: PowerBench) -> None:
    """Sweep with each load, again until the time is up; a load that fails does not end the others."""
    run = bench.run
    points = [Point(load, cost_s=LEAST_SWEEP_S) for load in LOADS]
    for visit in Visits(points, run.rng, run.left_s, first_in_order=True):
        try:
            again = _sweep(bench, visit.key, whole=visit.count == 1)
        except UserError as error:
            again = False
            run.absent(f"power and speed of the {visit.key} load", error.what, error.remedy, failed=True)
        if not again:
            points.remove(visit)


def _sweep(bench: PowerBench, load: str, *, whole: bool) -> bool:
    """Pass over the caps with one load, cut short when the time is up unless it must be ``whole``.

    Returns whether another pass makes sense.
    """
    run = bench.run
    cores = sorted(os.sched_getaffinity(0))
    run.progress(f"starting the {load} load on {len(cores)} cores")
    with Loads(load, cores, _area_mb(run, len(cores))) as loads:
        uncapped = bench.under_cap(None, loads)
        _sample(bench, "uncapped", load, uncapped)
        if bench.caps is None:
            for _ in range(CAPS):
                run.progress(f"power under the {load} load")
                _sample(bench, "uncapped", load, bench.window(loads))
            return True
        if load not in bench.plans:
            lowest_w = _lowest_cap_w(bench, bench.caps, loads, uncapped.package_w)
            if lowest_w is None:
                bench.caps.reset()
                return False
            bench.plans[load] = _plan(bench.caps, lowest_w, uncapped.package_w)
        _over_caps(bench, loads, [Point(cap_w, least=int(whole), most=1) for cap_w in bench.plans[load]])
    return True


def _over_caps(bench: PowerBench, loads: Loads, points: list[Point[float]]) -> None:
    """Measure speed under each cap, with a reference between any two."""
    load = loads.kind
    earlier: PowerWindow | None = None
    reference = bench.under_cap(None, loads)
    for visit in Visits(points, bench.run.rng, bench.run.left_s):
        cap_w = visit.key
        bench.run.progress(f"speed of the {load} load under {cap_w:.0f} W")
        seen = bench.under_cap(cap_w, loads)
        later = bench.under_cap(None, loads)
        _sample(bench, "cap", load, seen, cap_w=cap_w, reference=_mean_speed(reference, later))
        beside = _mean_speed(earlier, later) if earlier else None
        _sample(bench, "reference", load, reference, reference=beside)
        earlier, reference = reference, later


def _mean_speed(window: PowerWindow, other: PowerWindow) -> float | None:
    return None if window.speed is None or other.speed is None else (window.speed + other.speed) / 2


def _lowest_cap_w(bench: PowerBench, caps: Caps, loads: Loads, natural_w: float) -> float | None:
    """Find the lowest cap that holds, in whole watts; None where caps are not obeyed at all.

    Below its floor a package draws what it must, whatever the cap. If caps well below the load's power leave
    that power unchanged, this is no floor: the limit is locked, or another interface's limit is in force.
    """
    load, wish_w = loads.kind, caps.lowest_w
    between_w = (wish_w + min(natural_w, caps.original_w)) / 2
    seen = {cap_w: bench.under_cap(cap_w, loads) for cap_w in (wish_w, between_w)}
    if wish_w < 0.8 * natural_w and not any(held(cap_w, w.package_w) for cap_w, w in seen.items()):
        for cap_w, window in seen.items():
            _sample(bench, "cap", load, window, cap_w=cap_w)
        bench.run.absent(
            f"speed under power caps ({load})",
            f"cap not obeyed: at {wish_w:.0f} W the packages drew {seen[wish_w].package_w:.1f} W,"
            f" uncapped {natural_w:.1f} W; locked by the firmware, or MMIO limits are in force",
            "unlock limits in the firmware's setup, stop thermald, see /sys/class/powercap/intel-rapl-mmio:0",
        )
        return None
    return math.ceil(max(wish_w, min(seen[wish_w].package_w + 0.5, natural_w)))


def held(cap_w: float, package_w: float) -> bool:
    """Tell whether a measured power obeys a cap."""
    return package_w <= max(cap_w * SLACK_RATIO, cap_w + SLACK_W)


def _plan(caps: Caps, lowest_w: float, natural_w: float) -> list[float]:
    """Plan caps from the lowest to a little above the load's power; references are at the original limit."""
    top_w = min(caps.original_w, 5.0 * math.ceil(natural_w * HEADROOM / 5.0))
    if top_w <= lowest_w:
        top_w = max(caps.original_w, lowest_w)
    step_w = (top_w - lowest_w) / (CAPS - 1)
    return [lowest_w + i * step_w for i in range(CAPS)]


def _sample(
    bench: PowerBench,
    kind: str,
    load: str,
    seen: PowerWindow,
    *,
    cap_w: float | None = None,
    reference: float | None = None,
) -> None:
    caps = bench.caps
    bench.run.sample(
        kind=kind,
        meter=bench.meter.name,
        load=load,
        cap_w=cap_w if cap_w is not None else (caps.original_w if caps else None),
        held=held(cap_w, seen.package_w) if cap_w is not None else None,
        speed_ratio=seen.speed / reference if seen.speed is not None and reference else None,
        **seen.row(),
    )


def _area_mb(run: Run, loads: int) -> float:
    """Choose memory for each load: together 4 times the last-level caches, at most a quarter of the free."""
    topology = read_topology(run.settings.sysfs, os.sched_getaffinity(0))
    caches = len({cpu.llc for cpu in topology.cpus}) * (topology.llc_mb or 32.0)
    free_mb = free_memory_mb(run.settings.sysfs, run.settings.procfs)
    return max(min(4 * caches, free_mb / 4) / loads, LEAST_AREA_MB)
