"""Costs to checkpoint a job on one OpenCL device and to restart it on the same or another device.

Paper A, eq. 2-5: checkpoint ``C = alpha_C * M + beta_C``, restart ``R = alpha_R * M + beta_R + K``; the
coefficients belong to device and storage, K, the compile time, to the program. Measured here, for every
device and storage folder and over sizes that double:

- each phase by itself: draining the queue (also one with thousands of short kernels, the paper's exception),
  device to host, write and sync, read, host to device, context, program build with a cold and a warm cache;
- checkpoint and restart as a job does them: copies and file overlapped, the restart in a new process;
- whole migrations between every ordered pair of devices, against which predictions can be tested, because
  the fits of checkpoint and restart do not use them.

After every restart a checksum compares the data on the device with the data at the checkpoint; each device
computes the checksum over its own memory.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil

from probes.device_process import START_S, DeviceProcess, Failure, ForkServer
from probes.folders import is_full, scratch, storage_remedy
from probes.opencl import may_have_twin
from probes.run import Run
from probes.visits import Point, Visits
from profiles.errors import Unavailable
from profiles.files.direct_io import free_bytes
from profiles.records import MB, OpenCLDevice

# -- devices: listed, started, told apart from their twins -------------------------------------------------


@dataclass
class CheckpointSubject:
    """A device, and the process that holds data on the device."""

    record: OpenCLDevice
    costs_of: str  # the device whose costs it shares: itself, or its identical twin
    process: DeviceProcess
    room_mb: float
    digests: dict[int, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def measured(self) -> bool:
        """True if the device is measured by itself, and not only as the end of a migration."""
        return self.costs_of == self.key

    def close(self) -> None:
        self.process.close()


def find_devices(run: Run, fork_server: ForkServer) -> list[OpenCLDevice]:
    """List the devices to measure; a lone PoCL device gets a logical twin, so that migration has two ends.

    Raises:
        Unavailable: there is no device.
    """
    with fork_server.fork() as process:
        answer = process.call("devices", timeout_s=START_S)
    for lack in answer["overlooked"]:
        run.absent(f"devices of {lack.driver}", lack.sentence, lack.remedy)
    for platform, keys in answer["duplicates"].items():
        text = f"the platform '{platform}' is there twice ({', '.join(keys)}): one driver installed twice"
        run.absent(f"{keys[-1]} by itself", text, "remove one of the two drivers")
    devices: list[OpenCLDevice] = answer["devices"]
    if not may_have_twin(devices):
        return devices
    driver = devices[0].name.split("-")[0]  # "pthread" up to PoCL 3, "cpu" later
    fork_server.environment["POCL_DEVICES"] = f"{driver} {driver}"
    with fork_server.fork() as process:
        try:
            pair: list[OpenCLDevice] = process.call("devices", timeout_s=START_S)["devices"]
        except Failure:  # this PoCL does not take the setting
            pair = []
    if [device.name for device in pair] == [devices[0].name] * 2:
        return pair
    del fork_server.environment["POCL_DEVICES"]
    return devices


def cache_environment(folder: Path) -> dict[str, str]:
    """Set variables that keep the compiler caches in ``folder`` (created): PoCL, NVIDIA, Mesa, Intel."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "NEO_CACHE_DIR")
    return dict.fromkeys(names, str(folder))


def start_subject(
    run: Run, fork_server: ForkServer, record: OpenCLDevice, earlier: list[CheckpointSubject]
) -> CheckpointSubject | None:
    """Open a session with a device; None, and the reason reported, where driver or compiler fail."""
    key = record.key
    twins = (s.costs_of for s in earlier if s.record.is_like(record))
    costs_of = next(twins, key)
    process = fork_server.fork(key)
    try:
        opened = process.call("open", key, timeout_s=START_S)
    except Failure as failure:
        process.close()
        remedy = "another driver may work: 'tenbin doctor' lists those found"
        run.absent(key, f"{record.name} cannot be used ({failure})", remedy)
        return None
    if costs_of == key:
        run.sample(kind="phase", phase="context", device=key, seconds=opened["context_s"], repetition=0)
        run.sample(kind="compile", cache="cold", device=key, seconds=opened["compile_s"], repetition=0)
    elif "POCL_DEVICES" not in fork_server.environment:
        run.absent(f"costs of {key} by itself", f"it is identical to {costs_of}, whose costs stand for both")
    return CheckpointSubject(record, costs_of, process, _room_mb(record))


def _room_mb(record: OpenCLDevice) -> float:
    """Choose the data on a device so that a second process can restart there, with some left for others."""
    room = record.global_memory_mb / 2.5
    if record.kind == "cpu":
        room = min(room, psutil.virtual_memory().available / MB / 5)
    return room


# -- items of a plan, carried out and recorded; a failure costs only its own item --------------------------


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


# -- the probe: sizes as large as time and room allow, and all items in turns ------------------------------


_MIGRATIONS = 4  # of all pairs, folders and sizes, in one turn
_PILOTS_MB = (4, 16, 64)
_PILOT_SHARE = 0.03  # of the budget: a longer pilot is not followed by a larger one


def measure(run: Run) -> None:
    """Measure as much as ``run.settings.budget_s`` allows, every part once before any is repeated.

    What the lines of every device need is measured even if that takes longer.

    Raises:
        Unavailable: no OpenCL device, or no storage folder that can be used.
    """
    with ExitStack() as stack:
        places = _places(run, stack)
        caches = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenbin-opencl-")))
        fork_server = stack.enter_context(ForkServer(cache_environment(caches / "warm")))
        bench = CheckpointBench(run, fork_server, caches, places)
        fork_server.waiting = bench.say
        _start_subjects(bench)
        per_mb_s, each_s = _choose_sizes(bench)
        _warm_up(bench)
        _repeat(bench, lambda size_mb: per_mb_s * size_mb + each_s)


def _places(run: Run, stack: ExitStack) -> dict[str, Place]:
    """Prepare the folders that can be used, each with a folder inside that ``stack`` removes."""
    places = {}
    for folder in run.settings.storage or (Path(tempfile.gettempdir()),):
        try:
            inside = stack.enter_context(scratch(folder))
        except Unavailable as error:
            run.absent(f"storage {folder}", error.what, error.remedy)
            continue
        room_mb = 0.8 * free_bytes(inside) / MB
        places[str(folder)] = Place(str(folder), inside, room_mb)
    if not places:
        raise Unavailable("no storage folder can be used", "name one that can be written with --storage DIR")
    return places


def _start_subjects(bench: CheckpointBench) -> None:
    for record in find_devices(bench.run, bench.fork_server):
        bench.say(f"starting {record.key}")
        subject = start_subject(bench.run, bench.fork_server, record, list(bench.subjects.values()))
        if subject is not None:
            bench.subjects[record.key] = subject


def _choose_sizes(bench: CheckpointBench) -> tuple[float, float]:
    """Choose sizes for every place, as large as time and room allow, by trips that are not recorded.

    Returns:
        seconds per MB, and seconds, of the slowest trip.
    """
    extent = _extent(bench)
    # Cost of one size in trips: the trips themselves, copies, write and read, a share of the migrations.
    share = _MIGRATIONS / extent.sizes if len(bench.subjects) > 1 else 0
    weight = 1.3 * len(bench.measured()) + 0.6 + share
    slowest = (0.0, 0.0)
    for place in list(bench.places.values()):
        for subject in bench.measured():
            cost = _pilot(bench, Item("trip", subject.key, subject.key, place.folder))
            slowest = max(slowest, cost)
        per_mb_s, each_s = weight * slowest[0], weight * slowest[1]
        room_mb = min(place.room_mb, max((s.room_mb for s in bench.subjects.values()), default=0))
        share_s = 0.9 * bench.run.left_s() / len(bench.places)
        place.sizes = ladder(
            affordable_mb(extent, room_mb, per_mb_s=per_mb_s, each_s=each_s, left_s=share_s), extent.sizes
        )
    return slowest


def _pilot(bench: CheckpointBench, item: Item) -> tuple[float, float]:
    """Estimate seconds per MB and seconds of a trip, from small trips that grow while they are quick."""
    bench.fill_device(bench.subjects[item.device], _PILOTS_MB[-1])
    seconds: dict[int, float] = {}
    for size_mb in _PILOTS_MB:  # twice, because the first in a process or folder may be slow
        seconds[size_mb] = min(_unrecorded(bench, item._replace(size_mb=size_mb)) for _ in range(2))
        if seconds[size_mb] > _PILOT_SHARE * bench.run.settings.budget_s:
            break
    (smallest, first_s), (largest, last_s) = min(seconds.items()), max(seconds.items())
    if smallest == largest:
        return first_s / smallest, 0.0
    per_mb_s = max(last_s - first_s, 0.0) / (largest - smallest)
    return per_mb_s, max(first_s - per_mb_s * smallest, 0.0)


def _unrecorded(bench: CheckpointBench, item: Item) -> float:
    """Time ``item`` in seconds, all included, without a record."""
    began = time.monotonic()
    if bench.possible(item):
        bench.recording = False
        try:
            bench.attempt(item)
        finally:
            bench.recording = True
    return time.monotonic() - began


def _warm_up(bench: CheckpointBench) -> None:
    """Put data of the largest size on every device, and that size once through every folder."""
    largest = max((place.sizes[-1] for place in bench.places.values() if place.sizes), default=0)
    for subject in list(bench.subjects.values()):
        bench.fill_device(subject, largest)
    for place in list(bench.places.values()):
        for subject in bench.measured():
            for size_mb in place.sizes[-1:]:
                _unrecorded(bench, Item("trip", subject.key, subject.key, place.folder, size_mb))


def _repeat(bench: CheckpointBench, cost_s: Callable[[int], float]) -> None:
    """Measure everything in turns, until nothing fits into the time left; ``cost_s``: by size."""
    run, extent = bench.run, _extent(bench)
    all_migrations = [Point(item) for item in _migrations(bench)]
    migrations = iter(Visits(all_migrations, run.rng, possible=bench.possible))
    items = _items(bench) + [Item("migration", size_mb=max(_all_sizes(bench), default=0))] * min(
        _MIGRATIONS, len(all_migrations)
    )
    points = [
        Point(
            item,
            least=extent.whole,
            most=extent.builds if item.kind == "compile" else inf,
            cost_s=cost_s(item.size_mb),
        )
        for item in items
    ]
    for visit in Visits(points, run.rng, run.left_s, possible=bench.possible):
        chosen = _choose(bench, visit.key, migrations)
        if chosen is None:
            points.remove(visit)
        else:
            bench.repetition = visit.count - 1
            bench.attempt(chosen)


def _choose(bench: CheckpointBench, item: Item, migrations: Iterator[Point[Item]]) -> Item | None:
    """Choose the next migration, or the device that writes and reads; None where there is none any more."""
    if item.kind == "migration":
        return next((point.key for point in migrations), None)
    if item.kind == "io":
        return next((item._replace(device=subject.key) for subject in bench.measured()), None)
    return item


def _items(bench: CheckpointBench) -> list[Item]:
    """List every item once, without the migrations."""
    items = []
    for subject in bench.measured():
        key = subject.key
        items += [Item("drain", key), Item("compile", key)]
        items += [Item("copy", key, size_mb=size) for size in _all_sizes(bench)]
    for place in bench.places.values():
        for size in place.sizes:
            items += [Item("trip", s.key, s.key, place.folder, size) for s in bench.measured()]
            items.append(Item("io", storage=place.folder, size_mb=size))
    return items


def _migrations(bench: CheckpointBench) -> list[Item]:
    return [
        Item("migration", start.key, end.key, place.folder, size)
        for start, end in itertools.permutations(bench.subjects.values(), 2)
        for place in bench.places.values()
        for size in place.sizes
    ]


def _all_sizes(bench: CheckpointBench) -> list[int]:
    return sorted({size for place in bench.places.values() for size in place.sizes})


def _extent(bench: CheckpointBench) -> Extent:
    return QUICK if bench.run.settings.quick else FULL
