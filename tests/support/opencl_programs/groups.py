"""Launches kernels by groups: ``KERNEL ITEMS`` a line in; what the kernel admits, and a sum, a line out.

A kernel is made for each launch.
``ITEMS`` 0: as many as the kernel admits.
"""

from __future__ import annotations

import sys

import numpy as np
import pyopencl as cl

N = 1 << 13
SOURCE = """
__kernel void plain(__global uint *a) { a[get_global_id(0)] += 1; }
__kernel void large(__global uint *a) { a[get_global_id(0)] += 3; }
"""


def main() -> None:
    """Launch kernels as standard input asks."""
    context = cl.create_some_context(interactive=False)
    queue, device = cl.CommandQueue(context), context.devices[0]
    program = cl.Program(context, SOURCE).build()
    found = np.zeros(N, np.uint32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=found)
    for name, items in map(str.split, sys.stdin):
        kernel = cl.Kernel(program, name)
        most = kernel.get_work_group_info(cl.kernel_work_group_info.WORK_GROUP_SIZE, device)
        kernel(queue, (N,), (int(items) or most,), buffer)
        cl.enqueue_copy(queue, found, buffer)
        print(most, int(found.sum()) // N, flush=True)


if __name__ == "__main__":
    main()
