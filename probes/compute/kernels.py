"""Compiled loops of ``kernels.c``: multiply-adds in vector registers, and a chain of additions."""

from __future__ import annotations

import ctypes
import platform
import statistics
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probes import c_library
from profiles.errors import Unavailable

SOURCE = Path(__file__).with_name("kernels.c")
WHAT = "the loops of arithmetic"
NATIVE = {"aarch64": "-mcpu=native", "ppc64le": "-mcpu=native"}  # elsewhere -march=native
ADD_TAKES_A_CYCLE = ("x86_64", "aarch64")
SHORT, LONG, PAIRS = 1_000, 50_000, 101  # of chains that tell what reading the time takes
TYPES = {"double": np.float64, "single": np.float32}


def build(folder: Path) -> Path:
    """Compile the loops into ``folder``, for the processor of this machine.

    Raises:
        Unavailable: there is no C compiler, the compiler fails, or the library cannot be loaded.
    """
    options = ["-O3", "-ffp-contract=fast"]
    native = NATIVE.get(platform.machine(), "-march=native")
    try:
        library = c_library.build(SOURCE, folder, [*options, native], what=WHAT, remedy=c_library.REMEDY)
    except Unavailable:  # a compiler that does not know this processor
        library = c_library.build(SOURCE, folder, options, what=WHAT, remedy=c_library.REMEDY)
    try:
        Kernels(library)
    except OSError as error:
        remedy = "set TMPDIR to a folder from which programs may run"
        raise Unavailable(f"{WHAT} cannot be loaded: {error}", remedy) from error
    return library


class Kernels:
    """The loops, loaded from ``library``.

    Attributes:
        vector_bits: width of the vectors.
        fused: whether a multiply-add is one instruction.

    Raises:
        OSError: the library cannot be loaded.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        count, pointer = ctypes.c_uint64, ctypes.c_void_p
        self._loops = {"double": loaded.multiply_add_double, "single": loaded.multiply_add_single}
        for precision, number in (("double", ctypes.c_double), ("single", ctypes.c_float)):
            self._loops[precision].argtypes = (count, number, number, pointer)
            self._loops[precision].restype = None
        self._add_chain = loaded.add_chain
        self._add_chain.argtypes = (count, count, count, ctypes.POINTER(ctypes.c_double))
        self._add_chain.restype = count
        self._bytes = ctypes.c_int.in_dll(loaded, "vector_bytes").value
        self._accumulators = ctypes.c_int.in_dll(loaded, "accumulators").value
        self._adds_a_round = ctypes.c_int.in_dll(loaded, "adds_a_round").value
        self.vector_bits = 8 * self._bytes
        self.fused = bool(ctypes.c_int.in_dll(loaded, "fused").value)
        self._reading_s = 0.0
        self._reading_s = self._time_readings()

    def _time_readings(self) -> float:
        """Measure the time by which reading the time lengthens a short chain, beside long ones.

        Reading by itself would take longer, because a core reads the time while it still adds.
        """
        pairs = [(self.add_chain(SHORT), self.add_chain(LONG)) for _ in range(PAIRS)]
        short_s, long_s = (statistics.median(pair[i][2] for pair in pairs) for i in (0, 1))
        return max(short_s - long_s * pairs[0][0][1] / pairs[0][1][1], 0.0)

    def lanes(self, precision: str) -> int:
        """Count the numbers that a vector loop works on."""
        return self._accumulators * self._bytes // np.dtype(TYPES[precision]).itemsize

    def multiply_add(self, lanes: NDArray[np.floating], rounds: int, *, factor: float, term: float) -> int:
        """Compute ``x = x * factor + term`` for each x of ``lanes``, ``rounds`` times.

        Args:
            lanes: as many as ``lanes`` counts, float64 or float32; changed in place.

        Returns:
            The number of floating point operations: two for each x and round.
        """
        precision = next(name for name, kind in TYPES.items() if lanes.dtype == kind)
        assert lanes.flags.c_contiguous and lanes.size == self.lanes(precision)
        self._loops[precision](rounds, factor, term, lanes.ctypes.data)
        return 2 * rounds * lanes.size

    def add_chain(self, least: int, start: int = 0, step: int = 1) -> tuple[int, int, float]:
        """Add ``step`` to ``start`` at least ``least`` times, each addition after the one before.

        Returns:
            The sum modulo 2**64, the number of additions, and the seconds that they took, without the reading
            of the time.
        """
        rounds = -(-least // self._adds_a_round)
        seconds = ctypes.c_double()
        total = int(self._add_chain(rounds, start, step, ctypes.byref(seconds)))
        return total, rounds * self._adds_a_round, seconds.value - self._reading_s
