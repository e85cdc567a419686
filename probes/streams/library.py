"""The loops of ``streams.c``, compiled for this processor and callable from Python.

Each visit compiles anew, in half a second, because a library kept in a shared home folder may be for another
processor.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from probes import c_library
from probes.streams.plan import CHUNK, ELEMENT

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
