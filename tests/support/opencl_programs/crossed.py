"""One thread puts commands into a queue behind a user event, and another one sets it: ``crossed ROUNDS``.

It prints "ready", and at its end the sum of what it has computed.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pyopencl as cl

SOURCE = "__kernel void add(__global uint *sum, __global const uint *by) { sum[0] += by[0]; }"
BEFORE_S = 0.05


def main(rounds: int) -> None:
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    add = cl.Kernel(cl.Program(context, SOURCE).build(), "add")
    total, by = (cl.Buffer(context, cl.mem_flags.READ_WRITE, 4) for _ in range(2))
    cl.enqueue_fill_buffer(queue, total, np.uint32(0), 0, 4)
    cl.enqueue_fill_buffer(queue, by, np.uint32(1), 0, 4)
    print("ready", flush=True)

    def set_later(event: cl.UserEvent) -> None:
        time.sleep(BEFORE_S)
        event.set_status(cl.command_execution_status.COMPLETE)

    for number in range(rounds):
        event = cl.UserEvent(context)
        setter = threading.Thread(target=set_later, args=(event,))
        setter.start()
        add(queue, (1,), None, total, by, wait_for=[event])
        wrote = cl.enqueue_copy(queue, by, np.array([number], np.uint32), is_blocking=False)
        queue.finish()
        setter.join()
        del wrote  # it waits for its end
    found = np.empty(1, np.uint32)
    cl.enqueue_copy(queue, found, total)
    print(int(found[0]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
