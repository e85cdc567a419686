"""Small parallel loads of tenbin's own after the NAS Parallel Benchmarks: EP, CG, FT, MG and a sweep like LU.

Each is written in numpy from the problem's definition (NPB 1, report RNR-94-007), split over any number
of MPI ranks, and verifies its own answer: against NPB's published values where the problem is the same
(``verification: npb``), otherwise by mathematics that the kernel does not share (``verification: own``).

Use one in this process, without MPI::

    kernel = prepare("ep", "S")
    kernel.run()                              # as often as wanted; kernel.operations of work each time
    assert kernel.verified()

``ep`` is bound by the core, ``mg`` from size W on by memory. From the shell: ``python -P -m probes.loads``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from profiles.errors import BadInput

if TYPE_CHECKING:  # numpy only once a load is wanted: its threads are limited by the environment before that
    from probes.loads.common import Comm, Kernel

LOADS = ("ep", "cg", "ft", "mg", "lu")


def sizes(load: str) -> tuple[str, ...]:
    """The sizes of a load, smallest first: NPB's classes, and smaller or intermediate ones of our own.

    Raises:
        BadInput: no such load.
    """
    if load not in LOADS:
        raise BadInput(f"no load named {load!r}", f"choose from {', '.join(LOADS)}")
    return tuple(import_module(f"probes.loads.{load}").SIZES)


def most_ranks(load: str, size: str) -> int:
    """The largest number of ranks that a load of this size can be split over."""
    most: int = import_module(f"probes.loads.{load}").most_ranks(size)
    return most


def prepare(load: str, size: str, comm: Comm | None = None) -> Kernel:
    """A load with its data set up, ready to ``run()`` again and again.

    Args:
        load: one of ``LOADS``.
        size: one of ``sizes(load)``.
        comm: the ranks that share the work; this process alone where absent.

    Raises:
        BadInput: no such load or size, or the size cannot be split over that many ranks.
    """
    if size not in sizes(load):
        raise BadInput(f"load {load} has no size {size!r}", f"choose from {', '.join(sizes(load))}")
    from probes.loads.common import Alone

    kernel: Kernel = import_module(f"probes.loads.{load}").prepare(size, comm or Alone())
    return kernel
