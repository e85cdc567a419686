"""A tour of OpenCL: ``tour.py NAME [ROUNDS]`` runs one program and prints the digest of all its results.

Nothing in the results depends on time or device, so that a moved run has to print what a plain run prints.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

SOURCE = """
__kernel void blend(__global uint *a, __global const uint *b, uint factor, ulong shift) {
    size_t i = get_global_id(0);
    a[i] = a[i] * factor + (b[i] ^ (uint)(shift >> 3)) + 1u;
}
__kernel void local_sum(__global uint *a, __local uint *part) {
    size_t i = get_global_id(0), j = get_local_id(0);
    part[j] = a[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t s = get_local_size(0) / 2; s; s /= 2) {
        if (j < s) part[j] += part[j + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    a[i] += part[0];
}
__kernel void turn(read_only image2d_t from, sampler_t how, write_only image2d_t to) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    int2 other = (int2)(get_global_size(0) - 1 - at.x, at.y);
    write_imageui(to, at, read_imageui(from, how, other) + (uint4)(1, 2, 3, 4));
}
"""
N = 4096
FLAGS = cl.mem_flags


class Machine:
    """A context with two queues, the second one out of order, and the kernels."""

    def __init__(self) -> None:
        self.context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
        self.queue = cl.CommandQueue(self.context)
        both = cl.command_queue_properties
        self.other = cl.CommandQueue(
            self.context,
            properties=both.OUT_OF_ORDER_EXEC_MODE_ENABLE | both.PROFILING_ENABLE,
        )
        self.program = cl.Program(self.context, SOURCE).build()
        self.mix = cl.Kernel(self.program, "blend")

    def buffer(self, seed: int, flags: int = 0, n: int = N) -> cl.Buffer:
        """Make a buffer with random contents."""
        return cl.Buffer(
            self.context, FLAGS.READ_WRITE | FLAGS.COPY_HOST_PTR | flags, hostbuf=numbers(seed, n)
        )

    def blend_once(
        self, queue: cl.CommandQueue, n: int, *buffers: cl.Buffer, waits: list[cl.Event]
    ) -> cl.Event:
        """Run the kernel once with these buffers."""
        return self.mix(queue, (n,), None, *buffers, np.uint32(5), np.uint64(n), wait_for=waits)

    def read(self, buffer: cl.MemoryObject, n: int = N) -> np.ndarray[Any, Any]:
        """Read a buffer."""
        found = np.empty(n, np.uint32)
        cl.enqueue_copy(self.queue, found, buffer)
        return found


def numbers(seed: int, n: int = N) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 2**32, n, np.uint32)


def buffers(m: Machine, rounds: int) -> list[Any]:
    """Arguments that are set once and used often, local memory, copies, fills, rectangles."""
    a, b = m.buffer(1), m.buffer(2)
    m.mix.set_args(a, b, np.uint32(3), np.uint64(2**40 + 5))
    total = cl.Kernel(m.program, "local_sum")
    for i in range(rounds):
        cl.enqueue_nd_range_kernel(m.queue, m.mix, (N,), None)
        total(m.queue, (N,), (64,), a, cl.LocalMemory(64 * 4))
        cl.enqueue_copy(m.queue, b, a, src_offset=256, dst_offset=512, byte_count=1024)
        cl.enqueue_fill_buffer(m.queue, b, np.uint32(i), 2048, 512)
        cl.enqueue_copy(
            m.queue, a, b, src_origin=(8, 2), dst_origin=(16, 5), region=(32, 4), src_pitches=(64,),
            dst_pitches=(128,),
        )  # fmt: skip
    return [m.read(a), m.read(b)]


def sub_buffers(m: Machine, rounds: int) -> list[Any]:
    """Sub-buffers, whose parent is released."""
    whole = m.buffer(3)
    parts = [whole.get_sub_region(i * 4096, 4096) for i in range(4)]
    for i in range(rounds):
        m.mix(m.queue, (1024,), None, parts[i % 4], parts[(i + 1) % 4], np.uint32(5), np.uint64(i))
    found = m.read(whole)
    whole.release()
    m.mix(m.queue, (1024,), None, parts[0], parts[1], np.uint32(7), np.uint64(1))
    return [found, m.read(parts[0], 1024), m.read(parts[1], 1024)]


def images(m: Machine, rounds: int) -> list[Any]:
    """Images with a sampler; arrays and volumes of images; copies between images and buffers."""
    form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.UNSIGNED_INT32)
    shape = (32, 16)
    data = numbers(4, 32 * 16 * 4).reshape(16, 32, 4)
    one = cl.create_image(m.context, FLAGS.READ_WRITE | FLAGS.COPY_HOST_PTR, form, shape=shape, hostbuf=data)
    two = cl.create_image(m.context, FLAGS.READ_WRITE, form, shape=shape)
    deep = cl.create_image(m.context, FLAGS.READ_WRITE, form, shape=(32, 16, 3))
    how = cl.Sampler(m.context, False, cl.addressing_mode.CLAMP_TO_EDGE, cl.filter_mode.NEAREST)
    turn, buffer = cl.Kernel(m.program, "turn"), m.buffer(5)
    for i in range(rounds):
        turn(m.queue, shape, None, one, how, two)
        cl.enqueue_copy(m.queue, deep, two, src_origin=(0, 0), dest_origin=(0, 0, i % 3), region=(32, 16, 1))
        cl.enqueue_copy(m.queue, buffer, two, offset=0, origin=(4, 2), region=(16, 8))
        cl.enqueue_copy(m.queue, one, buffer, offset=1024, origin=(1, 1), region=(16, 8))
        one, two = two, one
    found = [np.empty((16, 32, 4), np.uint32), np.empty((3, 16, 32, 4), np.uint32)]
    cl.enqueue_copy(m.queue, found[0], one, origin=(0, 0), region=shape)
    cl.enqueue_copy(m.queue, found[1], deep, origin=(0, 0, 0), region=(32, 16, 3))
    return [*found, m.read(buffer)]


def maps(m: Machine, rounds: int) -> list[Any]:
    """Map buffers and images, to read and to write, while other commands run."""
    a, b = m.buffer(6, FLAGS.ALLOC_HOST_PTR), m.buffer(7)
    form = cl.ImageFormat(cl.channel_order.R, cl.channel_type.UNSIGNED_INT32)
    image = cl.create_image(m.context, FLAGS.READ_WRITE, form, shape=(16, 8))
    found = []
    for i in range(rounds):
        view, _ = cl.enqueue_map_buffer(m.queue, a, cl.map_flags.WRITE, 4 * i, (8,), np.uint32)
        seen, _ = cl.enqueue_map_buffer(m.queue, b, cl.map_flags.READ, 0, (N,), np.uint32)
        rows, *_ = cl.enqueue_map_image(
            m.queue, image, cl.map_flags.READ | cl.map_flags.WRITE, (0, 0), (16, 8), (8, 16), np.uint32
        )
        view[:] = np.arange(i, i + 8)
        rows[:] = i * 100 + np.arange(128).reshape(8, 16)
        for _ in range(5):
            m.queue.finish()
        found.append(int(seen[i] ^ seen[-1]))
        for mapped in (view, seen, rows):
            mapped.base.release(m.queue)
        m.mix(m.queue, (N,), None, b, a, np.uint32(3), np.uint64(i))
    picture = np.empty((8, 16), np.uint32)
    cl.enqueue_copy(m.queue, picture, image, origin=(0, 0), region=(16, 8))
    return [np.array(found), picture, m.read(a), m.read(b)]


def host_pointers(m: Machine, rounds: int) -> list[Any]:
    """Buffers in the program's own memory."""
    host = numbers(8)
    a = cl.Buffer(m.context, FLAGS.READ_WRITE | FLAGS.USE_HOST_PTR, hostbuf=host)
    b = m.buffer(9)
    for i in range(rounds):
        m.mix(m.queue, (N,), None, a, b, np.uint32(3), np.uint64(i))
        view, _ = cl.enqueue_map_buffer(
            m.queue, a, cl.map_flags.READ | cl.map_flags.WRITE, 0, (N,), np.uint32
        )
        view[i % N] += 1
        view.base.release(m.queue)
        m.queue.finish()
    return [host.copy(), m.read(a)]


def events(m: Machine, rounds: int) -> list[Any]:
    """User events, callbacks, markers, barriers and profiling, over both queues."""
    a, b = m.buffer(10), m.buffer(11)
    told: list[int] = []
    last: list[cl.Event] = []
    for i in range(rounds):
        gate = cl.UserEvent(m.context)
        first = m.mix(m.other, (N,), None, a, b, np.uint32(3), np.uint64(i), wait_for=[gate, *last])
        second = m.mix(m.other, (N,), None, b, a, np.uint32(5), np.uint64(i), wait_for=[first])
        marker = cl.enqueue_marker(m.queue, wait_for=[second])
        done = threading.Event()

        def tell(status: int, number: int = i, done: threading.Event = done) -> None:
            told.append(number * 10 + status)
            done.set()

        cl.enqueue_barrier(m.other)
        gate.set_status(
            cl.command_execution_status.COMPLETE
        )  # calls nobody back, who would need Python's lock
        marker.set_callback(cl.command_execution_status.COMPLETE, tell)
        m.other.flush()
        m.queue.flush()
        assert done.wait(60)
        cl.wait_for_events([second])
        times = second.profile
        assert times.queued <= times.submit <= times.start <= times.end
        assert first.command_execution_status == cl.command_execution_status.COMPLETE
        last = [second]
    return [np.array(sorted(told)), m.read(a), m.read(b)]


def linked(m: Machine, rounds: int) -> list[Any]:
    """Programs that are compiled apart and linked, and one from the binary of another."""
    head = cl.Program(m.context, "uint twice(uint x);")
    part = cl.Program(m.context, '#include "twice.h"\nuint twice(uint x) { return 2 * x; }')
    main = cl.Program(
        m.context,
        '#include "twice.h"\n__kernel void go(__global uint *a) { a[get_global_id(0)] += twice(3); }',
    )
    for program in (part, main):
        program.compile(headers=[("twice.h", head)])
    whole = cl.link_program(m.context, [main, part])
    copy = cl.Program(m.context, m.context.devices, whole.get_info(cl.program_info.BINARIES)).build()
    a = m.buffer(12)
    del head, part, main
    for i in range(rounds):
        cl.Kernel((whole, copy)[i % 2], "go")(m.queue, (N,), None, a)
    return [m.read(a)]


def rebuilt(m: Machine, rounds: int) -> list[Any]:
    """Build one program again and again, each time with another option."""
    program = cl._cl._Program(
        m.context, "__kernel void go(__global uint *a) { a[get_global_id(0)] += STEP; }"
    )
    a = m.buffer(13)
    for i in range(rounds):
        build(program, f"-DSTEP={i % 3 + 1}", m)
        for _ in range(3):
            cl.Kernel(program, "go")(m.queue, (N,), None, a)
        m.queue.finish()
    return [m.read(a)]


def build(program: Any, options: str, m: Machine) -> None:
    """Build as soon as no kernel forbids it: PoCL releases kernels a moment after their queue is done."""
    while True:
        try:
            program._build(options.encode(), m.context.devices)
            return
        except cl.LogicError as error:
            if error.code != cl.status_code.INVALID_OPERATION:
                raise
            time.sleep(0.001)


def threads(m: Machine, rounds: int) -> list[Any]:
    """Four threads with a queue, buffers and a kernel each, in one context."""
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        queue, kernel = cl.CommandQueue(m.context), cl.Kernel(m.program, "blend")
        a, b = m.buffer(20 + number), m.buffer(30 + number)
        result = np.empty(N, np.uint32)
        for i in range(rounds):
            extra = m.buffer(i)
            kernel(queue, (N,), None, a, b, np.uint32(3 + number), np.uint64(i))
            kernel(queue, (N,), None, b, extra, np.uint32(5), np.uint64(i))
            cl.enqueue_copy(queue, result, b, is_blocking=i % 2 == 0)
        queue.finish()
        cl.enqueue_copy(queue, result, a)
        found[number] = result

    everyone = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in everyone:
        one.start()
    for one in everyone:
        one.join()
    return [found[number] for number in range(4)]


PROGRAMS: dict[str, Callable[[Machine, int], list[Any]]] = {
    one.__name__: one
    for one in (buffers, sub_buffers, images, maps, host_pointers, events, linked, rebuilt, threads)
}


def main(name: str, rounds: int) -> str:
    """Run a program and give the digest of its results."""
    digest = hashlib.sha256()
    for found in PROGRAMS[name](Machine(), rounds):
        digest.update(np.ascontiguousarray(found).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    for name in PROGRAMS if sys.argv[1] == "all" else [sys.argv[1]]:
        print(name, main(name, int(sys.argv[2]) if len(sys.argv) > 2 else 20), flush=True)
