"""Adds 1 to every number so many times, each launch flushed and not waited for: a number a line in.

Before each line it prints "ready"; after "end" it prints the least and the greatest number.
An argument "released" lets each line have a queue of its own, which is released with its work under way.
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

N = 1 << 16
SOURCE = """
__kernel void add(__global uint *values) {
    size_t i = get_global_id(0);
    uint x = values[i];
    for (uint r = 0; r < 200; r++) x = x * 1664525u + 1013904223u; /* takes its time */
    values[i] += 1 + (x == 7 && i >= get_global_size(0));
}
"""


def main() -> None:
    """Add as standard input asks."""
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    add = cl.Kernel(cl.Program(context, SOURCE).build(), "add")
    values = np.zeros(N, np.uint32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=values)
    add.set_arg(0, buffer)
    print("ready", flush=True)
    while (line := sys.stdin.readline().strip()) != "end":
        own = cl.CommandQueue(context) if "released" in sys.argv else queue
        for _ in range(int(line)):
            # The event that a launch gives is let go at once.
            cl.enqueue_nd_range_kernel(own, add, (N,), None)
            own.flush()
        del own
        print("ready", flush=True)
    cl.enqueue_copy(queue, values, buffer)
    print(values.min(), values.max(), flush=True)


if __name__ == "__main__":
    main()
