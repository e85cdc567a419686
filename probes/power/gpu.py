"""NVIDIA GPUs: power limits of the driver, power at rest and busy, and speed under limits.

An OpenCL kernel of multiply-adds keeps the GPU busy. Limits are set only if ``settings.set_gpu_limits`` is
true, and through the restore journal, which knows ``nvml/<uuid>/power_limit_mw`` as a control file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probes.power.meters import Meter, nvml_meter, power_w
from probes.run import Run
from profiles.errors import Unavailable, UserError

NVIDIA = "0x10de"  # its vendor number on the PCI bus
WINDOW_S = 1.0
IDLE_WINDOWS = 3
LIMITS = 8
SETTLE_S = 0.5
KERNEL = """
kernel void burn(global float *x, int rounds) {
    float a = x[get_global_id(0)], b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < rounds; i++) {
        a = fma(a, 0.999f, 0.5f); b = fma(b, 0.999f, 0.5f);
        c = fma(c, 0.999f, 0.5f); d = fma(d, 0.999f, 0.5f);
    }
    x[get_global_id(0)] = a + b + c + d;
}
"""
ITEMS = 1 << 20
KERNEL_S = 0.02  # of one kernel: short enough to end a window on time


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
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        least, most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
        bus = int(pynvml.nvmlDeviceGetPciInfo(handle).bus)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVML tells no power limits of gpu-{index}: {error}") from None
    control = Path("nvml") / str(uuid) / "power_limit_mw"
    return GpuLimits(f"gpu-{index}", bus, limit / 1e3, least / 1e3, most / 1e3, control)


def _measure_gpu(run: Run, meter: Meter, limits: GpuLimits) -> None:
    for _ in range(IDLE_WINDOWS):
        run.progress(f"power of {limits.name} at rest")
        _window(run, meter, limits.row() | {"state": "idle"}, lambda: time.sleep(WINDOW_S))
    burn = _burner(limits.bus)
    burn()  # the clocks rise
    _window(run, meter, limits.row() | {"state": "busy"}, burn)
    if run.settings.set_gpu_limits:
        _over_limits(run, meter, limits, burn)


def _over_limits(run: Run, meter: Meter, limits: GpuLimits, burn: Callable[[], float]) -> None:
    """Measure speed under each limit, in random order, the original limit in between."""

    def under(limit_w: float, state: str) -> float:
        run.control(limits.control, str(round(limit_w * 1e3)))
        time.sleep(SETTLE_S)
        row = limits.row() | {"limit_w": limit_w, "state": state}
        return _window(run, meter, row, burn)

    try:
        for limit_w in run.rng.permutation(np.linspace(limits.min_w, limits.limit_w, LIMITS)).tolist():
            run.progress(f"speed of {limits.name} under {limit_w:.0f} W")
            under(limit_w, "limited")
            under(limits.limit_w, "busy")
    finally:
        run.control(limits.control, str(round(limits.limit_w * 1e3)))


def _window(run: Run, meter: Meter, row: dict[str, Any], work: Callable[[], Any]) -> float:
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
        kernel = cl.Program(context, KERNEL).build().burn
        data = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * ITEMS)

        def run_once(rounds: int) -> float:
            start = time.monotonic()
            kernel(queue, (ITEMS,), None, data, np.int32(rounds))
            queue.finish()
            return time.monotonic() - start

        run_once(1000)
        rounds = max(int(1000 * KERNEL_S / max(run_once(1000), 1e-5)), 1)
    except cl.Error as error:
        raise Unavailable(f"OpenCL: {error}") from None

    def burn() -> float:
        start, done = time.monotonic(), 0
        while time.monotonic() - start < WINDOW_S:
            run_once(rounds)
            done += 1
        return 4.0 * ITEMS * rounds * done / (time.monotonic() - start)

    return burn
