"""Odd-even transposition sort, in OpenCL: very many short kernels, checkpointed by tenbin.

    tenbin submit --checkpoint -- python3 examples/sort.py --values 100000

As many kernels as values, each of some microseconds. Who queues them all must wait for them all before a
checkpoint; here no more than a hundred are queued. Prints a checksum, and whether numpy sorts alike.
"""

import argparse
import sys
import zlib

import numpy as np
import pyopencl as cl

import tenbin

SOURCE = """
kernel void exchange(global float *value, const int first) {
    const int i = 2 * get_global_id(0) + first;
    const float a = value[i], b = value[i + 1];
    value[i] = fmin(a, b);
    value[i + 1] = fmax(a, b);
}
"""
QUEUED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=50_000)
    n = parser.parse_args().values

    check = tenbin.Checkpoint(f"sort-{n}")
    exchange = cl.Kernel(check.build(SOURCE), "exchange")
    buffer = check.buffer("values", 4 * n)
    check.state["passes"] = 0
    values = np.random.default_rng(1).random(n, dtype=np.float32)
    if not check.restore():
        cl.enqueue_copy(check.queue, buffer, values)
    while check.state["passes"] < n:
        first = check.state["passes"] % 2
        if n - first >= 2:
            exchange(check.queue, ((n - first) // 2,), None, buffer, np.int32(first))
        check.state["passes"] += 1
        if check.state["passes"] % QUEUED == 0:
            check.queue.finish()
            check.safe_point()

    result = np.empty_like(values)
    cl.enqueue_copy(check.queue, result, buffer)
    check.finish()
    right = np.array_equal(result, np.sort(values))
    print(f"{zlib.crc32(result.tobytes()):08x} after {n} kernels, {'sorted' if right else 'NOT SORTED'}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
