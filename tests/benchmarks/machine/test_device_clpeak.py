"""The probe device against clpeak (``apt-get install clpeak``), on the same device, interleaved in one run.

Each figure stands beside the best that clpeak prints for the same thing over all widths of vectors. clpeak's
arithmetic is one chain of ``mad``; so is ``like clpeak``, the probe's kernel with one chain instead of eight.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable

import numpy as np
import pytest

from probes import device_session, opencl
from probes.device_session import DeviceBench
from profiles.errors import Unavailable
from tests.benchmarks import SMALL, amount, few
from tests.support.labs.components import require

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
ROUNDS = amount(3, 3, 1)
PLACES = {  # option of clpeak, and the lines of its output that count
    "global-bandwidth": r"float\d* +: ([\d.]+)",
    "compute-sp": r"float\d* +: ([\d.]+)",
    "compute-dp": r"double\d* +: ([\d.]+)",
    "kernel-latency": r"latency : ([\d.]+) us",
}
WRITE, READ = r"enqueueWriteBuffer +: ([\d.]+)", r"enqueueReadBuffer +: ([\d.]+)"


@pytest.fixture(scope="module")
def device() -> tuple[str, list[str]]:
    """Return the key of the first device, and the options that choose it in clpeak."""
    require(shutil.which("clpeak"), "clpeak: apt-get install clpeak")
    try:
        found = opencl.devices()[0]
    except Unavailable as error:
        require(False, str(error))
        raise
    names = [platform.name.strip() for platform in opencl.platforms()]
    return found.key, ["-p", str(names.index(found.platform)), "-d", "0"]


def clpeak(choice: list[str], option: str, pattern: str) -> float:
    """Run one test of clpeak; return the best figure that it prints, in the small the first."""
    command, lines, figures = ["clpeak", *choice, f"--{option}"], [], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            figures += map(float, re.findall(pattern, line))
            if SMALL and figures:  # all of them take up to 20 s of a processor
                process.kill()
    require(figures, f"{' '.join(command)} that runs here: {''.join(lines)[-200:]}")
    return max(figures)


def compare(ours: dict[str, Callable[[], float]], theirs: Callable[[], float], unit: str) -> None:
    """Measure all in turns, and print the ratio of each of ``ours``."""
    for measure in () if SMALL else ours.values():
        measure()  # compiles
    rows = [([measure() for measure in ours.values()], theirs()) for _ in range(ROUNDS)]
    others = np.array([row[1] for row in rows])
    for title, mine in zip(ours, np.array([row[0] for row in rows]).T, strict=True):
        ratios = mine / others
        print(
            f"BENCH {title}/clpeak ratio {np.median(ratios):.2f} (median of {ROUNDS}, {ratios.min():.2f}-"
            f"{ratios.max():.2f}; ours {np.median(mine):.4g}, clpeak {np.median(others):.4g} {unit})"
        )


def test_memory(device: tuple[str, list[str]]) -> None:
    key, choice = device
    bench, option = DeviceBench(key), "global-bandwidth"

    def ours() -> float:
        row = bench.bandwidth("read")
        return float(row["bytes"] / row["seconds"] / 1e9)

    compare({"read": ours}, lambda: clpeak(choice, option, PLACES[option]), "GB/s")


@pytest.mark.parametrize(("precision", "option"), few([("single", "compute-sp"), ("double", "compute-dp")]))
def test_arithmetic(
    device: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, precision: str, option: str
) -> None:
    key, choice = device
    bench, like = DeviceBench(key), DeviceBench(key)
    require(precision == "single" or bench.opened()["double"], "a device with double precision")
    bench.arithmetic(precision)  # builds the kernel as it is
    monkeypatch.setattr(like, "_native_width", lambda precision: 16)  # clpeak's widest
    eight = "DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)"
    one = device_session.SOURCE.replace("x##K * f + t", "mad(x##K, f, t)").replace(eight, "DO(0)")

    def gflops(which: DeviceBench, chains: int) -> float:
        with monkeypatch.context() as patched:
            patched.setattr(device_session, "CHAINS", chains)
            patched.setattr(device_session, "SOURCE", one if chains == 1 else device_session.SOURCE)
            row = which.arithmetic(precision)
        return float(row["flops"] / row["seconds"] / 1e9)

    ours = {
        f"{precision} precision": lambda: gflops(bench, 8),
        f"{precision} precision, like clpeak": lambda: gflops(like, 1),
    }
    compare(ours, lambda: clpeak(choice, option, PLACES[option]), "GFLOP/s")


@pytest.mark.parametrize(("direction", "pattern"), few([("to_s", WRITE), ("from_s", READ)]))
def test_copies(
    device: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, direction: str, pattern: str
) -> None:
    key, choice = device
    monkeypatch.setattr(device_session, "COPY_BYTES", 128 << 20)  # as clpeak on a processor
    bench = DeviceBench(key)

    def ours() -> float:
        row = bench.copies("pageable")
        return float(row["bytes"] / row[direction] / 1e9)

    title = {"to_s": "copy to device", "from_s": "copy from device"}[direction]
    compare({title: ours}, lambda: clpeak(choice, "transfer-bandwidth", pattern), "GB/s")


def test_launches(device: tuple[str, list[str]]) -> None:
    """Compare the time until a kernel begins: clpeak's mean of 20,000, our median of 100."""
    key, choice = device
    bench, option = DeviceBench(key), "kernel-latency"
    require(bench.profiled, "a driver that tells when a kernel begins")
    compare(
        {"launch until begin": lambda: float(bench.launches()["queued_s"] * 1e6)},
        lambda: clpeak(choice, option, PLACES[option]),
        "us",
    )
