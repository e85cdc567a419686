"""Small parallel loads of tenbin's own after the NAS Parallel Benchmarks: EP, CG, FT, MG and a sweep like LU.

Each load is written in numpy from the problem's definition (NPB 1, report RNR-94-007), split over any number
of MPI ranks, and verifies its own answer: against NPB's published values where the problem is the same
(``verification: npb``), otherwise by mathematics that the kernel does not share (``verification: own``).

In this process, without MPI::

    kernel = prepare("ep", "S")
    kernel.run()                              # as often as wanted; kernel.operations of work each time
    assert kernel.verified()

The load ``ep`` is the class ``Ep`` of the module ``ep``, and so on. ``ep`` is bound by the core, ``mg`` from
size W on by memory. From the shell: ``python -P -m probes.loads``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from profiles.errors import BadInput

if TYPE_CHECKING:  # numpy only once a load is wanted: its threads are limited by the environment before that
    from probes.loads.common import Comm, Kernel, Work

LOADS = ("ep", "cg", "ft", "mg", "lu")
SINGLE_THREAD = {  # for the environment of a process, before its libraries are loaded
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "VECLIB_MAXIMUM")
}


def sizes(load: str) -> tuple[str, ...]:
    """List the sizes of a load, smallest first: NPB's classes, and smaller or intermediate ones of our own.

    Raises:
        BadInput: no such load.
    """
    if load not in LOADS:
        raise BadInput(f"no load named {load!r}", f"choose from {', '.join(LOADS)}")
    return tuple(_module(load).SIZES)


def most_ranks(load: str, size: str) -> int:
    """Tell the largest number of ranks that a load of this size can be split over."""
    most: int = _module(load).most_ranks(size)
    return most


def work(load: str, size: str) -> Work:
    """Count the operations of one run on one core, and its bytes between processor and memory."""
    module = _module(load)
    counted: Work = module.work(module.SIZES[size])
    return counted


def prepare(load: str, size: str, comm: Comm | None = None) -> Kernel:
    """Set up the data of a load, ready to ``run()`` again and again.

    Args:
        load: one of ``LOADS``.
        size: one of ``sizes(load)``.
        comm: the ranks that share the work; this process alone where absent.

    Raises:
        BadInput: no such load or size, or the size cannot be split over that many ranks.
    """
    check_size(load, size)
    from probes.loads.common import Comm

    module = _module(load)
    kernel: Kernel = getattr(module, load.capitalize())(module.SIZES[size], comm or Comm())
    return kernel


def check_size(load: str, size: str) -> None:
    """Raise BadInput unless there is such a load, and in that size."""
    if size not in sizes(load):
        raise BadInput(f"load {load} has no size {size!r}", f"choose from {', '.join(sizes(load))}")


def _module(load: str) -> Any:
    return import_module(f"probes.loads.{load}")
