"""Bursts of launches, and work of the host between them: ``bursts HOST_MS ROUNDS ITEMS LAUNCHES [BURSTS]``.

A line in; a second later the bursts in a second of this time a line out. Meanwhile and otherwise it goes on.
With BURSTS it reads nothing, ends after so many, and prints the sum of its values.
"""

from __future__ import annotations

import select
import sys
import time

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void work(__global float *values, int rounds) {
    size_t i = get_global_id(0);
    float value = values[i];
    for (int r = 0; r < rounds; r++) value = value * 0.999f + 0.5f;
    values[i] = value;
}
"""


def main() -> None:
    """Go on until standard input ends, or for so many bursts."""
    host_s, rounds, items, launches, *most = float(sys.argv[1]) / 1e3, *map(int, sys.argv[2:])
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "work")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    values = cl.Buffer(context, flags, hostbuf=np.zeros(items, np.float32))  # a kernel does not hold it
    kernel.set_args(values, np.int32(rounds))

    def burst() -> None:
        for _ in range(launches):
            cl.enqueue_nd_range_kernel(queue, kernel, (items,), (32,))
        queue.finish()
        if host_s:
            time.sleep(host_s)

    if most:
        for _ in range(most[0]):
            burst()
        found = np.empty(items, np.float32)
        cl.enqueue_copy(queue, found, values)
        print(float(found.sum()))
        return
    began_s, bursts = 0.0, 0
    while True:
        burst()
        now_s, bursts = time.monotonic(), bursts + 1
        if began_s and now_s >= began_s + 1:
            print(bursts / (now_s - began_s), flush=True)
            began_s = 0.0
        if select.select([0], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            began_s, bursts = now_s, 0


if __name__ == "__main__":
    main()
