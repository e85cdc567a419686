"""A heat equation on a square grid, in OpenCL: a few long kernels, checkpointed by tenbin.

    tenbin submit --checkpoint -- python3 examples/stencil.py --cells 1024 --steps 500

Prints a checksum of the result: it is the same however often the job was moved.
"""

import argparse
import zlib

import numpy as np
import pyopencl as cl

import tenbin

SOURCE = """
kernel void heat(global const double *now, global double *next, const int n) {
    const int x = get_global_id(0), y = get_global_id(1), i = y * n + x;
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) { next[i] = now[i]; return; }
    next[i] = now[i] + 0.2 * (now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4.0 * now[i]);
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1024, help="cells of a side of the grid")
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    n = options.cells

    check = tenbin.Checkpoint(f"stencil-{n}")
    kernel = cl.Kernel(check.build(SOURCE), "heat")
    grids = [check.buffer("even", 8 * n * n), check.buffer("odd", 8 * n * n)]
    check.state["step"] = 0
    if not check.restore():
        start = np.zeros((n, n))
        start[n // 4 : n // 2, n // 4 : n // 2] = 100.0
        cl.enqueue_copy(check.queue, grids[0], start)
    while (step := check.state["step"]) < options.steps:
        now, after = grids[step % 2], grids[(step + 1) % 2]
        kernel(check.queue, (n, n), None, now, after, np.int32(n))
        check.state["step"] = step + 1
        if step % 10 == 9:
            check.queue.finish()  # no more than ten kernels to drain
            check.safe_point()

    result = np.empty((n, n))
    cl.enqueue_copy(check.queue, result, grids[options.steps % 2])
    check.finish()
    print(f"{zlib.crc32(result.tobytes()):08x} after {options.steps} steps, mean {result.mean():.6f}")


if __name__ == "__main__":
    main()
