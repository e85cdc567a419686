"""Runs programs that are lists of OpenCL operations: a JSON list on each line in, a digest on each line out.

A list that begins with "begin" leaves its objects, "go on" goes on with them, "end" goes on and gives the
digest.
Every number of an operation is taken modulo what there is, so that any list is a program.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
import pyopencl as cl

from tests.support.opencl_programs.tour import FLAGS, Machine, N, numbers

LOCAL = 64  # work-items of a group; PoCL compiles a kernel anew for each size of groups
UNEVEN = N - 1  # work-items, of which the driver chooses the groups
SLOT = 1024  # bytes of a sub-buffer; more than any alignment


class Runner:
    """One program: four buffers, their parts, one image, mappings and user events that stay for a while."""

    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.buffers = [machine.buffer(seed) for seed in range(4)]
        form = cl.ImageFormat(cl.channel_order.R, cl.channel_type.UNSIGNED_INT32)
        self.image = cl.create_image(machine.context, FLAGS.READ_WRITE, form, shape=(32, 32))
        self.kernels = [cl.Kernel(machine.program, "blend") for _ in range(2)]
        for kernel in self.kernels:
            kernel.set_args(self.buffers[0], self.buffers[1], np.uint32(3), np.uint64(9))
        self.parts: list[tuple[cl.Buffer, int]] = []
        self.mapped: list[tuple[Any, int]] = []
        self.gates: list[cl.UserEvent] = []
        self.last: cl.Event | None = None  # of the last command: all run in order, whatever their queue
        self.digest = hashlib.sha256()
        cl.enqueue_fill_image(machine.queue, self.image, np.zeros(4, np.uint32), (0, 0), (32, 32)).wait()

    def waits(self) -> list[cl.Event]:
        """Give the events that the next command waits for."""
        return [event for event in (self.last, *self.gates) if event is not None]

    def queue(self, number: int) -> cl.CommandQueue:
        return (self.m.queue, self.m.other)[number % 2]

    def open_gates(self) -> None:
        """Set all user events, because what follows waits for the device."""
        for gate in self.gates:
            gate.set_status(cl.command_execution_status.COMPLETE)
        self.gates = []

    def do(self, operation: str, a: int, b: int, c: int) -> None:
        """Do one operation."""
        if operation == "svm":
            self.svm()
        else:
            getattr(self, f"do_{operation}")(a, b, c)

    def do_write(self, a: int, b: int, c: int) -> None:
        self.open_gates()
        cl.enqueue_copy(
            self.queue(c), self.buffers[a % 4], numbers(b, 256), dst_offset=b % 64 * 16, wait_for=self.waits()
        )

    def do_argument(self, a: int, b: int, c: int) -> None:
        kernel = self.kernels[a % 2]
        kernel.set_arg(b % 2, self.buffers[c % 4])
        kernel.set_arg(2, np.uint32(c))

    def do_run(self, a: int, b: int, c: int) -> None:
        items, local = ((N - c % 60 * LOCAL,), (LOCAL,)) if c % 4 else ((UNEVEN,), None)
        self.last = cl.enqueue_nd_range_kernel(
            self.queue(b), self.kernels[a % 2], items, local, wait_for=self.waits()
        )

    def do_copy(self, a: int, b: int, c: int) -> None:
        if a % 4 != b % 4:
            source, target = self.buffers[a % 4], self.buffers[b % 4]
            self.last = cl.enqueue_copy(
                self.queue(c), target, source, byte_count=2048, src_offset=c % 7 * 256, wait_for=self.waits()
            )

    def do_fill(self, a: int, b: int, c: int) -> None:
        self.last = cl.enqueue_fill_buffer(
            self.queue(c), self.buffers[a % 4], np.uint32(b), c % 8 * 512, 512, wait_for=self.waits()
        )

    def do_part(self, a: int, b: int, c: int) -> None:
        self.parts.append((self.buffers[a % 4].get_sub_region(b % 8 * SLOT, SLOT), a % 4))

    def do_run_part(self, a: int, b: int, c: int) -> None:
        if len(self.parts) >= 2:
            (one, of), (two, other) = self.parts[a % len(self.parts)], self.parts[b % len(self.parts)]
            if of != other:
                self.last = self.m.blend_once(self.queue(c), SLOT // 4, one, two, waits=self.waits())

    def do_image(self, a: int, b: int, c: int) -> None:
        buffer, place = self.buffers[a % 4], (b % 8, c % 8)
        first, second = (self.image, buffer) if c % 2 else (buffer, self.image)
        self.last = cl.enqueue_copy(
            self.m.queue,
            second,
            first,
            offset=b % 16 * 64,
            origin=place,
            region=(16, 8),
            wait_for=self.waits(),
        )

    def do_map(self, a: int, b: int, c: int) -> None:
        """Map a part that no other mapping has."""
        if all(of != a % 4 for _, of in self.mapped):
            self.open_gates()
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            view, self.last = cl.enqueue_map_buffer(
                self.queue(c), self.buffers[a % 4], flags, b % 64 * 4, (16,), np.uint32, wait_for=self.waits()
            )
            self.mapped.append((view, a % 4))

    def do_unmap(self, a: int, b: int, c: int) -> None:
        if self.mapped:
            self.open_gates()
            self.m.queue.finish()
            self.m.other.finish()
            view, _ = self.mapped.pop(a % len(self.mapped))
            view[b % 16] = c  # what commands did to it meanwhile is undefined, so the rest is set too
            view[:] = np.arange(16) * b + view[b % 16]
            self.last = view.base.release(self.queue(c), wait_for=self.waits())

    def do_gate(self, a: int, b: int, c: int) -> None:
        if not self.gates:
            self.gates.append(cl.UserEvent(self.m.context))

    def do_open(self, a: int, b: int, c: int) -> None:
        self.open_gates()

    def do_anew(self, a: int, b: int, c: int) -> None:
        """Release a buffer that kernels may have as argument, and put another in its place."""
        if all(of != a % 4 for _, of in self.mapped):
            self.open_gates()
            self.m.queue.finish()
            self.m.other.finish()
            self.parts = [(part, of) for part, of in self.parts if of != a % 4]
            self.buffers[a % 4].release()
            self.buffers[a % 4] = self.m.buffer(b)
            for kernel in self.kernels:
                kernel.set_arg(0, self.buffers[0])
                kernel.set_arg(1, self.buffers[1])

    def do_marker(self, a: int, b: int, c: int) -> None:
        call = (cl.enqueue_marker, cl.enqueue_barrier)[a % 2]
        self.last = call(self.queue(c), wait_for=self.waits())

    def do_read(self, a: int, b: int, c: int) -> None:
        self.open_gates()
        found = np.empty(N, np.uint32)
        cl.enqueue_copy(self.queue(c), found, self.buffers[a % 4], wait_for=self.waits())
        if all(of != a % 4 for _, of in self.mapped):
            self.digest.update(found.tobytes())

    def svm(self) -> None:
        """Take shared virtual memory, which no move knows."""
        memory = cl.SVMAllocation(self.m.context, 4096, 64, cl.svm_mem_flags.READ_WRITE)
        memory.release()

    def end(self) -> str:
        """Read everything."""
        while self.mapped:
            self.do_unmap(0, 0, 0)
        for number in range(4):
            self.do_read(number, 0, 0)
        picture = np.empty((32, 32), np.uint32)
        cl.enqueue_copy(
            self.m.queue, picture, self.image, origin=(0, 0), region=(32, 32), wait_for=self.waits()
        )
        self.digest.update(picture.tobytes())
        return self.digest.hexdigest()


OPERATIONS = [name.removeprefix("do_") for name in vars(Runner) if name.startswith("do_")]


def main() -> None:
    """Run the programs of standard input."""
    machine, runner = Machine(), None
    for line in sys.stdin:
        operations = json.loads(line)
        stage = operations.pop(0) if operations and isinstance(operations[0], str) else ""
        if runner is None or stage in ("", "begin"):
            runner = Runner(machine)
        for operation, *given in operations:
            runner.do(operation, *given)
        print(runner.end() if stage in ("", "end") else "done", flush=True)


if __name__ == "__main__":
    main()
