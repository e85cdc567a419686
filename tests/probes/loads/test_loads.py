"""The loads against NPB's published values, brute force, and themselves on other numbers of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.loads import LOADS, cg, common, ft, lu, most_ranks, prepare, sizes, work
from probes.mpi.runner import MpiInstall, run_ranks
from profiles.errors import BadInput
from tests.support.amounts import slow

RUN = [sys.executable, "-P", "-m", "probes.loads"]


def test_random_numbers_are_those_of_the_plain_recurrence() -> None:
    x, expected = 271828183, []
    for _ in range(100_000):
        x = x * 5**13 % 2**46
        expected.append(x / 2**46)
    assert np.array_equal(common.uniform(271828183, 100_000), expected)
    assert np.array_equal(common.uniform(271828183, 777, skip=54_321), expected[54_321:55_098])


@given(st.integers(1, 200), st.integers(1, 200))
def test_parts_differ_by_one_at_most(count: int, parts: int) -> None:
    if count < parts:
        with pytest.raises(BadInput):
            common.bounds(count, parts)
        return
    lengths = np.diff(common.bounds(count, parts))
    assert lengths.sum() == count
    assert lengths.max() - lengths.min() <= 1


@pytest.mark.parametrize(
    ("load", "size"),
    [
        *((load, "S") for load in LOADS),
        *(slow(load, "W") for load in LOADS),
        *(slow(load, "A") for load in ("ft", "mg")),
    ],
)
def test_answers_are_right_every_time(load: str, size: str) -> None:
    kernel = prepare(load, size)
    assert not kernel.verified()  # there is no answer yet
    for _ in range(2 if size == "S" else 1):
        kernel.run()
        assert kernel.verified()
    assert kernel.verification == ("own" if load == "lu" else "npb")
    assert kernel.operations > 0


@pytest.mark.parametrize("load", LOADS)
def test_sizes_of_our_own_are_verified_by_other_means(load: str) -> None:
    for size in sizes(load)[:2]:
        kernel = prepare(load, size)
        kernel.run()
        assert kernel.verified()
    assert prepare(load, sizes(load)[0]).verification == "own"


def test_published_counts_of_ep() -> None:
    kernel = prepare("ep", "S")
    kernel.run()
    assert kernel.counts.tolist() == [6140517, 5865300, 1100361, 68546, 1648, 17, 0, 0, 0, 0]


def test_ep_without_published_sums_notices_a_wrong_distribution() -> None:
    kernel = prepare("ep", "20")
    kernel.run()
    right = kernel.counts.copy()
    kernel.counts = right + 1000 * np.array([1, -1, 0, 0, 0, 0, 0, 0, 0, 0])  # same number, other rings
    assert kernel.verified()  # 1000 of 420,000 is within six deviations
    kernel.counts = right + 5000 * np.array([1, -1, 0, 0, 0, 0, 0, 0, 0, 0])
    assert not kernel.verified()
    kernel.counts = right * 0.99
    assert not kernel.verified()


def test_cg_agrees_with_a_dense_solver() -> None:
    size = cg.SIZES["700"]
    dense = cg.matrix(size, slice(0, size.rows)).toarray()
    assert np.abs(dense - dense.T).max() < 1e-14
    x = np.ones(size.rows)
    for _ in range(size.steps):
        z = np.linalg.solve(dense, x)
        zeta = size.shift + 1 / (x @ z)
        x = z / np.linalg.norm(z)
    kernel = prepare("cg", "700")
    kernel.run()
    assert kernel.zeta == pytest.approx(zeta, rel=1e-10)


@pytest.mark.parametrize("size", ["700", "S"])
def test_cg_notices_a_wrong_matrix(size: str) -> None:
    kernel = prepare("cg", size)
    kernel.matrix.data[::7] *= 1.1  # no longer symmetric
    kernel.run()
    assert not kernel.verified()


def test_ft_agrees_with_the_transform_of_the_whole() -> None:
    kernel = prepare("ft", "32")
    kernel.run()
    k = np.fft.fftfreq(32, 1 / 32) ** 2
    squares = k[:, None, None] + k[None, :, None] + k[None, None, :]
    for step in range(ft.STEPS):
        decay = np.exp(-4 * np.pi**2 * ft.ALPHA * squares * (step + 1))
        field = np.fft.ifftn(np.fft.fftn(kernel.start) * decay)
        total = sum(field[5 * j % 32, 3 * j % 32, j % 32] for j in range(1, 1025))
        assert kernel.checksums[step] == pytest.approx(total, rel=1e-11)


@pytest.mark.parametrize("size", ["32", "S"])
def test_ft_notices_a_wrong_decay(size: str) -> None:
    kernel = prepare("ft", size)
    kernel.decay *= 1 - 1e-9
    kernel.run()
    assert not kernel.verified()


@pytest.mark.parametrize("size", ["16", "S"])
def test_mg_notices_a_wrong_answer(size: str) -> None:
    kernel = prepare("mg", size)
    kernel.run()
    kernel.norm *= 1 + 1e-6
    assert not kernel.verified()
    if size == "16":
        kernel.run()
        kernel.u[-1][3, 3, 3] += 1e-4
        assert not kernel.verified()


def test_mg_residual_is_that_of_the_27_point_stencil() -> None:
    kernel = prepare("mg", "16")
    kernel.run()
    u, v, r = (g[1:-1, 1:-1, 1:-1] for g in (kernel.u[-1], kernel.v, kernel.r[-1]))
    weights = (-8 / 3, 0.0, 1 / 6, 1 / 12)
    applied = sum(
        weights[abs(z) + abs(y) + abs(x)] * np.roll(u, (z, y, x), (0, 1, 2))
        for z in (-1, 0, 1)
        for y in (-1, 0, 1)
        for x in (-1, 0, 1)
    )
    assert np.abs(v - applied - r).max() < 1e-13
    assert sorted(v[v != 0]) == [-1.0] * 10 + [1.0] * 10


def test_lu_is_plain_gauss_seidel() -> None:
    n = 9
    kernel = lu.Lu(n, common.Comm())
    kernel.run()
    u = np.zeros_like(kernel.u)
    forward = [(i, j) for i in range(1, n + 1) for j in range(1, n + 1)]
    for _ in range(lu.SWEEPS):
        for order in (forward, reversed(forward)):
            for i, j in order:
                around = u[i, j - 1] + u[i, j + 1] + u[i - 1, j] + u[i + 1, j]
                u[i, j] = (kernel.f[i, j] + around) / (4 + lu.SIGMA)
    assert np.abs(u - kernel.u).max() < 1e-14


def test_lu_notices_a_wrong_answer() -> None:
    kernel = prepare("lu", "32")
    kernel.run()
    kernel.u[5, 5, lu.DEPTH - 1] += 1e-3
    assert not kernel.verified()


@pytest.mark.parametrize(
    ("ranks", "choices"),
    [
        slow(2, ["ep:S", "cg:S", "ft:S", "mg:S", "lu:S"]),
        (3, ["ep:20", "ft:32", "mg:16", "lu:32"]),
        slow(3, ["cg:700"]),  # it talks too often for even more ranks than cores
        slow(5, ["mg:16", "lu:32"]),
    ],
)
def test_the_same_answers_on_several_ranks(mpi: MpiInstall, ranks: int, choices: list[str]) -> None:
    lines: list[str] = []
    program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.loads", *choices]
    run_ranks(mpi, program, ranks, timeout_s=120, on_line=lines.append)
    rows = [json.loads(line) for line in lines]
    assert sorted(f"{row['load']}:{row['class']}" for row in rows) == sorted(choices)
    assert all(row["verified"] and row["ranks"] == ranks for row in rows)


@pytest.mark.parametrize("load", [load for load in LOADS if load != "ep"])  # there, more would idle
def test_too_many_ranks_are_refused(load: str) -> None:
    size = sizes(load)[0]
    most = most_ranks(load, size)

    class Many(common.Comm):
        size = most + 1

    with pytest.raises(BadInput, match="cannot be split over"):
        prepare(load, size, Many())


def test_command_line() -> None:
    done = subprocess.run(
        [*RUN, "cg", "ft:32", "--class", "S", "--repeat", "2"], capture_output=True, text=True, check=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((row["load"], row["class"], row["repetition"]) for row in rows) == [
        ("cg", "S", 0),
        ("cg", "S", 1),
        ("ft", "32", 0),
        ("ft", "32", 1),
    ]
    assert set(rows[0]) == {
        *("load", "class", "ranks", "repetition", "time_s", "verified", "verification", "mops"),
    }
    assert all(row["ranks"] == 1 and row["time_s"] > 0 and row["mops"] > 0 for row in rows)


@pytest.mark.parametrize("choice", ["dg", "cg:Q"])
def test_bad_names_are_one_line(choice: str) -> None:
    done = subprocess.run([*RUN, choice], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "choose from" in done.stderr


def test_a_slow_machine_gets_a_smaller_size() -> None:
    done = subprocess.run([*RUN, "ep:22", "--at-most-s", "1e-9"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["class"] == "20"


def test_work_of_cg_is_that_of_its_matrix() -> None:
    """NPB's count of elements is an upper bound: vectors meet, and random places coincide."""
    size = cg.SIZES["S"]
    products = size.steps * (cg.CG_STEPS + 1)
    elements = work("cg", "S").traffic_bytes / 12 / products
    assert 0.95 * elements <= cg.matrix(size, slice(0, size.rows)).nnz <= elements + size.rows


@pytest.mark.parametrize("load", LOADS)
def test_work_grows_with_the_size(load: str) -> None:
    counted = [work(load, size) for size in sizes(load)]
    assert all(a.operations < b.operations for a, b in pairwise(counted))
    assert all(a.traffic_bytes < b.traffic_bytes for a, b in pairwise(counted)) or load == "ep"
    if load != "ep":
        assert prepare(load, sizes(load)[0]).operations == counted[0].operations
