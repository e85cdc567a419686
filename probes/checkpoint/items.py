"""Items of a checkpoint plan, carried out and recorded; a failure costs only the item that failed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probes.checkpoint.device_process import START_S, Failure, ForkServer
from probes.checkpoint.subjects import CheckpointSubject, cache_environment
from probes.run import Run
from probes.scratch import is_full, storage_remedy
from profiles.records import MB

Kind = Literal["trip", "io", "copy", "migration", "compile", "drain"]

SMALLEST_MB = 1
USEFUL_MB = 64
_FEWEST_SWEEPS = 1.5
QUEUE_LENGTHS = (0, 100, 250, 1000, 4000)  # kernels waiting to be drained; NVIDIA's driver took 250, not 1000


class Item(NamedTuple):
    """A measurement: its kind, devices, folder and size."""

    kind: Kind
    device: str = ""
    to_device: str = ""
    storage: str = ""
    size_mb: int = 0


class Extent(NamedTuple):
    """Extent of a plan: sizes, repetitions, and builds of the program."""

    sizes: int
    largest_mb: int
    sweeps: int
    builds: int  # with cold caches; each takes as long as some dozen checkpoints
    whole: int  # sweeps whatever time they take: the lines need five points at three sizes


QUICK = Extent(sizes=4, largest_mb=256, sweeps=4, builds=1, whole=2)
FULL = Extent(sizes=6, largest_mb=2048, sweeps=5, builds=2, whole=1)


def ladder(largest_mb: int, sizes: int) -> list[int]:
    """List ``sizes`` doubling sizes up to ``largest_mb`` (a power of two), none below 1 MB."""
    ascending = [largest_mb >> step for step in reversed(range(sizes))]
    return [size for size in ascending if size >= SMALLEST_MB]


def affordable_mb(extent: Extent, room_mb: float, *, per_mb_s: float, each_s: float, left_s: float) -> int:
    """Find the largest power of two whose ladder can be swept ``extent.sweeps`` times in ``left_s``.

    Up to ``USEFUL_MB`` fewer sweeps will do, because small sizes alone say nothing of the time per MB.

    Args:
        room_mb: room of device, memory and storage.
        per_mb_s, each_s: cost of all items of one size together: seconds per MB, and seconds.

    Returns:
        0 where not even the smallest size has room.
    """
    size = extent.largest_mb
    while size > room_mb:
        size //= 2
    while size > 4 * SMALLEST_MB:
        sweep_s = sum(per_mb_s * mb + each_s for mb in ladder(size, extent.sizes))
        if sweep_s * (extent.sweeps if size > USEFUL_MB else _FEWEST_SWEEPS) <= left_s:
            break
        size //= 2
    return size


_SLOWEST_MB_S = 5.0  # below this an operation counts as hung


@dataclass
class Place:
    """A storage folder, its room, and the sizes measured there."""

    folder: str
    scratch: Path
    room_mb: float
    sizes: list[int] = field(default_factory=list)


@dataclass
class CheckpointBench:
    """State of a checkpoint measurement; subjects and places that failed are taken out."""

    run: Run
    fork_server: ForkServer
    caches: Path
    places: dict[str, Place]
    subjects: dict[str, CheckpointSubject] = field(default_factory=dict)
    repetition: int = 0
    recording: bool = True
    doing: str = "looking for OpenCL devices"
    queue_lengths: list[int] = field(default_factory=lambda: list(QUEUE_LENGTHS))

    def measured(self) -> list[CheckpointSubject]:
        """List the devices that are measured by themselves; of identical twins one."""
        return [subject for subject in self.subjects.values() if subject.measured]

    def possible(self, item: Item) -> bool:
        """Tell whether ``item`` needs nothing that was lost or found too small."""
        devices = [key for key in (item.device, item.to_device) if key]
        if any(key not in self.subjects for key in devices):
            return False
        rooms = [self.subjects[key].room_mb for key in devices]
        if item.storage:
            if item.storage not in self.places:
                return False
            rooms.append(self.places[item.storage].room_mb)
        return all(item.size_mb <= room for room in rooms)

    def say(self, doing: str = "") -> None:
        """Tell the user the current step (unchanged where ``doing`` is empty)."""
        self.doing = doing or self.doing
        self.run.progress(self.doing)

    def attempt(self, item: Item) -> None:
        """Measure ``item``; what cannot be measured is reported and left out from then on."""
        measures: dict[str, Callable[[Item], None]] = {
            "trip": self._trip,
            "migration": self._migration,
            "io": self._io,
            "copy": self._copy,
            "compile": self._compile,
            "drain": self._drain,
        }
        self.say(describe(item))
        try:
            measures[item.kind](item)
        except Failure as failure:
            self._lose(item, failure)

    def fill_device(self, subject: CheckpointSubject, size_mb: int) -> None:
        """Put ``size_mb`` of data on a device, or less where it has no room."""
        self.say(f"filling {subject.key} with {size_mb} MB")
        subject.digests.clear()
        while size_mb >= 1:
            try:
                subject.process.call(
                    "fill_device", size_mb * MB, self.run.settings.seed, timeout_s=_limit_s(size_mb)
                )
                return
            except Failure as failure:
                self._lose(Item("copy", subject.key, size_mb=size_mb), failure)
                if failure.kind != "memory":
                    return
            size_mb //= 2

    def _trip(self, item: Item) -> None:
        """Checkpoint, then restart on the same device, as a preempted job does."""
        with self._file(item) as path:
            saved = self._checkpoint(item, path)
            restarted = self._restart(item, path)
        where = {"device": item.device, "storage": item.storage, "memory_mb": item.size_mb}
        self._sample(kind="checkpoint", **where, seconds=saved["seconds"], io=saved["io"])
        self._sample(kind="restart", **where, seconds=restarted["seconds"], io=restarted["io"])
        self._sample(kind="compile", cache="warm", device=item.device, seconds=restarted["compile_s"])
        self._sample(kind="phase", phase="context", device=item.device, seconds=restarted["context_s"])

    def _migration(self, item: Item) -> None:
        """Checkpoint on one device, restart on another; time runs until the new device is ready."""
        with self._file(item) as path:
            saved = self._checkpoint(item, path)
            restarted = self._restart(item, path)
        self._sample(
            kind="migration",
            device=item.device,
            to_device=item.to_device,
            costs_of=self.subjects[item.device].costs_of,
            to_costs_of=self.subjects[item.to_device].costs_of,
            storage=item.storage,
            memory_mb=item.size_mb,
            seconds=restarted["ended"] - saved["started"],
            io=saved["io"],
        )

    def _io(self, item: Item) -> None:
        with self._file(item) as path:
            size = item.size_mb * MB
            times = self._call(item.device, "write_and_read", str(path), size, size_mb=item.size_mb)
        where = {"storage": item.storage, "memory_mb": item.size_mb, "io": times["io"]}
        self._sample(kind="phase", phase="write", **where, seconds=times["write_s"])
        self._sample(kind="phase", phase="read", **where, seconds=times["read_s"])

    def _copy(self, item: Item) -> None:
        times = self._call(item.device, "copy", item.size_mb * MB, size_mb=item.size_mb)
        where = {"device": item.device, "memory_mb": item.size_mb}
        for phase in ("copy_out", "copy_in", "copy_new"):
            self._sample(kind="phase", phase=phase, **where, seconds=times[f"{phase}_s"])

    def _compile(self, item: Item) -> None:
        """Build the program with empty caches, in a new process."""
        folder = self.caches / f"cold-{item.device}-{self.repetition}"
        try:
            with self.fork_server.fork(item.device, cache_environment(folder)) as process:
                opened = process.call("open", item.device, timeout_s=START_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._sample(kind="compile", cache="cold", device=item.device, seconds=opened["compile_s"])
        self._sample(kind="phase", phase="context", device=item.device, seconds=opened["context_s"])

    def _drain(self, item: Item) -> None:
        for kernels in self.run.rng.permutation(self.queue_lengths):
            seconds = self._call(item.device, "drain", int(kernels))
            self._sample(kind="drain", device=item.device, queued_kernels=int(kernels), seconds=seconds)

    def _checkpoint(self, item: Item, path: Path) -> dict[str, Any]:
        saved: dict[str, Any] = self._call(
            item.device, "checkpoint", str(path), item.size_mb * MB, size_mb=item.size_mb
        )
        return saved

    def _restart(self, item: Item, path: Path) -> dict[str, Any]:
        """Restart in a new process, and compare the data that arrived with the data saved.

        Raises:
            Failure: of kind ``data`` where they differ.
        """
        size, limit_s = item.size_mb * MB, _limit_s(item.size_mb)
        with self.fork_server.fork(item.to_device) as process:
            process.call("open", item.to_device, timeout_s=START_S)
            restarted: dict[str, Any] = process.call("restart", str(path), size, timeout_s=limit_s)
            arrived = process.call("digest", size, timeout_s=limit_s)
        digests = self.subjects[item.device].digests
        if size not in digests:
            digests[size] = self._call(item.device, "digest", size, size_mb=item.size_mb)
        if arrived != digests[size]:
            raise Failure("data", "the restarted data differ from the checkpointed data", item.to_device)
        return restarted

    def _call(self, key: str, method: str, *arguments: Any, size_mb: int = 0) -> Any:
        return self.subjects[key].process.call(method, *arguments, timeout_s=_limit_s(size_mb))

    @contextmanager
    def _file(self, item: Item) -> Iterator[Path]:
        path = self.places[item.storage].scratch / "checkpoint.bin"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _sample(self, **row: Any) -> None:
        if self.recording:
            self.run.sample(**row, repetition=self.repetition)

    def _lose(self, item: Item, failure: Failure) -> None:
        """Report a failure, and leave out what would fail again."""
        match failure.kind:
            case "storage":
                self._lose_storage(item, failure)
            case "memory":
                subject = self.subjects[failure.device]
                subject.room_mb = item.size_mb - 1
                what = f"{item.size_mb} MB and more on {failure.device}"
                self.run.absent(
                    what, f"device memory too small ({failure})", "close other users of the device"
                )
            case "queue":
                self.queue_lengths = self.queue_lengths[:-1]
                self.run.absent(f"longer queues on {item.device}", str(failure))
            case "data":
                what = f"{describe(item)}, verified"
                remedy = "do not trust this storage or device; check its memory"
                self.run.absent(what, str(failure), remedy, failed=True)
            case "device" | "hung":
                if failure.device in self.subjects:
                    self.subjects.pop(failure.device).close()
                text = f"lost during {describe(item)} ({failure})"
                remedy = "see the driver's messages (dmesg), try again"
                self.run.absent(f"more of {failure.device}", text, remedy, failed=True)

    def _lose_storage(self, item: Item, failure: Failure) -> None:
        place = self.places.get(item.storage)
        if place is None:  # a system call without a folder
            self.run.absent(describe(item), str(failure), "")
            return
        error = OSError(failure.errno, str(failure))
        if is_full(error) and item.size_mb > SMALLEST_MB:
            place.room_mb = item.size_mb - 1
            what = f"{item.size_mb} MB and more in {place.folder}"
        else:
            del self.places[item.storage]
            what = f"more of storage {place.folder}"
        self.run.absent(what, str(failure), storage_remedy(error, Path(place.folder)))


def describe(item: Item) -> str:
    """Describe an item: ``checkpoint and restart, 64 MB, pocl-0, /scratch``."""
    kinds = {
        "trip": "checkpoint and restart",
        "migration": "migration",
        "io": "write and read",
        "copy": "copies",
        "compile": "cold compilation",
        "drain": "draining the queue",
    }
    to = f" to {item.to_device}" if item.kind == "migration" else ""
    size = f"{item.size_mb} MB" if item.size_mb else ""
    device = "" if item.kind == "io" else f"{item.device}{to}"
    return ", ".join(part for part in (kinds[item.kind], size, device, item.storage) if part)


def _limit_s(size_mb: int) -> float:
    """Set the time after which an operation counts as hung."""
    return START_S / 2 + size_mb / _SLOWEST_MB_S
