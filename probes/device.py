"""Speed of each OpenCL device: its memory, its arithmetic, its launches, and copies from and to the host.

Each device is measured in a process of its own (``probes.device_session``), one device after the other. All
kinds are measured once before any is measured again, then in random order until the device's share of the
time is used up. Every result is checked: a wrong one is reported as absent, and gives no row.

Samples, one row a batch:

- ``device``, ``kind`` (``bandwidth``, ``flops``, ``launch``, ``copies`` or ``both``), ``repetition``
- ``bandwidth``: ``kernel`` (``read``, ``write``, ``copy``), ``bytes`` read and written, ``array_bytes``
- ``flops``: ``precision`` (``half``, ``single``, ``double``), ``flops`` (a multiply-add is two)
- both: ``width`` of the vectors, ``seconds`` of all ``launches``, ``timer`` (``device`` or ``host``)
- ``launch``: ``seconds`` from the order of a launch to its end, ``queued_s`` to its begin: medians
- ``copies``: ``memory`` (``pinned``, ``pageable``), ``bytes`` each way, ``to_s``, ``from_s``
- ``both``: the same in pinned memory, and ``both_s``: both ways at the same time
"""

from __future__ import annotations

from typing import Any, NamedTuple

from probes.device_process import START_S, DeviceProcess, Failure, ForkServer
from probes.run import Run
from probes.visits import Point, Visits
from profiles.records import OpenCLDevice

SESSION = "probes.device_session:DeviceBench"
LEAST_S = 0.5  # for a device that is like an earlier one; others are measured even when late
KERNELS = ("read", "write", "copy")
PRECISIONS = {"half": "cl_khr_fp16", "single": "", "double": "cl_khr_fp64"}
MEMORIES = ("pinned", "pageable")


class Operation(NamedTuple):
    """An operation of a device's session, and what a row says of it."""

    kind: str
    title: str
    method: str
    facts: dict[str, Any]


def measure(run: Run) -> None:
    """Measure every device for its share of the time.

    Raises:
        Unavailable: there is no OpenCL device.
    """
    run.progress("looking for devices")
    with ForkServer({}, lambda: run.progress("waiting for a device"), session=SESSION) as fork_server:
        with fork_server.fork() as process:
            devices: list[OpenCLDevice] = process.call("devices", timeout_s=START_S)["devices"]
        for place, record in enumerate(_new_kinds_first(devices)):
            twin = next((other for other in devices[: devices.index(record)] if record.is_like(other)), None)
            if twin is not None and run.left_s() < LEAST_S:
                reason = f"no time was left; it is identical to {twin.key}, whose figures stand for both"
                run.absent(f"speed of {record.key}", reason, "measure devices only: --only device")
                continue
            with fork_server.fork(record.key) as process:
                until_s = run.left_s() * (1 - 1 / (len(devices) - place))
                _Visit(run, process, record).run(until_s)


def _new_kinds_first(devices: list[OpenCLDevice]) -> list[OpenCLDevice]:
    """Put devices that are like an earlier one behind the others."""
    return sorted(devices, key=lambda d: any(d.is_like(other) for other in devices[: devices.index(d)]))


class _Visit:
    """One device at work."""

    def __init__(self, run: Run, process: DeviceProcess, record: OpenCLDevice) -> None:
        self._run, self._process, self._record = run, process, record

    def run(self, until_s: float) -> None:
        """Measure until so many seconds are left to the whole probe; each point once, even when late."""
        run, key = self._run, self._record.key
        run.progress(f"starting {key}")
        try:
            opened = self._process.call("open", key, timeout_s=START_S)
            points = [Point(operation) for operation in self._operations(opened)]
            for visit in Visits(points, run.rng, lambda: run.left_s() - until_s, first_in_order=True):
                if not self._observe(visit):
                    points.remove(visit)
        except Failure as failure:  # the process is of no further use
            remedy = "another driver may work: 'tenbin doctor' lists those found"
            reason = f"{self._record.name} cannot be used ({failure})"
            run.absent(f"speed of {key}", reason, remedy, failed=failure.kind != "memory")

    def _operations(self, opened: dict[str, Any]) -> list[Operation]:
        """List what to measure; say what the device has not."""
        run, key = self._run, self._record.key
        if opened["array_bytes"] < 2 * opened["cache_bytes"]:
            sizes = (
                f"arrays of {opened['array_bytes'] >> 20} MiB, caches of {opened['cache_bytes'] >> 20} MiB"
            )
            run.absent(f"memory of {key} beyond its caches", f"there is too little memory: {sizes}")
        array = {"array_bytes": opened["array_bytes"]}
        operations = [
            Operation("bandwidth", f"{kernel} of memory", "bandwidth", {"kernel": kernel, **array})
            for kernel in KERNELS
        ]
        for precision, extension in PRECISIONS.items():
            if opened.get(precision, True):
                operations.append(
                    Operation("flops", f"{precision} precision", "arithmetic", {"precision": precision})
                )
            else:
                run.absent(f"{precision} precision of {key}", f"the device has none (no {extension})")
        operations.append(Operation("launch", "launches", "launches", {}))
        operations += [Operation("copies", f"copies, {m} memory", "copies", {"memory": m}) for m in MEMORIES]
        return [*operations, Operation("both", "copies both ways at once", "copies_at_once", {})]

    def _observe(self, visit: Point[Operation]) -> bool:
        """Measure an operation once; return whether it may be repeated.

        The first time is a warm-up as well, and finds the best variant.

        Raises:
            Failure: the process is of no further use.
        """
        run, key, operation = self._run, self._record.key, visit.key
        run.progress(f"{key}: {operation.title}")
        facts = operation.facts
        subject = [facts[name] for name in ("kernel", "precision", "memory") if name in facts]
        try:
            row = self._process.call(operation.method, *subject)
        except Failure as failure:
            if failure.kind != "data":
                raise
            run.absent(f"{operation.title} of {key}", f"a result was wrong: {failure}", failed=True)
            return False
        run.sample(kind=operation.kind, device=key, repetition=visit.count, **facts, **row)
        return True
