"""The making of a job profile: cores, memory and hosts for its runs, and the clock to predict by.

``agent.job_profile.session`` has the runs themselves. A profile may continue an earlier one: the same
measurement at another time, pooled. Machines change from hour to hour, and one session cannot tell how much.
The intervals of several contain that change, and their medians average over it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version

import pandas as pd

from agent.inventory import read_machine
from agent.job_profile import caps, scaling
from agent.job_profile.caps import UnderCapsOrder
from agent.job_profile.scaling import ScalingOrder, ask, check_counts
from agent.job_profile.session import (
    LONGEST_S,
    DeviceWatch,
    JobOrder,
    JobProgress,
    Layout,
    Listener,
    MpiTime,
    Network,
    Session,
    lay_out,
    mpi_times,
)
from agent.job_profile.trial import CommandFailed, as_ranks, plain
from agent.measured_node import Watch, node_lock
from agent.node_profile.identity import node_kind
from probes.memory import WriterPool
from probes.memory_plan import NotMeasured, Spot, choose_area
from probes.mpi.runner import find_mpi
from probes.topology import Topology, free_memory_mb, read_topology, usable_cores
from profiles.errors import BadInput, Unavailable, UserError
from profiles.files.store import id_at
from profiles.fits.job import Fitted, fit, fit_caps
from profiles.jobs import Clock, JobProfile
from profiles.quantities import counted
from profiles.records import Absent, Condition, Settings

LEAST_AREA_MB = 8.0
BUSY = 0.05  # share of all CPU time by others from which on wall times mean little


def make_job_profile(
    order: JobOrder, listener: Listener = lambda progress: None
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """Measure the job; Ctrl-C ends it early with what was measured, if that is a repetition at least.

    Returns:
        The profile, and the samples: tables ``runs`` and ``windows`` (see ``profiles.fits.job``).

    Raises:
        CommandFailed: the command fails, ends too soon, or does not end.
        BadInput: it needs more cores than there are, with one for the probe.
        Unavailable: this machine has no room for a probe.
        Busy: another profile is measuring this node.
    """
    settings = Settings(quick=order.quick, seed=order.seed)
    topology = read_topology(settings.sysfs, os.sched_getaffinity(0))
    mpi = find_mpi() if order.mpi else None
    layout = lay_out(order.hosts, order.cores, mpi) if mpi and order.hosts else None
    job, probes = _choose_spots(order, layout, topology)
    cores = layout.job_cores if layout else tuple(spot.core for spot in job)
    start = plain(order.command, cores)
    if mpi:
        start = as_ranks(mpi, order.command, cores, limit_s=order.limit_s, hosts=order.hosts)
    created, began = datetime.now(UTC), time.monotonic()
    with node_lock(), ExitStack() as stack:
        inventory = read_machine(settings)
        free_mb = free_memory_mb(settings.sysfs, settings.procfs) / 2
        area_mb, amiss = choose_areas(topology, job, probes, free_mb) if probes else (0.0, [])
        network = Network(mpi, layout) if mpi and layout else None
        if network:
            network.check()
        absent = [Absent(probe="job", what=m.what, reason=m.reason) for m in amiss]
        mpi_time = _counting(order, stack, absent)
        watch = Watch.begin("job", 0)
        with WriterPool(area_mb, topology.line_bytes) as pool, DeviceWatch() as devices:
            session = Session(
                order=order,
                start=start,
                pool=pool,
                devices=devices,
                job=job,
                probes=probes,
                listener=listener,
                network=network,
                mpi_time=mpi_time,
            )
            session.absent += absent
            session.run()
        condition = watch.ended()
    runs, windows = pd.DataFrame(session.runs), pd.DataFrame(session.windows)
    fitted = fit(runs, windows)
    if network and layout:
        fitted = _with_network(fitted, emulated=layout.one_kernel, note="; ".join(network.doubts))
    clock, doubt = choose_clock(condition, fitted)
    profile = JobProfile(
        name=order.name,
        id=id_at(created),
        node=inventory.hostname,
        kind=node_kind(inventory),
        created=created,
        duration_s=round(time.monotonic() - began, 1),
        tenbin_version=version("tenbin"),
        command=order.command,
        folder=order.folder,
        cpus=tuple(spot.core for spot in job),
        probe_cpus=tuple(spot.core for spot in probes),
        quick=order.quick,
        seed=order.seed,
        repetitions=len(set(runs["repetition"])),
        clock=clock,
        **fitted._asdict(),
        mpi=order.mpi,
        ranks=order.cores if order.mpi else None,
        hosts=order.hosts,
        condition=condition,
        absent=(*session.absent, *_left_out(order, bool(probes))),
        interrupted=session.interrupted,
        note="; ".join(filter(None, dict.fromkeys((*session.notes, session.built_anew(fitted), doubt)))),
    )
    return profile, {"runs": runs, "windows": windows}


def _choose_spots(
    order: JobOrder, layout: Layout | None, topology: Topology
) -> tuple[list[Spot], list[Spot]]:
    """Choose the cores of the job on a host, and those of memprobe; none where this machine is no host."""
    if layout is None:
        return choose_cpus(topology, order.cores)
    if layout.here:
        return choose_cpus(topology, layout.per_host)
    return [Spot(core, 0, core) for core in layout.job_cores[: layout.per_host]], []


def _with_network(fitted: Fitted, *, emulated: bool, note: str) -> Fitted:
    """Complete the network half, if there is one, by what its samples do not tell."""
    if fitted.network is None:
        return fitted
    half = fitted.network.model_copy(update={"emulated": emulated, "note": note})
    return fitted._replace(network=half)


def _counting(order: JobOrder, stack: ExitStack, absent: list[Absent]) -> MpiTime | None:
    """Prepare to count the time inside MPI; note if that is impossible for a job of MPI."""
    try:
        return stack.enter_context(mpi_times(order.hosts))
    except Unavailable as error:
        if order.mpi:
            what = "share of time inside MPI"
            absent.append(Absent(probe="job", what=what, reason=error.what, remedy=error.remedy))
    return None


def _left_out(order: JobOrder, beside_memory: bool) -> Iterator[Absent]:
    if not order.hosts:
        yield Absent(
            probe="job",
            what="pressure on the network (comprobe)",
            reason="on one host there is no network between ranks",
            remedy="name the hosts of an MPI job: --hosts a,b",
        )
    if not beside_memory:
        yield Absent(
            probe="job",
            what="pressure on memory (memprobe)",
            reason="this machine is none of the hosts",
            remedy="measure from one of them",
        )


def choose_areas(
    topology: Topology, job: Sequence[Spot], probes: Sequence[Spot], free_mb: float
) -> tuple[float, list[NotMeasured]]:
    """Choose the size of each writer's area in MB; return it and what cannot be measured.

    Writers that share a last-level cache need 4 times its size together. With that much each, as in the
    node's probe, many cores would need more memory than there is.

    Raises:
        Unavailable: the areas do not fit into ``free_mb``.
    """
    area_mb, amiss = choose_area(topology, free_mb)
    cache_of = {cpu.index: cpu.llc for cpu in topology.cpus}
    together = [Counter(cache_of[spot.core] for spot in side) for side in (job, probes)]
    each_mb = max(area_mb / min(min(side.values()) for side in together), LEAST_AREA_MB)
    needed_mb = each_mb * (len(job) + len(probes))
    remedy = "free some memory, or give the job fewer cores"
    if not area_mb:
        raise Unavailable(f"no memory for memprobe ({amiss[-1].reason})", remedy)
    if needed_mb > free_mb:
        what = f"memprobe needs {needed_mb:.0f} MB for {len(job) + len(probes)} writers"
        raise Unavailable(f"{what}, {free_mb:.0f} MB can be taken", remedy)
    return each_mb, amiss


def choose_clock(condition: Condition, fitted: Fitted) -> tuple[Clock, str]:
    """Choose the clock to predict by; say why if it is not the wall's, because others used the cores.

    A job over hosts goes by the wall's clock, because ranks that wait for messages sleep or poll. If the
    hosts are one machine, the kernel's work for messages looks like work of others.
    """
    network = fitted.network
    busy = condition.steal_ratio + (0.0 if network and network.emulated else condition.others_ratio)
    if busy <= BUSY:
        return "wall", ""
    doubt = f"others took {busy:.0%} of this machine's CPU time meanwhile: measure while nothing else runs"
    if network or not any(curve.clock == "cpu" for curve in fitted.sensitivity):
        return "wall", doubt
    return "cpu", f"{doubt}; until then predictions go by CPU time"


def choose_cpus(topology: Topology, cores: int) -> tuple[list[Spot], list[Spot]]:
    """Choose a CPU of each core: the first for the job, as many next to them for memprobe, or those left.

    Raises:
        BadInput: no core is left for memprobe. Unavailable: there is one core only.
    """
    usable = [Spot(cpu.index, cpu.node, cpu.index) for cpu in topology.cores]
    if len(usable) < 2:
        raise Unavailable("this process may use one core only", "a probe needs one beside the job")
    if cores >= len(usable):
        raise BadInput(
            f"-n {cores}: this process may use {counted(len(usable), 'core')}, "
            "and memprobe needs one beside the job",
            f"give it {len(usable) - 1} at most",
        )
    return usable[:cores], usable[cores : 2 * cores]


POOLED = ("runs", "windows")


def same_again(job: JobProfile, limit_s: float, budget_s: float | None) -> JobOrder:
    """Return the order that continues a job profile, with another random seed."""
    return JobOrder(
        name=job.name,
        command=job.command,
        folder=job.folder,
        cores=job.ranks or job.cores,
        quick=job.quick,
        limit_s=limit_s,
        budget_s=budget_s,
        seed=job.seed + 1,
        mpi=job.mpi,
        hosts=job.hosts,
    )


def check_samples(job: JobProfile, samples: Mapping[str, pd.DataFrame]) -> None:
    """See that a job profile can be gone on with.

    Raises:
        BadInput: its samples are not there.
    """
    missing = [table for table in POOLED if table not in samples]
    if missing:
        raise BadInput(
            f"job profile {job.name}@{job.id} has no table of {' and '.join(missing)} to go on from",
            f"measure it anew: tenbin program profile {job.name} -- CMD...",
        )


def pooled(
    later: JobProfile,
    samples: Mapping[str, pd.DataFrame],
    earlier: JobProfile,
    earlier_samples: Mapping[str, pd.DataFrame],
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """Fit the later profile to the samples of both sessions, and keep scaling and caps.

    Args:
        samples, earlier_samples: tables ``runs`` and ``windows`` (see ``profiles.fits.job``), and others.
    """
    before = int(earlier_samples["runs"]["repetition"].max())
    tables = {
        name: pd.concat(
            [
                earlier_samples[name],
                samples[name].assign(repetition=lambda rows: rows["repetition"] + before),
            ],
            ignore_index=True,
        )
        for name in POOLED
    }
    fitted = fit(tables["runs"], tables["windows"])
    if later.network:
        fitted = _with_network(fitted, emulated=later.network.emulated, note=later.network.note)
    condition = _mean_condition(earlier.condition, later.condition)
    made = later.model_copy(
        update={
            **fitted._asdict(),
            "clock": choose_clock(condition, fitted)[0],
            "condition": condition,
            "sessions": earlier.sessions + later.sessions,
            "repetitions": int(tables["runs"]["repetition"].nunique()),
            "duration_s": round(earlier.duration_s + later.duration_s, 1),
            "scaling": later.scaling or earlier.scaling,
            "caps": later.caps or earlier.caps,
            "emulated": earlier.emulated or later.emulated,
            "note": "; ".join(filter(None, dict.fromkeys((earlier.note, later.note)))),
        }
    )
    return made, {**earlier_samples, **samples, **tables}


def _mean_condition(earlier: Condition, later: Condition) -> Condition:
    """Return the mean condition of both sessions, weighted by their lengths."""
    whole_s = earlier.duration_s + later.duration_s
    weight = later.duration_s / whole_s if whole_s > 0 else 1.0

    def mean(name: str) -> float:
        before, after = getattr(earlier, name), getattr(later, name)
        return round(float(before + weight * (after - before)), 6)

    return later.model_copy(
        update={
            "duration_s": round(whole_s, 3),
            **{name: mean(name) for name in ("reference_s", "steal_ratio", "others_ratio")},
        }
    )


# -- parts that are measured on request: speed-up over cores, run time under power caps -------------------

Made = tuple[JobProfile, dict[str, pd.DataFrame]]


def plan_scaling(counts: tuple[int, ...], order: JobOrder) -> ScalingOrder:
    """Plan the runs over cores, here or (as ranks) over hosts; raise BadInput if there are too few cores."""
    there, cpus = None, usable_cores()
    if order.hosts:
        there, cpus = ask(order.hosts), ()
        counts = check_counts(counts, there.most, "these hosts have, as many on each,")
    else:
        counts = check_counts(counts, len(cpus))
    return ScalingOrder(
        command=order.command,
        folder=order.folder,
        counts=counts,
        cpus=cpus,
        limit_s=order.limit_s,
        budget_s=budget_s(order),
        quick=order.quick,
        seed=order.seed,
        mpi=order.mpi,
        hosts=there,
    )


def budget_s(order: JobOrder) -> float:
    """Return the time in which repetitions beyond the least number must end."""
    return LONGEST_S if order.budget_s is None else order.budget_s


def measure(order: JobOrder, plan: ScalingOrder | None, listener: Listener) -> Made:
    """Measure a program, and its speed-up over cores if that is planned."""
    made = make_job_profile(order, listener)
    if plan is None or made[0].interrupted:
        return made

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = scaling.measure(plan, _teller(listener))
        return scaling.fit(table, plan.hosts), table, doubt

    what = f"scaling over {', '.join(map(str, plan.counts))} cores"
    return _add_part(made, "scaling", what, runs, failures=(CommandFailed,))


def add_caps(made: Made, order: JobOrder, emulated: str, listener: Listener) -> Made:
    """Add run time and energy under power caps."""
    profile = made[0]
    times = order.limit_s, budget_s(order), profile.quick, profile.seed, profile.mpi
    under_caps = UnderCapsOrder(profile.command, profile.folder, profile.cpus, *times, emulated=emulated)

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = caps.measure(under_caps, _teller(listener, "caps, "))
        return fit_caps(table, emulated, doubt), table, ""

    what = "run time and energy under power caps"
    return _add_part(made, "caps", what, runs, failures=(CommandFailed, Unavailable))


def _teller(listener: Listener, of: str = "") -> Callable[[str], None]:
    return lambda doing: listener(JobProgress(f"{of}{doing}", 1.0, 0.0))


def _add_part(
    made: Made,
    part: str,
    what: str,
    runs: Callable[[], tuple[object, pd.DataFrame, str]],
    *,
    failures: tuple[type[UserError], ...],
) -> Made:
    """Add what ``runs`` finds; if the runs fail or are interrupted, keep the profile measured before."""
    profile, samples = made
    try:
        result, table, doubt = runs()
    except KeyboardInterrupt:
        return profile.model_copy(update={"interrupted": True}), samples
    except failures as error:
        absent = Absent(probe="job", what=what, reason=error.what, remedy=error.remedy, failed=True)
        return profile.model_copy(update={"absent": (*profile.absent, absent)}), samples
    note = "; ".join(filter(None, (profile.note, doubt)))
    return profile.model_copy(update={part: result, "note": note}), {**samples, part: table}
