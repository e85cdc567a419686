"""Ends by exit() when standard input has a line; a handler then prints the sum of a buffer.

An argument "thread" lets a thread call exit().
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import numpy as np
import pyopencl as cl

SOURCE = "__kernel void count(__global uint *values) { values[get_global_id(0)] += get_global_id(0); }"
N = 1000


def main() -> None:
    libc = ctypes.CDLL(None)
    queue, buffer = None, None

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def last(_: object) -> None:
        found = np.empty(N, np.uint32)
        cl.enqueue_copy(queue, found, buffer)
        os.write(1, f"{found.sum()}\n".encode())

    libc.__cxa_atexit(last, None, None)  # before any of OpenCL, so that it is called after theirs
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(context, flags, hostbuf=np.zeros(N, np.uint32))
    program = cl.Program(context, SOURCE).build()
    program.count(queue, (N,), None, buffer)
    queue.finish()
    print("ready", flush=True)

    def end() -> None:
        queue.finish()
        sys.stdin.readline()
        os.write(1, b"ends\n")
        libc.exit(0)  # at once, with the handlers of all libraries

    if "thread" in sys.argv:
        ender = threading.Thread(target=end)
        ender.start()
        ender.join()
    else:
        end()


if __name__ == "__main__":
    main()
