"""Takes steps of two kernels: a number a line in; time, steps so far and a digest a line out.

The number 0 asks for steps until the next line is there.
The first kernel reads one buffer and writes another; the second changes its buffer, a part of it, and counts.
An argument "differing" lets a third kernel run, whose results are others on a second device
(``slow_second.c``). An argument "printing" adds a kernel that prints;
"anew" makes a kernel for each launch; "thinking" lets the host work for 50 ms a step.
"""

from __future__ import annotations

import hashlib
import itertools
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl

N = 1 << 16
SOURCE = """
__kernel void spread(__global const float *from, __global float *to, int rounds) {
    size_t i = get_global_id(0), n = get_global_size(0);
    float sum = from[i];
    for (int r = 1; r <= rounds; r++) sum = 0.5f * sum + 0.25f * (from[(i + r) % n] + from[(i + n - r) % n]);
    to[i] = sum;
}
__kernel void stir(__global uint *state, __global uint *count, __local uint *aside, uint seed) {
    size_t i = get_global_id(0), l = get_local_id(0), n = get_local_size(0);
    aside[l] = state[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    uint x = aside[n - 1 - l] ^ seed;
    for (int r = 0; r < 500; r++) x = x * 1664525u + 1013904223u;
    state[i] = x;
    if (l == 0) atomic_inc(count);
}
__kernel void differ(__global float *values, float by) {
#ifdef SECOND
    by *= 1.5f;
#endif
    values[get_global_id(0)] = by * get_global_id(0);
}
"""
PRINTS = """
__kernel void print(__global const float *values) { printf("%f", values[0]); }
"""


def steps(number: int) -> Iterator[int]:
    """Count steps; without a number until standard input has more."""
    for step in itertools.count():
        if step >= number if number else select.select([0], [], [], 0)[0]:
            return
        yield step


def main() -> None:
    """Take steps as standard input asks."""
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    program = cl.Program(context, SOURCE + (PRINTS if "printing" in sys.argv else "")).build()
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    values = np.sin(np.arange(N, dtype=np.float32))
    one, two = (cl.Buffer(context, flags, hostbuf=values) for _ in range(2))
    state = cl.Buffer(context, flags, hostbuf=np.arange(N, dtype=np.uint32))
    part = state.get_sub_region(N, 2 * N)  # a quarter of it in, half of it
    count = cl.Buffer(context, flags, hostbuf=np.zeros(1, np.uint32))
    names = () if "anew" in sys.argv else ("spread", "stir", "differ")
    kernels = {name: cl.Kernel(program, name) for name in names}

    def launch(name: str, *what: Any) -> None:
        (kernels.get(name) or cl.Kernel(program, name))(queue, *what)

    taken = 0
    while line := sys.stdin.readline():
        began = time.monotonic()
        for _ in steps(int(line)):
            launch("spread", (N,), None, one, two, np.int32(8))
            one, two = two, one
            launch("stir", (N // 2,), (64,), part, count, cl.LocalMemory(256), np.uint32(taken))
            if "differing" in sys.argv:
                launch("differ", (N,), None, two, np.float32(0.5))
            queue.finish()
            if "thinking" in sys.argv:
                time.sleep(0.05)
            taken += 1
        took_s = time.monotonic() - began
        digest = hashlib.sha256()
        for buffer, like in ((one, values), (state, np.empty(N, np.uint32)), (count, np.empty(1, np.uint32))):
            found = np.empty_like(like)
            cl.enqueue_copy(queue, found, buffer)
            digest.update(found.tobytes())
        print(took_s, taken, digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
