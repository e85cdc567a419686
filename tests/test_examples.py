"""The examples: each right against an independent computation; those in OpenCL also when they are stopped."""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agent.processes import tree
from probes.mpi.runner import MpiInstall
from tests.support.amounts import sweep
from tests.support.labs.components import require
from tests.support.paths import EXAMPLES
from tests.support.programs import opencl_devices

OPENCL = {  # sizes that run for a second
    "stencil.py": ("--cells", "256", "--steps", "5000"),
    "nbody.py": ("--bodies", "256", "--steps", "700"),
    "sort.py": ("--values", "20000"),
    "chebyshev.py": ("--degrees", "12", "--points", "100000"),
}


def start(folder: Path, name: str, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TENBIN_JOB_FOLDER": str(folder)}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, name: str, *options: str) -> str:
    """Run an example; return what it prints."""
    done = start(folder, name, *options)
    out, err = done.communicate(timeout=150)
    assert done.returncode == 0, (out, err)
    return out


@pytest.fixture(scope="module")
def opencl() -> None:
    require(opencl_devices(), "an OpenCL device")


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep(OPENCL, {"sort.py"}))
def test_stopped_at_random_it_gives_the_same_bits(name: str, opencl: None, tmp_path: Path) -> None:
    """Stopped by a signal after random times, over and over; what it had done is not done again."""
    chance, stopped = random.Random(name), 0
    still = run(tmp_path, name, *OPENCL[name])
    folder = tmp_path / "stopped"
    folder.mkdir()
    while True:
        process = start(folder, name, *OPENCL[name])
        if stopped < 2:
            wait_until(lambda p=process: p.poll() is not None or tree.catches(p.pid, signal.SIGURG))  # type: ignore[misc]
            time.sleep(chance.uniform(0.1, 0.6) if stopped else 0.0)  # at once: a fast machine is soon done
            if process.poll() is None:
                process.send_signal(signal.SIGURG)
        out, err = process.communicate(timeout=150)
        if process.returncode != 85:
            break
        stopped += 1
    assert process.returncode == 0, (out, err)
    assert stopped > 0 and out == still
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.phases.jsonl"]


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_bodies_move_as_in_numpy(opencl: None, tmp_path: Path) -> None:
    out = run(tmp_path, "nbody.py", "--bodies", "100", "--steps", "50")
    found = dict(re.findall(r"(motion|attraction|drift|momentum) (-?[\d.e-]+\d)", out))
    place, speed = runpy.run_path(str(EXAMPLES / "nbody.py"))["first"](100)
    x, mass = place[:, :3], place[:, 3]
    v = speed[:, :3]
    for _ in range(50):
        x = x + 0.0005 * v
        d = x[None, :, :] - x[:, None, :]
        distance = np.sqrt((d**2).sum(axis=2) + 0.05**2)
        v = v + 0.001 * (mass[None, :, None] * d / distance[..., None] ** 3).sum(axis=1)
        x = x + 0.0005 * v
    distance = np.sqrt(((x[None] - x[:, None]) ** 2).sum(axis=2) + 0.05**2)
    pairs = np.triu_indices(100, 1)
    assert float(found["motion"]) == pytest.approx(0.5 * (mass * (v**2).sum(axis=1)).sum(), abs=2e-9)
    assert float(found["attraction"]) == pytest.approx(-(1e-4 / distance[pairs]).sum(), abs=2e-9)
    assert abs(float(found["drift"])) < 1e-3 and float(found["momentum"]) < 1e-12


def test_heat_spreads_as_in_numpy(opencl: None, tmp_path: Path) -> None:
    out = run(tmp_path, "stencil.py", "--cells", "32", "--steps", "100")
    grid = np.zeros((32, 32))
    grid[8:16, 8:16] = 100.0
    for _ in range(100):
        inner = grid[1:-1, 1:-1]
        around = grid[1:-1, :-2] + grid[1:-1, 2:] + grid[:-2, 1:-1] + grid[2:, 1:-1]
        grid[1:-1, 1:-1] = inner + 0.2 * (around - 4.0 * inner)
    assert float(out.split("mean ")[1]) == pytest.approx(grid.mean(), abs=1e-6)


@pytest.mark.parametrize("ranks", sweep((1, 3), {3}))
def test_cg_finds_the_solution(mpi: MpiInstall, ranks: int) -> None:
    out = ranks_print(mpi, ranks, "cg.py", "--cells", "60")
    found = re.match(r"(\d+) iterations on (\d) ranks, residual (\S+), error (\S+)\n", out)
    assert found and int(found[2]) == ranks
    assert float(found[3]) < 1e-9 and float(found[4]) < 1e-8
    # The condition number of the operator bounds the iterations.
    root = 1 / np.tan(np.pi / 2 / 61)
    assert 1 < int(found[1]) < root / 2 * np.log(2e10 * root)


@pytest.mark.parametrize("ranks", sweep((1, 4), {4}))
def test_ft_is_the_transform_of_the_whole_cube(mpi: MpiInstall, ranks: int) -> None:
    out = ranks_print(mpi, ranks, "ft.py", "--cells", "16", "--steps", "2")
    cube = np.stack([np.random.default_rng(z).random((16, 16)) for z in range(16)])
    waves = np.fft.fftfreq(16, 1 / 16) ** 2
    square = waves[:, None, None] + waves[:, None] + waves
    for step in (1, 2):
        field = np.fft.ifftn(np.fft.fftn(cube) * np.exp(-4e-6 * np.pi**2 * step * square))
        assert (
            f"step {step}: mean {cube.mean():.12f}, largest {np.abs(field).max():.12f}"
            == out.split("\n")[step - 1]
        )
    assert float(out.split("error ")[1].split()[0]) < 1e-14


def ranks_print(mpi: MpiInstall, ranks: int, name: str, *options: str) -> str:
    command = mpi.command(ranks, [sys.executable, str(EXAMPLES / name), *options])
    environment = {**os.environ, **mpi.environment(150)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout  # MPICH's launcher adds a line with the exit codes


def test_the_streamer_checks_itself(tmp_path: Path) -> None:
    for passes in ("1", "2", "3"):
        assert "result right" in run(tmp_path, "stream.py", "--mb", "8", "--passes", passes)


def test_a_shell_job_adds_its_part_of_the_numbers() -> None:
    sums = 0
    for part in range(1, 4):
        done = subprocess.run(
            ["sh", str(EXAMPLES / "sum.sh"), "1000"],
            env={**os.environ, "TENBIN_ARRAY_INDEX": str(part)},
            capture_output=True,
            text=True,
            check=True,
        )
        sums += int(done.stdout.split("= ")[1])
    assert sums == 3000 * 3001 // 2
