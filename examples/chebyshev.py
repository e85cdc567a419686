"""Chebyshev polynomials, in OpenCL: many kernels to compile, checkpointed by tenbin.

    tenbin submit --checkpoint -- python3 examples/chebyshev.py --degrees 100

A kernel is generated for each degree, with its recurrence written out; most of the time goes into compiling.
They are compiled where they are first needed, so that a job that was moved compiles anew only what it still
needs. Adds T_0 .. T_n in x = cos t up; prints a checksum, and the error against the closed form of that sum.
"""

import argparse
import sys
import zlib

import numpy as np
import pyopencl as cl

import tenbin


def source(degree: int) -> str:
    """Return a kernel that adds ``weight * T_degree(x)`` to the sums."""
    lines = [f"t{k} = 2.0 * x * t{k - 1} - t{k - 2}" for k in range(2, degree + 1)]
    steps = "\n".join(f"    const double {line};" for line in lines)
    return f"""
kernel void add(global const double *xs, global double *sums) {{
    const int i = get_global_id(0);
    const double x = xs[i], t0 = 1.0, t1 = x;
{steps}
    sums[i] += t{degree};
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--degrees", type=int, default=60)
    parser.add_argument("--points", type=int, default=100_000)
    options = parser.parse_args()
    n, degrees = options.points, options.degrees
    t = np.pi * (np.arange(n) + 0.5) / n
    xs, sums = np.cos(t), np.zeros(n)

    check = tenbin.Checkpoint(f"chebyshev-{n}")
    at, total = check.buffer("points", 8 * n), check.buffer("sums", 8 * n)
    check.state["degree"] = 0
    if not check.restore():
        cl.enqueue_copy(check.queue, at, xs)
        cl.enqueue_copy(check.queue, total, sums)
    while check.state["degree"] <= degrees:
        kernel = cl.Kernel(check.build(source(check.state["degree"])), "add")
        kernel(check.queue, (n,), None, at, total)
        check.state["degree"] += 1
        check.safe_point()

    cl.enqueue_copy(check.queue, sums, total)
    check.finish()
    truth = 0.5 + np.sin((degrees + 0.5) * t) / (2 * np.sin(t / 2))  # Dirichlet's kernel
    error = np.abs(sums - truth).max() / (degrees + 1)
    print(f"{zlib.crc32(sums.tobytes()):08x} after {degrees + 1} kernels, error {error:.1e}")
    sys.exit(0 if error < 1e-8 else 1)


if __name__ == "__main__":
    main()
