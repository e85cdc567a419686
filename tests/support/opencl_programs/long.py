"""An unmodified OpenCL program that computes for a while, and prints a digest of what it has computed."""

import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import pyopencl as cl

SOURCE = """
#ifdef OUTSIDE
#include "factor.h"
#else
#define FACTOR 0.25f
#endif
__kernel void spread(__global const float *from, __global float *to) {
    size_t i = get_global_id(0), n = get_global_size(0);
    to[i] = FACTOR * from[(i + n - 1) % n] + 0.5f * from[i] + FACTOR * from[(i + 1) % n];
}"""


def main(steps: int, pause_s: float, *more: str) -> None:
    """Let heat spread for so many steps; ``svm``: shared virtual memory; ``-I``: folder of a header.

    ``until=FILE``: once the file is there it computes without pauses.
    """
    cells = 1 << 14
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    folders = [option for option in more if option.startswith("-I")]
    program = cl.Program(context, SOURCE).build([*folders, "-DOUTSIDE"] if folders else [])
    heat = np.zeros(cells, np.float32)
    heat[::1000] = 1
    old = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=heat)
    new = cl.Buffer(context, cl.mem_flags.READ_WRITE, heat.nbytes)
    kernel = program.spread
    shared = cl.csvm_empty(context, 64, np.float32) if "svm" in more else None
    files = [Path(option.removeprefix("until=")) for option in more if option.startswith("until=")]
    print("began", flush=True)
    for _ in range(steps):
        kernel(queue, heat.shape, None, old, new)
        old, new = new, old
        queue.finish()
        if not any(file.exists() for file in files):
            time.sleep(pause_s)
    cl.enqueue_copy(queue, heat, old)
    print(hashlib.sha256(heat.tobytes()).hexdigest(), flush=True)
    del shared


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
