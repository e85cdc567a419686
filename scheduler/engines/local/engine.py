"""The local engine: this machine, with nothing else installed.

Supervisors are started by a small process that forks them (``agent.supervisor.spawner``); they outlive it and
the coordinator. They report over a datagram socket; because a report can be lost, their process descriptors
are watched too, and every few seconds each attempt's folder is looked at.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agent.attempts.begin import interpreter
from agent.attempts.folder import Attempt
from agent.attempts.records import Request, Want
from agent.processes import control_groups, tree
from agent.processes.claims import Claims
from probes.mpi.rank_failure import sweep_segments
from profiles.errors import BadInput, Unavailable
from scheduler.engines.common import supervisor_orders
from scheduler.engines.common.job_folders import (
    NO_ROOM,
    JobFolders,
    end_supervisor,
    job_errors_logged,
    no_result_reason,
    revoked,
)
from scheduler.engines.common.supervisor_orders import Orders
from scheduler.engines.local.cores import Cores, Packages, Supply, await_pause, lowers, put_back
from scheduler.engines.local.device_layer import DeviceLayer, Trials, goal
from scheduler.engines.local.gpus import Gpus, GpuWatch, JobGpus
from scheduler.engines.protocol import DeviceMoves, Engine, JobChecks, PowerCaps, Report
from scheduler.engines.registry import IdleRule
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import CORE, Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement

SWEEP_S = 5.0
PATIENCE_S = 10.0  # beyond a job's grace, before its supervisor is killed
LARGEST_REPORT = 65536
log = logging.getLogger("tenbin")


@dataclass(slots=True)
class Watched:
    """An attempt that was started: its folder, and the supervisor's process descriptor (None: unknown).

    ``gone``: that process is known to have ended. ``begun``: the attempt is known to have begun, whatever its
    folder shows. ``end_by``: monotonic time when, having been told to end it, the supervisor is killed.
    ``awaits``: number of a request whose outcome is to be reported, also if the supervisor's report was lost.
    """

    job_id: int
    number: int
    attempt: Attempt
    mark: str
    mpi: bool
    pidfd: int | None = None
    gone: bool = False
    begun: bool = False
    end_by: float = math.inf
    awaits: int = 0


class LocalChecks(JobChecks):
    """Looks for an MPI, and at paths on this machine."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        self._orders.prepare(specs)

    def check_paths(self, spec: JobSpec, path: str | None) -> None:
        check_paths_here(spec, path)

    def remarks(self, script: bytes, path: str | None) -> list[str]:
        return launchers(script, path)


class LocalCaps(PowerCaps):
    """Power caps as the engine sets them, here none."""

    def wish(self, job: Entry, attempt: Attempt) -> None:
        """Give an attempt the cap of its job's placement, from its start on, or now if it runs."""

    def await_pause(self, attempt: Attempt, request: int) -> None:
        """Wait until a job that is paused has given its packages back."""

    def put_back(self) -> None:
        """Restore what a killed supervisor has left."""


class PackageCaps(LocalCaps):
    """Caps of whole packages."""

    def __init__(
        self, packages: Packages, node_of: Mapping[int, int], watched: Mapping[tuple[int, int], Watched]
    ) -> None:
        self._packages, self._node_of, self._watched = packages, node_of, watched

    def wish(self, job: Entry, attempt: Attempt) -> None:
        if job.placement is not None and all(core in self._node_of for core in job.cores):
            nodes = dict.fromkeys(self._node_of[core] for core in job.cores)
            self._packages.set_caps(attempt, list(nodes), job.placement.cap_w)

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        for job in jobs:
            watched = self._watched.get((job.id, job.attempt))
            if watched is None or job.placement is None:
                continue
            with job_errors_logged(job.id, room=False):
                if lowers(watched.attempt, job.placement.cap_w) == lower:
                    self.wish(job, watched.attempt)

    def await_pause(self, attempt: Attempt, request: int) -> None:
        await_pause(attempt, request)

    def put_back(self) -> None:
        put_back()


class LocalEngine(Engine):
    """Runs jobs on this machine's cores.

    Args:
        store: folder of the coordinator; job 7 has ``store/jobs/7``.
        socket_path: where supervisors report (at most about 100 bytes long).
        cores: numbers of the logical CPUs that jobs may use, node by node.
        devices: numbers of the OpenCL devices of each pool of devices.
        unit: what one unit of a pool of cores or nodes is.
        packages: the package of each node, where jobs get whole ones.
        tries: running programs are tried on idle devices.
        supply: claims the cores and devices; None: they are not claimed.
        gpus: those of the one node, which are a resource beside its cores and memory; with ``devices``, those
            of them that are GPUs and can be watched. None: there are none.
        idle_s: after so long without work on a GPU the owner of its job is told. idle_rule: what then.
    """

    terminals = True

    def __init__(
        self,
        store: Path,
        socket_path: Path,
        cluster: Cluster,
        cores: Sequence[Sequence[int]],
        *,
        devices: Mapping[str, Sequence[int]] | None = None,
        unit: Unit = CORE,
        packages: Packages | None = None,
        tries: bool = True,
        supply: Supply | None = None,
        gpus: Gpus | None = None,
        idle_s: float = 3600.0,
        idle_rule: IdleRule | None = None,
    ) -> None:
        self.store, self.cluster, self.unit = store, cluster, unit
        self.layer = DeviceLayer(cluster.pools, socket_path.parent, tries=tries) if devices else None
        self.device_moves = self.layer or DeviceMoves()
        self._gpus = None if devices else gpus
        self._folders = JobFolders(store)
        self._claims, core_of = Claims(), {}
        if supply is not None:
            self._claims, core_of = supply.claims, supply.usable.threads_of(supply.cpus)
            self.left_to_others = supply.left_to_others()
            self._claims.renew()  # by this process, which may be a fork of the one that has made them
        self._cores = Cores(
            store,
            cluster,
            cores,
            devices or (gpus.numbers if gpus is not None else {}),
            whole=packages is not None,
            core_of=core_of,
        )
        self._watch_gpus = None
        if gpus is not None:
            free, moves = self._cores.free_devices, bool(devices)
            self._watch_gpus = GpuWatch(gpus, free, store, idle_s=idle_s, rule=idle_rule, moves=moves)
            self.gpus, self._cores.choose_gpus = self._watch_gpus, self._watch_gpus.choose
        self.regions = self._cores
        self._orders = Orders(
            store,
            unit,
            self._cores.node_of,
            sysfs=packages.sysfs if packages is not None else None,
            emulated=packages is not None and bool(packages.emulated),
        )
        self.checks = LocalChecks(self._orders)
        self._watched: dict[tuple[int, int], Watched] = {}
        self.caps: LocalCaps = LocalCaps()
        if packages is not None:
            self.caps = PackageCaps(packages, self._cores.node_of, self._watched)
        self._reports: list[Report] = []
        self._selector = selectors.DefaultSelector()
        self._socket = report_socket(socket_path)
        self._socket_path = socket_path
        self._selector.register(self._socket, selectors.EVENT_READ)
        if isinstance(trials := self.device_moves.trials, Trials):
            self._selector.register(trials, selectors.EVENT_READ, trials)
        if self._watch_gpus is not None:
            self._selector.register(self._watch_gpus, selectors.EVENT_READ, self._watch_gpus)
        self._watch_again_at = math.inf
        self._spawner: subprocess.Popen[str] | None = None
        self._sweep_at = time.monotonic() + SWEEP_S

    # -- cores and devices ----------------------------------------------------------------------------

    def place(self, job: Entry, placement: Placement) -> None:
        self._cores.place(job, placement)
        if self._watch_gpus is not None:
            self._watch_gpus.has_moved(self._mark(job), job.devices)

    def occupy(self, job: Entry) -> None:
        self._cores.occupy(job)

    def free(self, job: Entry) -> None:
        self._cores.free(job)
        if self._watch_gpus is not None:
            self._watch_gpus.has_moved(self._mark(job), ())

    # -- attempts -------------------------------------------------------------------------------------

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        started, refused = [], []
        for job, environment in jobs:
            watched = self._watch(job)
            try:
                files = self._folders.files(job)
                order = self._orders.order(job, environment, watched.attempt, watched.mark, files=files)
                if job.spec.slurm_variables:
                    order.environment.update(supervisor_orders.slurm_machine_variables(job))
                if self._gpus is not None:
                    order.environment.update(self._gpus.variables(job.devices))
                    order = replace(order, closed=self._gpus.closed(job.devices))
                if self.layer is not None and job.parks:
                    order = self.layer.below(order, job)
                watched.attempt.place(order)
                self.caps.wish(job, watched.attempt)
                started.append(watched)
            except Unavailable as error:
                refused.append((watched, str(error)))
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise  # nothing is lost: it is started when there is room
                refused.append((watched, f"{error.filename or watched.attempt.path}: {error.strerror}"))
        for watched, trouble in refused:
            self._end(watched, Report(watched.job_id, watched.number, "never", time.time(), trouble=trouble))
        for watched, pid in zip(started, self._spawn(started), strict=True):
            self._observe(watched, pid)

    def ask(self, job: Entry, want: Want) -> None:
        watched = self._watched.get((job.id, job.attempt))
        if watched is None:
            return
        if want == "end":
            watched.end_by = min(watched.end_by, time.monotonic() + job.spec.grace_s + PATIENCE_S)
        with job_errors_logged(job.id, room=False):
            if want == "run":
                self.caps.wish(job, watched.attempt)
            # A request for a checkpoint may overtake that to run.
            cores, device = job.cores if want in ("run", "checkpoint") else (), goal(job, want)
            watched.awaits = job.request if want in ("park", "move", "run") else 0
            leave: Want = "park" if want == "move" else want
            request = Request(job.request, leave, cores, device, want == "move", job.way.time_s or 0.0)
            watched.attempt.write_request(request)
        if watched.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(watched.pidfd, signal.SIGUSR1)
                signal.pidfd_send_signal(watched.pidfd, signal.SIGCONT)  # its job may have stopped it
            if want == "pause":
                self.caps.await_pause(watched.attempt, job.request)

    def recover(self, job: Entry) -> None:
        watched = self._watch(job)
        attempt = watched.attempt
        at_work = attempt.supervisors()
        watched.begun = bool(at_work)
        if not at_work and (not attempt.path.exists() or revoked(attempt)):
            self._end(watched, Report(job.id, job.attempt, "never", time.time()))
            return
        for pid in at_work:
            self._observe(watched, pid)
        self._look(watched)

    def _watch(self, job: Entry) -> Watched:
        mark = self._mark(job)
        watched = Watched(job.id, job.attempt, self._folders.attempt(job), mark, job.spec.mpi)
        self._watched[job.id, job.attempt] = watched
        if self._watch_gpus is not None:
            self._watch_gpus.begins(mark, job.id, job.devices)
        return watched

    def _mark(self, job: Entry) -> str:
        return f"{self.store}:{job.id}:{job.attempt}"

    # -- what happens ---------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._selector.fileno()

    def urgent(self) -> bool:
        return bool(self._reports)

    def poll(self) -> list[Report]:
        for key, _ in self._selector.select(0):
            if isinstance(key.data, Watched):
                key.data.gone = True
                self._forget(key.data)
                self._look(key.data)
            elif isinstance(key.data, Trials):
                self._reports.append(key.data.take())
            elif isinstance(key.data, GpuWatch):
                if not key.data.read():
                    self._selector.unregister(key.data)
                    key.data.close()
                    again_s = key.data.pause_s()
                    self._watch_again_at = time.monotonic() + again_s
                    log.warning("the watch of the GPUs has ended; it is started again in %g s", again_s)
            else:
                self._read()
        if self._watch_gpus is not None:
            self._watch_gpus.end_if_silent()
            if time.monotonic() >= self._watch_again_at:
                self._watch_again_at = math.inf
                self._watch_gpus.begin()
                self._selector.register(self._watch_gpus, selectors.EVENT_READ, self._watch_gpus)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_S
            self._claims.answer()
            for watched in list(self._watched.values()):
                if time.monotonic() >= watched.end_by:
                    self._enforce(watched)
                self._look(watched)
        reports, self._reports = self._reports, []
        return reports

    def _read(self) -> None:
        """Read what supervisors have reported."""
        with suppress(BlockingIOError):
            while True:
                path, what, *times = json.loads(self._socket.recv(LARGEST_REPORT))
                _, job, folder = path.rsplit("/", 2)
                key = int(job), int(folder.removeprefix("attempt-"))
                watched = self._watched.get(key)
                if watched is None:
                    continue
                watched.begun = True
                if what == "ended":
                    self._look(watched, ended=True)
                    continue
                if watched.pidfd is None:
                    for pid in watched.attempt.supervisors():
                        self._observe(watched, pid)
                at_s = times[0] if times else time.time()  # supervisors of earlier versions do not tell it
                if what == "started":
                    self._reports.append(Report(*key, "started", at_s))
                elif (state := watched.attempt.state()) is not None:
                    self._reports.append(Report(*key, "obeyed", at_s, done=state.done, state=state))

    def _look(self, watched: Watched, ended: bool = False) -> None:
        """Look at an attempt; what cannot be looked at now (no room for a claim) is at the next sweep."""
        with job_errors_logged(watched.job_id):
            self._judge(watched, ended)

    def _enforce(self, watched: Watched) -> None:
        """Its supervisor was to end it, and does not: it is stopped, waits for something, or cannot tell."""
        log.warning("job %d: its supervisor does not end it, and is killed", watched.job_id)
        with job_errors_logged(watched.job_id):
            end_supervisor(watched.attempt)
            revoked(watched.attempt)  # should nobody have come to supervise it, nobody will
        watched.begun = True

    def _judge(self, watched: Watched, ended: bool) -> None:
        """Report an attempt if it has ended; a lost attempt is over when none of its processes is left.

        What lies in its folder may be the job's own, or be gone: while its supervisor lives the attempt has
        not ended, unless that has ``ended`` so.
        """
        attempt, key = watched.attempt, (watched.job_id, watched.number)
        if key not in self._watched:
            return  # two signs of the same end
        result = attempt.result() if ended else None
        if result is None:
            if not watched.begun and not attempt.claimed():
                if watched.gone and revoked(attempt):
                    self._end(watched, Report(*key, "never", time.time()))
                return  # its supervisor has yet to come
            if attempt.lives() or (not watched.gone and attempt.supervisors()):
                self._catch_up(watched)
                return
            result = attempt.result()  # it may just have been written
        if result is None:  # its supervisor was killed
            if not tree.kill_marked(watched.mark, limit_s=1.0):
                return
            if watched.mpi:
                sweep_segments(0.0)
            group = attempt.group()
            if group is not None and group.name.startswith(f"{control_groups.PREFIX}{key[0]}-{key[1]}-"):
                control_groups.remove(group)
            self.caps.put_back()
            result = attempt.unpublished_result()
        if result is not None:
            self._end(watched, Report(*key, "ended", result.ended_s, result=result))
        else:
            self._end(watched, Report(*key, "lost", time.time(), trouble=no_result_reason(attempt)))

    def _catch_up(self, watched: Watched) -> None:
        """Report what the supervisor has carried out, because its own report may be lost."""
        state = watched.attempt.state() if watched.awaits else None
        if state is not None and state.done >= watched.awaits:
            watched.awaits = 0
            key = watched.job_id, watched.number
            self._reports.append(Report(*key, "obeyed", time.time(), done=state.done, state=state))

    def _end(self, watched: Watched, report: Report) -> None:
        if self._watch_gpus is not None:
            report = _with_gpus(report, self._watch_gpus.has_ended(watched.mark, report.at_s))
        self._reports.append(report)
        self._forget(watched)
        del self._watched[watched.job_id, watched.number]

    def _observe(self, watched: Watched, pid: int) -> None:
        """Be told when the supervisor's process ends."""
        if watched.pidfd is not None or (watched.job_id, watched.number) not in self._watched:
            return
        try:
            watched.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            watched.gone = True
            self._look(watched)
            return
        self._selector.register(watched.pidfd, selectors.EVENT_READ, watched)

    def _forget(self, watched: Watched) -> None:
        if watched.pidfd is not None:
            self._selector.unregister(watched.pidfd)
            os.close(watched.pidfd)
            watched.pidfd = None

    # -- the spawner ----------------------------------------------------------------------------------

    def _spawn(self, attempts: Sequence[Watched]) -> list[int]:
        """Have supervisors started; their process numbers. OSError if there can be no more processes now."""
        pids: list[int] = []
        while len(pids) < len(attempts):
            process = self._running_spawner()
            assert process.stdin is not None and process.stdout is not None
            try:
                for watched in attempts[len(pids) :]:
                    process.stdin.write(json.dumps(str(watched.attempt.path)) + "\n")
                    process.stdin.flush()
                    pid = int(process.stdout.readline())
                    if pid < 0:  # no process can be started now: all of it is tried again
                        raise OSError(-pid, os.strerror(-pid))
                    pids.append(pid)
            except (BrokenPipeError, ValueError):
                # It was killed. Of two supervisors of one attempt the second finds it claimed and goes away.
                process.kill()
                process.wait()
        return pids

    def _running_spawner(self) -> subprocess.Popen[str]:
        if self._spawner is None or self._spawner.poll() is not None:
            self._spawner = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent.supervisor.spawner", str(self._socket_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                umask=tree.umask_of_jobs(),
            )
        return self._spawner

    def close(self) -> None:
        for watched in self._watched.values():
            self._forget(watched)
        if self._spawner is not None:
            assert self._spawner.stdin is not None and self._spawner.stdout is not None
            self._spawner.stdin.close()
            self._spawner.wait()
            self._spawner.stdout.close()
        if self.layer is not None:
            self.layer.close()
        if self._watch_gpus is not None:
            self._watch_gpus.close()
        self._claims.close()
        self._socket.close()
        self._selector.close()
        self._socket_path.unlink(missing_ok=True)


def _with_gpus(report: Report, gpus: JobGpus | None) -> Report:
    """Add what a job used of its GPUs to the report of its end, if it was seen."""
    if report.result is None or gpus is None or not (gpus.seen_s or gpus.peak_mb):
        return report
    use = gpus.use
    usage = replace(
        report.result.usage,
        gpus_used=use.used,
        peak_gpu_memory_mb=use.peak_mb,
        gpu_energy_j=use.energy_j,
        gpus_emulated=use.emulated,
    )
    return report._replace(result=replace(report.result, usage=usage))


# -- checks of a job's paths -------------------------------------------------------------------------------


REMEDY = "make it, or name another with --{}: paths are those of the coordinator's machine"
LATER = "correct its name; what another job makes is looked for later: --after JOB"


def check_paths_here(spec: JobSpec, path: str | None) -> None:
    """Refuse a job that could not be started in its working directory, or could not open its output.

    And a program that is not here, named by its path or as a script, and a script whose interpreter is not.

    Args:
        path: folders of its programs, with colons; None: the system's.

    Raises:
        BadInput: names the path, and what is wrong with it.
    """
    folder = Path(spec.folder)
    try:
        _check_entry(folder)
    except (OSError, ValueError) as error:
        raise BadInput(f"working directory {folder}: {_reason(error)}", REMEDY.format("chdir")) from error
    for stream, option in ((spec.stdout, "output"), (spec.stderr, "error")):
        try:
            if stream and "%" not in str(Path(stream).parent):  # else known at the start only
                _check_output(folder / stream)
        except (OSError, ValueError) as error:
            what = f"{option} {folder / stream}: {_reason(error)}"
            raise BadInput(what, REMEDY.format(option)) from error
    program = spec.command[0]
    if "/" in program:
        try:
            (folder / program).stat()
        except (OSError, ValueError) as error:
            raise BadInput(f"{program}: {_reason(error)}", LATER) from error
        if not os.access(folder / program, os.X_OK):
            remedy = (
                f"chmod +x {shlex.quote(program)}, or give it to what reads it: sh {shlex.quote(program)}"
            )
            raise BadInput(f"{program} is there, but may not be executed", remedy)
    else:
        folders = (os.defpath if path is None else path).split(os.pathsep)
        if not shutil.which(program, path=os.pathsep.join(str(folder / part) for part in folders)):
            here = os.path.exists(folder / program)  # noqa: PTH110 (any text)
            raise BadInput(f"there is no program {program}", f"write ./{program}" if here else LATER)
    name = interpreter(str(folder / program)) if "/" in program else None
    if name == "":
        raise BadInput(
            f"the first line of {Path(program).name} (#!) names no program", "write #!/bin/sh there"
        )
    if name is not None:
        try:
            (folder / name).stat()
            _check_access(folder / name, os.X_OK)
        except (OSError, ValueError) as error:
            what = f"{name}: {_reason(error)}; the first line of {Path(program).name} (#!) names it"
            raise BadInput(what, "install it, or correct that line") from error


LAUNCHER = re.compile(
    rb"(?:^|[;&|(]|\b(?:exec|time|then|do|else)\s)\s*(?:\w+=\S*\s+)*(srun|mpirun|mpiexec)\s"
)
LOADS = re.compile(rb"^\s*(?:module|ml|source|spack|\.)\s", re.MULTILINE)  # may bring more programs


def launchers(script: bytes, path: str | None) -> list[str]:
    """Name the lines of a script that start ranks by a program that is not here, or by Slurm's own.

    Args:
        path: folders of its programs, with colons; None: the system's.
    """
    lines: dict[str, int] = {}
    for number, line in enumerate(script.split(b"\n"), 1):
        for name in LAUNCHER.findall(line):
            lines.setdefault(name.decode(), number)
    remarks = []
    for name, number in lines.items():
        there = shutil.which(name, path=path)
        if name == "srun":
            does = "asks Slurm for a job of its own, outside of this queue" if there else "is not here"
            ways = "start ranks by mpiexec, or the program itself; on Slurm's nodes: tenbin up --engine slurm"
            remarks.append(f"line {number}: srun {does}; {ways}")
        elif not there and not LOADS.search(script):
            ways = "load or install an MPI, or without a script: tenbin submit -n TASKS --mpi -- PROGRAM"
            remarks.append(f"line {number}: {name} is not here; {ways}")
    return remarks


def _check_entry(folder: Path) -> None:
    """OSError if this user could not work there."""
    if not os.path.isdir(folder):  # noqa: PTH112 (a Path hides why it cannot be looked at)
        folder.stat()
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    _check_access(folder, os.X_OK)


def _check_output(file: Path) -> None:
    """OSError if this user could not append to the file, or make it; it is not opened."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if file.exists():
        _check_access(file, os.W_OK)
    else:
        _check_entry(file.parent)
        _check_access(file.parent, os.W_OK)


def _check_access(path: Path, mode: int) -> None:
    if not os.access(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


# -- the socket on which supervisors report ----------------------------------------------------------------


def report_socket(path: Path) -> socket.socket:
    """Open a datagram socket that only its owner may write to."""
    path.unlink(missing_ok=True)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    before = os.umask(0o177)
    try:
        channel.bind(str(path))
    finally:
        os.umask(before)
    return channel
