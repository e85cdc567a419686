"""NVIDIA GPUs: power limits as the driver tells them, and power at rest (and busy, where OpenCL reaches them)."""

from __future__ import annotations

from probes.run import Run


def measure_gpus(run: Run) -> None:
    return
