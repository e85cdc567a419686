"""Memory bandwidth in STREAM's terms, and the latency of an access over the size of the working set.

Bandwidth: read, write (plain, and past the caches), copy, scale, add and triad (McCalpin's STREAM), by one
pinned thread a core in the same window of time, over arrays that the caches cannot hold. Latency: a chase of
pointers over a random cycle with one pointer in each line, on the first core; the working set grows from
4 KiB to four times the last-level cache.

Samples, one row per core and window of time:

- ``kind``: ``bandwidth``, ``latency``, or ``cache`` (a size that sysfs names, not measured)
- ``repetition``: counts within the round; the rows of one window share it
- ``wall_s``, ``thread_cpu_s``: time and CPU time of the window; ``core``: this row's
- ``kernel``, ``cores``, ``cpus``, ``numa`` (bandwidth): loop, how many stream together, those involved, and
  ``local``, or ``"0->0"`` for all cores of node 0 by themselves
- ``bytes`` (bandwidth): as STREAM counts them: read and write 8 an element, copy and scale 16, add and triad
  24. A plain store moves 8 more, because the line is read before it is written back
- ``overlap``, ``placed`` (bandwidth): as for memprobe
- ``working_set_kib``, ``accesses`` (latency): of the cycle, and pointers followed one after the other
- ``level``, ``size_kib`` (cache)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, Self

from probes import c_library
from probes.memory import overlap
from probes.memory_plan import (
    CHUNK,
    ELEMENT,
    LINE,
    STREAMS,
    CoreGroup,
    choose_arrays,
    plan_streams,
    working_sets,
)
from probes.memory_writer import Written, placement
from probes.run import Run
from probes.topology import LogicalCpu, data_caches_kib, free_memory_mb, read_topology
from probes.visits import Point, Visits, say_apart, window_s
from profiles.errors import Unavailable
from profiles.fits.memory import OVERLAP

# -- the loops of ``streams.c``, compiled for this processor -----------------------------------------------
#
# Each visit compiles anew, in half a second, because a library kept in a shared home folder may be for
# another processor.


SOURCE = Path(__file__).with_name("streams.c")
LOOPS = "the loops that stream through memory"
# Without the last two, compilers call memcpy and memset in place of loops; these may go past the caches.
OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-fno-tree-loop-distribute-patterns", "-fno-builtin")

WALKERS = 16
HUGE = 2 * 2**20
APART = 21 * 64  # between the arrays: none begins at the same place of a page as another


class Kernel(NamedTuple):
    """A loop: its number in ``streams.c``, and the bytes of an element as STREAM counts them."""

    number: int
    bytes: int


KERNELS = {
    "read": Kernel(0, 8),
    "write": Kernel(1, 8),
    "write_nt": Kernel(2, 8),
    "copy": Kernel(3, 16),
    "scale": Kernel(4, 16),
    "add": Kernel(5, 24),
    "triad": Kernel(6, 24),
}


class Window(ctypes.Structure):
    """Time (s) and work of one window: ``done`` counts elements, or accesses."""

    _fields_ = (
        ("start_s", ctypes.c_double),
        ("wall_s", ctypes.c_double),
        ("cpu_s", ctypes.c_double),
        ("done", ctypes.c_uint64),
        ("sum", ctypes.c_double),
    )
    start_s: float
    wall_s: float
    cpu_s: float
    done: int
    sum: float


class Arrays:
    """Three arrays of ``elements`` doubles: a, b and c. They have no memory until they are filled.

    Raises:
        OSError: there is not so much memory.
    """

    def __init__(self, elements: int) -> None:
        self.elements = -(-elements // CHUNK) * CHUNK
        self._apart = self.elements * ELEMENT + APART
        size = -(-3 * self._apart // HUGE) * HUGE
        self._mapping = mmap.mmap(-1, size + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        # Never at the very start: the kernel would then count our pages together with a neighbour's.
        skip = HUGE - base % HUGE
        with suppress(OSError):  # a kernel without huge pages: slower, and still right
            self._mapping.madvise(mmap.MADV_HUGEPAGE, skip, size)
        self.address = base + skip

    def starts(self, element: int) -> Any:
        """Give the addresses of one element in a, b and c."""
        return (ctypes.c_void_p * 3)(*(self.address + k * self._apart + element * ELEMENT for k in range(3)))

    @property
    def lines(self) -> int:
        """The start of array c, where the pointers of a chase are kept."""
        return self.address + 2 * self._apart


class Times(NamedTuple):
    """Times of a window on the monotonic clock: when to begin, to count, and to end."""

    begin_s: float
    count_s: float
    end_s: float


class Part:
    """``elements`` (a multiple of ``CHUNK``) of arrays from ``start`` on; ``at`` is the next of them."""

    def __init__(self, arrays: Arrays, start: int, elements: int, at: int = 0) -> None:
        self.arrays, self.start, self.elements = arrays, start, elements
        self.at = ctypes.c_size_t(at)


class Library:
    """The compiled loops. Every call leaves the interpreter free for other threads.

    Raises:
        Unavailable: there is no C compiler, or it fails.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="tenbin-streams-") as folder:
            built = c_library.build(
                SOURCE, Path(folder), OPTIONS, what=LOOPS, remedy=c_library.HEADERS_REMEDY
            )
            self._c = ctypes.CDLL(str(built))
        self._c.grow.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]

    @property
    def has_write_nt(self) -> bool:
        """True where processor and compiler have stores past the caches."""
        return bool(self._c.has_past_caches())

    def fill(self, arrays: Arrays, start: int, elements: int) -> None:
        """Write their first values into ``elements`` elements from ``start`` on, a multiple of 97 x 89."""
        self._c.fill(arrays.starts(start), ctypes.c_size_t(elements))

    def stream(self, kernel: str, part: Part, scalar: float, times_s: Times) -> Window:
        """Run a kernel over a part of the arrays, round and round; ``part.at`` moves on."""
        window = Window()
        self._c.stream(
            KERNELS[kernel].number,
            part.arrays.starts(part.start),
            ctypes.c_size_t(part.elements),
            ctypes.c_size_t(CHUNK),
            ctypes.byref(part.at),
            ctypes.c_double(scalar),
            (ctypes.c_double * 3)(*times_s),
            ctypes.byref(window),
        )
        return window


class Cycle:
    """A random cycle of pointers, one in each line from ``address`` on, that grows with the working set."""

    PLACED_ANEW = 2**17  # lines; on larger cycles the walkers' distances stay nearly equal by themselves

    def __init__(self, library: Library, address: int, seed: int) -> None:
        self._c = library._c
        self._address = ctypes.c_void_p(address)
        self._random = ctypes.c_uint64(seed or 1)
        self._walkers = (ctypes.c_void_p * WALKERS)()
        self._at = ctypes.c_void_p(address)
        self.lines = 0

    def grow(self, lines: int) -> None:
        """Grow to ``lines`` lines, and fill the caches as a long chase would."""
        self._c.grow(self._address, self.lines, lines, ctypes.byref(self._random))
        self.lines = lines
        if lines <= self.PLACED_ANEW or not self._walkers[0]:
            self._c.place(self._address, ctypes.c_uint64(lines), self._walkers)
        steps = int(1.05 * lines / WALKERS) + 1
        self._c.warm(ctypes.c_uint64(steps), self._walkers)
        self._at = ctypes.c_void_p(self._walkers[0])

    def chase(self, seconds: float) -> Window:
        """Follow the pointers for ``seconds``, from where the last chase ended."""
        window = Window()
        self._c.chase(ctypes.byref(self._at), ctypes.c_double(seconds), ctypes.byref(window))
        return window


# -- threads pinned to one core each, which run the loops in the same window of time -----------------------


WARM_S = 0.003
LEAST_FILLED = 0.5  # of the arrays, however late: twice the caches
PIECE = 97 * 89 * 256  # elements filled in one call, 18 MB of each array: Ctrl-C waits no longer


class PinnedThreads:
    """A thread for each core; the cores of a NUMA node share three arrays in its memory (first touch).

    A context: on leaving, every thread has ended and the memory is free.
    """

    def __init__(self, library: Library, cpus: Sequence[LogicalCpu]) -> None:
        self.library = library
        self._cpus = cpus
        self._threads = {cpu.index: ThreadPoolExecutor(1) for cpu in cpus}
        self._ending = Event()
        self._windows = 0
        self._at: dict[int, int] = {}
        self.arrays: dict[int, Arrays] = {}
        self.filled: dict[int, int] = {}  # elements of each array of a node that may be used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
        self.arrays.clear()

    def prepare(self, elements: Mapping[int, int], within_s: float) -> None:
        """Pin the threads, and have them fill the arrays of their nodes: half at least, all if ``within_s``.

        Args:
            elements: of each array, by NUMA node.

        Raises:
            OSError: a core cannot be used, or there is not so much memory.
        """
        for cpu in self._cpus:
            self._do(cpu.index, _pin, cpu.index).result()
        self.arrays = {node: Arrays(n) for node, n in elements.items()}
        until_s = time.monotonic() + within_s
        fills: dict[int, list[Future[int]]] = {node: [] for node in elements}
        for node in elements:
            cores = [cpu.index for cpu in self._cpus if cpu.node == node]
            for first, core in enumerate(cores):
                fills[node].append(self._do(core, self._fill, node, first, len(cores), until_s))
        for node, parts in fills.items():
            pieces = min(part.result() for part in parts)
            whole = min(pieces * PIECE, self.arrays[node].elements)
            self.filled[node] = whole // CHUNK * CHUNK

    def _fill(self, node: int, first: int, step: int, until_s: float) -> int:
        """Fill every ``step``-th piece from ``first`` on; return the first that was left out as late."""
        arrays = self.arrays[node]
        pieces = -(-arrays.elements // PIECE)
        for piece in range(first, pieces, step):
            if self._ending.is_set() or (time.monotonic() > until_s and piece > LEAST_FILLED * pieces):
                return piece
            start = piece * PIECE
            self.library.fill(arrays, start, min(PIECE, arrays.elements - start))
        return pieces

    def stream(self, kernel: str, cpus: Sequence[LogicalCpu], seconds: float) -> tuple[list[Written], float]:
        """Run ``kernel`` on ``cpus`` in one window of ``seconds``, each over its part of its node's arrays.

        Returns:
            Each core's window, with bytes as STREAM counts them, and the share of it in which all worked.
        """
        self._windows += 1
        # Some processors drop writes of zeros, or of what is there already.
        scalar = 1.0 + self._windows % 1000
        parts = self._parts(cpus)
        begin_s = time.monotonic() + 0.001 + 0.0002 * len(cpus)
        times_s = Times(begin_s, begin_s + WARM_S, begin_s + WARM_S + seconds)
        orders = [
            self._do(cpu.index, self.library.stream, kernel, part, scalar, times_s)
            for cpu, part in zip(cpus, parts, strict=True)
        ]
        done = [_written(order.result(), KERNELS[kernel].bytes) for order in orders]
        for cpu, part in zip(cpus, parts, strict=True):
            self._at[cpu.node] = part.start + part.at.value
        return done, overlap(done, done)

    def _parts(self, cpus: Sequence[LogicalCpu]) -> list[Part]:
        """Share the arrays of each node among its cores.

        Every window goes on where the last one ended, so that it meets what was used the longest ago.
        """
        parts = []
        for i, cpu in enumerate(cpus):
            mine = [k for k, other in enumerate(cpus) if other.node == cpu.node]
            elements = self.filled[cpu.node] // len(mine) // CHUNK * CHUNK
            at = self._at.get(cpu.node, 0) % elements
            parts.append(Part(self.arrays[cpu.node], mine.index(i) * elements, elements, at))
        return parts

    def chase(self, core: int, lines: int, cycle: Cycle, windows_s: Sequence[float]) -> Iterator[Window]:
        """Let the cycle grow to ``lines``, then chase for each of ``windows_s``, the first uncounted."""
        self._do(core, cycle.grow, lines).result()
        self.follow(core, cycle, windows_s[0])
        for seconds in windows_s[1:]:
            yield self.follow(core, cycle, seconds)

    def follow(self, core: int, cycle: Cycle, seconds: float) -> Window:
        """Chase for ``seconds``, from where the last chase of that cycle ended."""
        window: Window = self._do(core, cycle.chase, seconds).result()
        return window

    def placed(self, node: int, procfs: Path = Path("/proc")) -> float | None:
        """Compute the share of a node's arrays that lies on it; None where the kernel does not tell."""
        with suppress(OSError):
            lines = (procfs / "self/numa_maps").read_text().splitlines()
            if pages := placement(lines, self.arrays[node].address):
                return pages.get(node, 0) / sum(pages.values())
        return None

    def _do(self, core: int, function: Callable[..., Any], *arguments: Any, **more: Any) -> Future[Any]:
        return self._threads[core].submit(function, *arguments, **more)


def _pin(core: int) -> None:
    """Keep the calling thread, not the process, on ``core``."""
    os.sched_setaffinity(0, {core})


def _written(window: Window, element_bytes: int) -> Written:
    return Written(window.start_s, window.wall_s, window.cpu_s, window.done * element_bytes)


# -- the probe: first the latency, then every loop on every group of cores in turns ------------------------


LEAST_TRIES = 2
MOST_IN_VAIN = 4  # tries of a loop whose cores do not stream at the same time
PASSES = 5  # over all points, at least, where time suffices
WINDOW_S = (0.012, 0.050)
OVERHEAD_S = 0.006  # of one window: orders, warm-up
CHASES_S = (0.0005, *[0.0012] * 5)  # the first is uncounted
PER_OCTAVE, PER_OCTAVE_QUICK = 3, 2


class Loop(NamedTuple):
    """A kernel on some cores."""

    kernel: str
    group: CoreGroup


def measure(run: Run) -> None:
    """Sweep over the working sets, then stream in one random order after the other until the time is up."""
    settings = run.settings
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    if not topology.cpus:
        run.absent(
            STREAMS, f"{settings.sysfs}/devices/system/cpu/online lists none of the CPUs that we may use"
        )
        return
    caches_kib = data_caches_kib(settings.sysfs, topology.cores[0].index)
    free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
    elements, amiss = choose_arrays(topology, free_mb, caches_kib)
    for absent in amiss:
        run.absent(*absent)
    if not elements:
        return
    for level, size_kib in caches_kib.items():
        run.sample(kind="cache", level=level, size_kib=size_kib)
    try:
        run.progress("compiling the loops")
        library = Library()
        with PinnedThreads(library, topology.cores) as threads:
            run.progress("filling the arrays")
            threads.prepare(elements, within_s=run.settings.budget_s)
            tell_filled(run, threads, elements)
            sweep(run, threads, library, topology.cores[0])
            repeat(run, threads, loops(run, library, plan_streams(topology)))
    except Unavailable as error:
        run.absent(STREAMS, error.what, error.remedy)
    except OSError as error:
        run.absent(STREAMS, str(error), "see whether memory or CPUs are limited: ulimit -a")


def tell_filled(run: Run, threads: PinnedThreads, elements: Mapping[int, int]) -> None:
    """Say if filling the arrays took so long that they are smaller than wanted."""
    share = min(threads.filled[node] / planned for node, planned in elements.items())
    if share < 1:
        reason = f"the first use of memory is so slow here that {share:.0%} of the arrays were filled in time"
        effect = "the cache holds part of the rest and flatters"
        remedy = "measure again: a virtual machine may get its memory late from its host"
        run.absent("streams beyond the cache by STREAM's rule", f"{reason}; {effect}", remedy)


def sweep(run: Run, threads: PinnedThreads, library: Library, first: LogicalCpu) -> None:
    """Measure the latency on the first core, from the smallest working set to one as large as an array."""
    core = first.index
    cycle = Cycle(library, threads.arrays[first.node].lines, int(run.rng.integers(1, 2**63)))
    per_octave = PER_OCTAVE_QUICK if run.settings.quick else PER_OCTAVE
    for lines in working_sets(threads.filled[first.node] * ELEMENT, per_octave):
        run.progress(f"latency of {lines * LINE / 1024:.0f} KiB")
        for window in threads.chase(core, lines, cycle, CHASES_S):
            run.sample(
                kind="latency",
                repetition=1,
                core=core,
                working_set_kib=lines * LINE / 1024,
                accesses=window.done,
                wall_s=window.wall_s,
                thread_cpu_s=window.cpu_s,
            )


def loops(run: Run, library: Library, groups: Sequence[CoreGroup]) -> list[Loop]:
    """List every kernel on every group of cores, without those that cannot be had here."""
    kernels = [name for name in KERNELS if name != "write_nt" or library.has_write_nt]
    if len(kernels) < len(KERNELS):
        reason = "the compiler has no stores past the caches for this processor"
        run.absent("bandwidth of write_nt", reason, "clang has them: apt-get install clang")
    return [Loop(kernel, group) for group in groups for kernel in kernels]


def repeat(run: Run, threads: PinnedThreads, all_loops: Sequence[Loop]) -> None:
    """Visit all loops until the time is up."""
    length_s = window_s(run.left_s() / PASSES / len(all_loops), OVERHEAD_S, WINDOW_S)
    nodes = list(threads.arrays)
    placed = {node: threads.placed(node) for node in nodes} if len(nodes) > 1 else {}
    points = [
        Point(loop, least=LEAST_TRIES, least_in_vain=MOST_IN_VAIN, cost_s=length_s + OVERHEAD_S)
        for loop in all_loops
    ]
    for visit in Visits(points, run.rng, run.left_s):
        observe(run, threads, visit, length_s=length_s, placed=placed)
    for point in points:
        if not point.values:
            kernel, group = point.key
            say_apart(run, f"bandwidth of {kernel} {group.title}", point.count, "stream")


def observe(
    run: Run,
    threads: PinnedThreads,
    visit: Point[Loop],
    *,
    length_s: float,
    placed: Mapping[int, float | None],
) -> None:
    """Repeat one loop: a row for each core."""
    kernel, group = visit.key
    run.progress(f"{kernel} {group.title}")
    rows, together = threads.stream(kernel, group.cpus, length_s)
    if together >= OVERLAP:
        visit.values.append(sum(row.bytes / row.wall_s for row in rows))
    for cpu, row in zip(group.cpus, rows, strict=True):
        run.sample(
            **group.labels,
            kernel=kernel,
            repetition=visit.count,
            core=cpu.index,
            wall_s=row.wall_s,
            thread_cpu_s=row.thread_cpu_s,
            bytes=row.bytes,
            overlap=round(together, 4),
            placed=placed.get(cpu.node),
        )
