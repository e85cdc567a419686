"""The network half of a job profile: the ranks of the job over several hosts, comprobe beside them on each.

The job's ranks have the first cores of each host, comprobe's one rank the next core. Hosts that are
namespaces of one machine share its cores, and their ranks have the same cores on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from probes.mpi.runner import MpiInstall
from probes.network import Comprobe, ExchangeWindow, RankPlaces, greet
from profiles.errors import BadInput, Unavailable

REFERENCE_WINDOWS = 5


@dataclass(frozen=True)
class Layout:
    """The places of the ranks of a job and of comprobe.

    Attributes:
        job_cores: the core of each rank, in their order.
        job, probe: comprobe's places on the job's first core of each host, and beside the job.
        here: whether this machine is one of the hosts, so that memprobe can run beside the job.
        one_kernel: whether the hosts are namespaces of one machine.
    """

    hosts: tuple[str, ...]
    each: int
    job_cores: tuple[int, ...]
    job: RankPlaces
    probe: RankPlaces
    here: bool
    one_kernel: bool


def lay_out(hosts: Sequence[str], ranks: int, mpi: MpiInstall) -> Layout:
    """Ask every host, and choose the cores.

    Raises:
        BadInput: there are fewer ranks than hosts, or a host is named twice.
        Unavailable: a host lacks something.
    """
    if ranks < len(hosts):
        raise BadInput(f"-n {ranks}: fewer ranks than the {len(hosts)} hosts", "give each host one at least")
    of_host, boots = cores_of(hosts, mpi)
    each = -(-ranks // len(hosts))
    if ranks <= each * (len(hosts) - 1):
        raise BadInput(f"-n {ranks}: {each} ranks a host leave {hosts[-1]} none", "give every host as many")
    for host, cores in zip(hosts, of_host, strict=True):
        if len(cores) <= each:
            raise Unavailable(
                f"host {host} has {len(cores)} cores for {each} ranks, and comprobe needs one beside them",
                f"-n {(len(cores) - 1) * len(hosts)} at most",
            )
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Layout(
        hosts=tuple(hosts),
        each=each,
        job_cores=tuple([cores[i] for cores in of_host for i in range(each)][:ranks]),
        job=RankPlaces(tuple(hosts), tuple(cores[0] for cores in of_host)),
        probe=RankPlaces(tuple(hosts), tuple(cores[each] for cores in of_host)),
        here=here in boots,
        one_kernel=len(set(boots)) < len(boots),
    )


def cores_of(hosts: Sequence[str], mpi: MpiInstall) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return a CPU of each core of each host, and the hosts' boot ids.

    Raises:
        BadInput, Unavailable: see ``probes.network.greet``.
    """
    answers = greet(hosts, mpi.library)
    cores = [tuple(int(core) for core in answer["cores"].split(",")) for answer in answers]
    return cores, [answer["boot"] for answer in answers]


@dataclass
class Network:
    """comprobe beside a job, and beside itself; ``windows`` is what it saw (see ``profiles.fits.job``)."""

    mpi: MpiInstall
    layout: Layout
    windows: list[dict[str, object]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def check(self) -> None:
        """See that messages leave the hosts, before the job is run.

        Raises:
            RanksFailed, Unavailable: they do not.
        """
        with Comprobe(self.mpi, self.layout.probe, 1.0, preflight=True) as comprobe:
            self.doubts = comprobe.doubts

    def refer(self, repetition: int, intensities: Sequence[float]) -> None:
        """Measure comprobe alone (0 %), and beside itself in the place of the job's ranks.

        Raises:
            RanksFailed: comprobe has ended.
        """
        with Comprobe(self.mpi, self.layout.probe, 1.0) as measured:
            for intensity in intensities:
                if not intensity:
                    measured.windows()
                    self._note(measured.windows(REFERENCE_WINDOWS), repetition, intensity)
                    continue
                with Comprobe(self.mpi, self.layout.job, intensity / 100) as other:
                    measured.windows()
                    self._note(measured.windows(REFERENCE_WINDOWS), repetition, intensity)
                    self._note(other.windows(1), repetition, intensity, measured=False)

    @contextmanager
    def beside(self, repetition: int, intensity: float) -> Iterator[list[tuple[float, float]]]:
        """Run comprobe; the caller appends the (begin, end) of the job's run to the list that is yielded.

        Raises:
            RanksFailed: comprobe has ended.
        """
        times: list[tuple[float, float]] = []
        with Comprobe(self.mpi, self.layout.probe, intensity / 100) as comprobe:
            yield times
            seen = comprobe.windows()
        for begin, end in times:
            inside = [w for w in seen if begin <= w.ended_s - w.wall_s and w.ended_s <= end]
            self._note(inside, repetition, intensity, phase="run", begin_s=begin)

    def _note(
        self,
        rows: Sequence[ExchangeWindow],
        repetition: int,
        intensity: float,
        *,
        phase: str = "reference",
        measured: bool = True,
        begin_s: float | None = None,
    ) -> None:
        for row in rows:
            self.windows.append(
                {
                    "repetition": repetition,
                    "probe": "network",
                    "phase": phase,
                    "measured": measured,
                    "intensity_percent": intensity,
                    "core": (self.layout.probe if measured else self.layout.job).cores[0],
                    "start_s": row.ended_s - row.wall_s,
                    "at_s": None if begin_s is None else row.ended_s - row.wall_s - begin_s,
                    "wall_s": row.wall_s,
                    "thread_cpu_s": row.inside_s,
                    "bytes": row.bytes,
                }
            )
