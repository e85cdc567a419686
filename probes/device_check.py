"""The slices of a check on OpenCL devices: a matrix product of a fixed size, and copies.

Each device is measured in a process of its own, one after the other, because devices share links and power.
Before that it computes for a moment, so that its clock rises. ``Settings.budget_s`` is the time of each
device, in as many rounds as those of the battery; ``only`` may name some. Every result is compared with what
it must be.

The samples are those of ``probes.battery``, of the quantities

- ``device_product_gflops`` {device}: the product in single precision
- ``device_copy_gbs`` {device, direction}: ``to_device`` and ``from_device``, from pinned host memory
- ``device_bandwidth_gbs`` {device, kernel}: ``copy`` within the device, bytes read and written

``device`` is what stays of a device when others come and go: the UUID of a GPU that NVML knows, else the PCI
address, else its key (``pocl-0``). A row of the quantity ``device`` has the ``name`` by which people know
each, its ``model``, and ``failure`` if a result was wrong.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from probes import nvml
from probes.device_process import START_S, DeviceProcess, Failure, ForkServer
from probes.device_session import HostCopies
from probes.opencl import DeviceMemoryTooSmall, WrongResult, find, pci_address
from probes.run import Run
from probes.visits import Point, Visits
from profiles.errors import Unavailable
from profiles.records import OpenCLDevice

# -- the session, in a process of its own ------------------------------------------------------------------


PRODUCT = Path(__file__).with_name("matrix_product.cl")
COLUMNS = {"cpu": 512}  # of the matrices; on devices of other kinds COLUMNS_ELSEWHERE
COLUMNS_ELSEWHERE = 4096
PERIOD = 256  # columns after which the matrices repeat
MOST_NUMBER = 8  # above all numbers in them: sums are whole, and exact up to 2^24
SIDE, GROUP = 4, 256  # numbers that an item makes are SIDE squared; items of a work-group
BLOCK = 4 << 20  # bytes of random numbers that fill an array, over and over
ARRAY = {"cpu": 64 << 20}  # bytes that are copied within the device; on others ARRAY_ELSEWHERE
ARRAY_ELSEWHERE = 256 << 20
BATCH_S, MOST_TIMES = 0.03, 100
WARM_S = 0.3
IN_USE = 5  # percent of the last second


class DeviceSlices:
    """A device with its context and queues, two matrices and two arrays; with ``only`` one of those named.

    Both matrices repeat a block of small integers, so the host knows every number of a large product from the
    product of the blocks.
    """

    def __init__(self, key: str, only: tuple[str, ...] = ()) -> None:
        self._about = identify(key)  # before this process uses the device itself
        if self._about["hindrance"] or (only and self._about["device"] not in only):
            return
        device = find([key])[0]
        self.context = cl.Context([device.handle])
        profiling: Any = cl.command_queue_properties.PROFILING_ENABLE
        self.profiled = bool(device.handle.queue_properties & profiling)
        options = {"properties": profiling} if self.profiled else {}
        self.queue = cl.CommandQueue(self.context, **options)
        self._times: dict[str, int] = {}
        try:
            self._prepare_product(COLUMNS.get(device.kind, COLUMNS_ELSEWHERE))
            self._prepare_copies(ARRAY.get(device.kind, ARRAY_ELSEWHERE))
            self.queue.finish()
        except cl.MemoryError as error:  # some drivers allocate at the first use only
            raise DeviceMemoryTooSmall(str(error)) from error

    def _prepare_product(self, n: int) -> None:
        rng = np.random.default_rng(1)
        blocks = [rng.integers(0, MOST_NUMBER, (PERIOD, PERIOD)).astype(np.float32) for _ in range(2)]
        self.expected: NDArray[np.float32] = blocks[0] @ blocks[1] * np.float32(n // PERIOD)
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        tiled = [np.tile(block, (n // PERIOD, n // PERIOD)) for block in blocks]
        self.factors = [cl.Buffer(self.context, flags, hostbuf=matrix) for matrix in tiled]
        self.columns, self.result = n, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, 4 * n * n)
        self.kernel = cl.Kernel(cl.Program(self.context, PRODUCT.read_text()).build(), "product")
        self.kernel.set_args(*self.factors, self.result, np.int32(n))

    def _prepare_copies(self, size: int) -> None:
        self.block = np.random.default_rng(1).integers(0, 256, BLOCK // 4).astype(np.float32)
        flags = cl.mem_flags.READ_WRITE
        self.source, self.target = (cl.Buffer(self.context, flags, size) for _ in range(2))
        for offset in range(0, size, BLOCK):
            cl.enqueue_copy(self.queue, self.source, self.block, dst_offset=offset)
        plain = cl.CommandQueue(self.context)
        self.copies_of_host = HostCopies((plain, self.queue), (self.source, self.target), self.block)

    def opened(self) -> dict[str, Any]:
        """Tell the device's identity and name, and why it is not measured (empty: it is)."""
        return self._about

    def warm(self, seconds: float) -> None:
        """Compute for so long, so that the clock rises."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._multiply().wait()

    def product(self) -> float:
        """Multiply the matrices for some time, compare every number, and return GFLOP/s.

        Raises:
            WrongResult: a number is wrong.
        """
        n = self.columns
        self._soil(self.result)
        seconds, times = self._timed("product", self._multiply)
        numbers = np.empty((n // PERIOD, PERIOD, n // PERIOD, PERIOD), np.float32)
        cl.enqueue_copy(self.queue, numbers, self.result)
        if wrong := int((numbers != self.expected[:, np.newaxis, :]).sum()):
            raise WrongResult(f"{wrong} of {n * n} numbers of a matrix product are wrong")
        return 2 * n**3 * times / seconds / 1e9

    def within(self) -> float:
        """Copy an array within the device for some time, compare it, and return GB/s read and written.

        Raises:
            WrongResult: the copy is wrong.
        """
        self._soil(self.target)
        order = partial(cl.enqueue_copy, self.queue, self.target, self.source)
        seconds, times = self._timed("within", order)
        copied = np.empty((self.target.size // BLOCK, BLOCK // 4), np.float32)
        cl.enqueue_copy(self.queue, copied, self.target)
        if not (copied == self.block).all():
            raise WrongResult("a copy within the device is wrong")
        return 2 * self.target.size * times / seconds / 1e9

    def copies(self) -> dict[str, Any]:
        """Copy to the device and back: see ``HostCopies.there_and_back``."""
        return self.copies_of_host.there_and_back("pinned")

    def _multiply(self) -> cl.Event:
        return cl.enqueue_nd_range_kernel(self.queue, self.kernel, ((self.columns // SIDE) ** 2,), (GROUP,))

    def _soil(self, buffer: cl.Buffer) -> None:
        """Overwrite a buffer, so that an old result shows."""
        cl.enqueue_fill_buffer(self.queue, buffer, np.full(1, 255, np.uint8), 0, buffer.size).wait()

    def _timed(self, what: str, order: Callable[[], cl.Event]) -> tuple[float, int]:
        """Repeat an order for ``BATCH_S``: seconds, by the device's clock where it is told, and how often."""
        if what not in self._times:
            order().wait()  # the first one is slower
            start = time.perf_counter()
            order().wait()
            once_s = time.perf_counter() - start
            self._times[what] = min(max(round(BATCH_S / once_s), 1), MOST_TIMES)
        start = time.perf_counter()
        events = [order() for _ in range(self._times[what])]
        self.queue.finish()
        seconds = time.perf_counter() - start
        own_s = sum(e.profile.end - e.profile.start for e in events) * 1e-9 if self.profiled else 0.0
        return own_s if 0 < own_s <= seconds else seconds, len(events)


def identify(key: str) -> dict[str, str]:
    """Find what stays of a device, the name by which people know it, and what hinders a measurement now."""
    bus = pci_address(find([key])[0].handle)
    about = {"device": bus or key, "name": key, "hindrance": ""}
    try:
        library = nvml.load()
    except Unavailable:
        return about
    try:
        for index in range(library.nvmlDeviceGetCount()):
            gpu = library.nvmlDeviceGetHandleByIndex(index)
            if not bus or nvml.pci_address(library, gpu) != bus:
                continue
            about |= {"device": nvml.text(library.nvmlDeviceGetUUID(gpu)), "name": f"GPU {index}"}
            mode = nvml.figure(library, library.nvmlDeviceGetMigMode, gpu)
            rates = nvml.figure(library, library.nvmlDeviceGetUtilizationRates, gpu)
            if mode and mode[0]:
                about["hindrance"] = "it is divided (MIG)"
            elif rates is not None and rates.gpu > IN_USE:
                about["hindrance"] = f"somebody uses it ({rates.gpu} %)"
            return about
    finally:
        library.nvmlShutdown()
    return about


# -- the probe ---------------------------------------------------------------------------------------------


SESSION = "probes.device_check:DeviceSlices"
FULL_ROUNDS = 4
OPERATIONS = ("product", "copies", "within")


def measure(run: Run) -> None:
    """Measure each device for the budget; a failure costs that device only."""
    run.progress("looking for devices")
    with ForkServer({}, session=SESSION) as fork_server:
        try:
            with fork_server.fork() as process:
                devices: list[OpenCLDevice] = process.call("devices", timeout_s=START_S)["devices"]
        except Unavailable:  # a machine without is checked all the same
            return
        known: set[str] = set()  # a GPU may have two drivers
        for record in devices:
            with fork_server.fork(record.key) as process:
                _measure(run, process, record, known)


def _measure(run: Run, process: DeviceProcess, record: OpenCLDevice, known: set[str]) -> None:
    run.progress(record.key)
    about = {"device": record.key, "name": record.key}
    try:
        only = run.settings.only
        about = process.call("open", record.key, only, timeout_s=START_S)
        if about["device"] in known or (only and about["device"] not in only):
            return
        known.add(about["device"])
        if hindrance := about.pop("hindrance"):
            run.absent(f"speed of {about['name']}", hindrance)
            return
        process.call("warm", WARM_S)
        for operation in OPERATIONS:  # the first time takes longer
            process.call(operation)
        rounds = 1 if run.settings.quick else FULL_ROUNDS
        for part in range(rounds):
            end_s = time.monotonic() + run.settings.budget_s / rounds
            points = [Point(operation) for operation in OPERATIONS]
            for visit in Visits(points, run.rng, lambda: end_s - time.monotonic()):  # noqa: B023
                for quantity, labels, value, unit in _readings(process, visit.key):
                    run.sample(
                        part=part,
                        quantity=quantity,
                        labels=json.dumps({"device": about["device"], **labels}),
                        value=value,
                        unit=unit,
                        cpu_ratio=None,
                        cpu_value=value,
                    )
        _tell(run, about, record)
    except Failure as failure:
        if failure.kind == "data":
            _tell(run, about, record, str(failure))
        remedy = "another driver may work: 'tenbin doctor' lists those found"
        run.absent(f"speed of {about['name']}", str(failure), remedy, failed=failure.kind != "memory")


Reading = tuple[str, dict[str, str], float, str]


def _readings(process: DeviceProcess, operation: str) -> list[Reading]:
    if operation == "product":
        return [("device_product_gflops", {}, process.call("product"), "GFLOP/s")]
    if operation == "within":
        return [("device_bandwidth_gbs", {"kernel": "copy"}, process.call("within"), "GB/s")]
    row = process.call("copies")
    ways = {"to_device": row["to_s"], "from_device": row["from_s"]}
    return [
        ("device_copy_gbs", {"direction": way}, row["bytes"] / seconds / 1e9, "GB/s")
        for way, seconds in ways.items()
    ]


def _tell(run: Run, about: dict[str, Any], record: OpenCLDevice, failure: str = "") -> None:
    run.sample(quantity="device", **about, model=record.name, failure=failure)
