"""Loads from the shell, alone or under mpiexec; one JSON line for every run.

    python -P -m probes.loads cg --class S
    mpiexec -n 4 python -P -m mpi4py -m probes.loads cg:W ft --class S --repeat 5

A line holds load, class, ranks, repetition, time_s (of the kernel, by the slowest rank, without set-up),
verified, verification (npb or own) and mops (million operations a second, as NPB counts them). The exit code
is 1 if an answer was wrong. Every load first runs once unrecorded, to warm up. BLAS and FFT get one thread
a rank.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from probes.loads import LOADS, SINGLE_THREAD, check_size, prepare, sizes
from profiles.errors import UserError

if TYPE_CHECKING:
    from probes.loads.common import Comm, Kernel

LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    started = time.monotonic()
    os.environ.update(SINGLE_THREAD)  # read when numpy is loaded, which the next import does
    from probes.loads.common import Comm, Ranks

    comm = Ranks() if any(name in os.environ for name in LAUNCHED) else Comm()
    try:
        choices = [choice(text, options.size) for text in options.load]
        kernels = list(prepared(choices, comm, options.at_most_s))
    except UserError as error:
        if comm.rank == 0:
            print(error, file=sys.stderr)
        return error.exit_code
    right = True
    order = random.Random(options.seed)  # the same on every rank
    for repetition in passes(comm, options.repeat, options.for_s, started):
        order.shuffle(kernels)
        for load, size, kernel in kernels:
            right &= report(comm, kernel, load=load, size=size, repetition=repetition)
    return 0 if right else 1


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -P -m probes.loads", description=__doc__.split("\n\n")[0])
    options.add_argument("load", nargs="+", help=f"{', '.join(LOADS)}, each with an optional :CLASS")
    options.add_argument("--class", dest="size", default="S", help="S, W or A, or a size of the load's own")
    options.add_argument("--repeat", type=int, default=1, help="least number of runs of each load")
    options.add_argument("--for-s", type=float, default=0.0, help="go on repeating until about then")
    options.add_argument("--at-most-s", type=float, help="take a smaller size where one run takes longer")
    options.add_argument("--seed", type=int, default=1, help="of the order of loads within a repetition")
    return options


def choice(text: str, default: str) -> tuple[str, str]:
    """Split ``cg:W`` into (cg, W)."""
    load, _, size = text.partition(":")
    size = size or default
    check_size(load, size)
    return load, size


def prepared(
    choices: list[tuple[str, str]], comm: Comm, at_most_s: float | None
) -> Iterator[tuple[str, str, Kernel]]:
    """Set up and warm each load, in a smaller size where it is too slow."""
    for load, size in choices:
        ladder = sizes(load)
        step = ladder.index(size)
        kernel = prepare(load, size, comm)
        while timed(kernel, comm) > (at_most_s or float("inf")) and step > 0:
            step -= 1
            kernel = prepare(load, ladder[step], comm)
        yield load, ladder[step], kernel


def passes(comm: Comm, least: int, for_s: float, started: float) -> Iterator[int]:
    """Count passes over all loads: at least ``least``, then while another fits into ``for_s``."""
    repetition = 0
    again = True
    while again:
        begin = time.monotonic()
        yield repetition
        repetition += 1
        now = time.monotonic()
        again = comm.share(repetition < least or now + (now - begin) < started + for_s)


def timed(kernel: Kernel, comm: Comm) -> float:
    """Time one run, by the slowest rank."""
    comm.barrier()
    begin = time.perf_counter()
    kernel.run()
    return comm.largest(time.perf_counter() - begin)


def report(comm: Comm, kernel: Kernel, *, load: str, size: str, repetition: int) -> bool:
    """Run once and print the line; return whether the answer was right."""
    seconds = timed(kernel, comm)
    verified = kernel.verified()
    if comm.rank == 0:
        line = {
            "load": load,
            "class": size,
            "ranks": comm.size,
            "repetition": repetition,
            "time_s": round(seconds, 6),
            "verified": verified,
            "verification": kernel.verification,
            "mops": round(kernel.operations / seconds / 1e6, 3),
        }
        print(json.dumps(line), flush=True)
    return verified


if __name__ == "__main__":
    sys.exit(main())
