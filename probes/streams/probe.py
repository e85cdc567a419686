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

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probes.run import Run
from probes.streams.library import KERNELS, Cycle, Library
from probes.streams.plan import ELEMENT, LINE, WHAT, CoreGroup, choose_arrays, plan, working_sets
from probes.streams.threads import PinnedThreads
from probes.topology import LogicalCpu, data_caches_kib, free_memory_mb, read_topology
from probes.visits import Point, Visits, say_apart, window_s
from profiles.errors import Unavailable
from profiles.fits.memory import OVERLAP

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
        run.absent(WHAT, f"{settings.sysfs}/devices/system/cpu/online lists none of the CPUs that we may use")
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
            repeat(run, threads, loops(run, library, plan(topology)))
    except Unavailable as error:
        run.absent(WHAT, error.what, error.remedy)
    except OSError as error:
        run.absent(WHAT, str(error), "see whether memory or CPUs are limited: ulimit -a")


def tell_filled(run: Run, threads: PinnedThreads, elements: Mapping[int, int]) -> None:
    """Say if filling the arrays took so long that they are smaller than wanted."""
    share = min(threads.filled[node] / wanted for node, wanted in elements.items())
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
    rows, overlap = threads.stream(kernel, group.cpus, length_s)
    if overlap >= OVERLAP:
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
            overlap=round(overlap, 4),
            placed=placed.get(cpu.node),
        )
