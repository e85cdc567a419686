"""The supervisor of one attempt, from its claim to its durable result.

It outlives the coordinator. If the supervisor is killed, the kernel kills the job's main process with it, and
no result is written. The coordinator then kills what is left and runs the job again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.attempts.begin import AWAITED, AttemptRevoked, ClaimedAttempt, begin, cpus_for
from agent.attempts.folder import Attempt, retry_until_written
from agent.attempts.records import How, Request, Result, RunState, Usage, as_order
from agent.multi_node.lease import Lease, node_name
from agent.multi_node.ranks import (
    RankCommand,
    RemoteRanks,
    first_death,
    rank_processes,
    share_of_this_node,
)
from agent.processes import control_groups, tree
from agent.processes.samples import Sampler
from probes.mpi.rank_failure import sweep_segments
from profiles.errors import UserError

if TYPE_CHECKING:
    from agent.attempts.terminal import Terminal
    from agent.power.caps import NodeCaps, PackageCaps
    from agent.supervisor.parking import Parking

TO_END = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
ASKS = (signal.SIGUSR1, signal.SIGCONT)  # a request, also one from while the whole job was stopped
MOST_TROUBLE = 1000  # letters, because the result must fit into its reserved room
LISTENS_S = 0.05  # between looks whether a new job can be asked for a checkpoint
BRIEF_S = 0.003  # the start of a shorter job is told together with its end
Report = Callable[[str, float], None]  # tells the coordinator "started", "changed" or "ended", and the time


def run_in_foreground(attempt: Attempt) -> Result | None:
    """Run the attempt in this process, and return its result, also that of an earlier run.

    Returns: None if another process has claimed the attempt.
    """
    # A request may come before the supervisor is ready: its signal must wait, neither kill nor be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for number in (signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)  # the parent may have ignored them
    if attempt.result() is None:
        supervise(attempt, lambda _what, _at_s: None)
    return attempt.result()


def supervise(attempt: Attempt, report: Report) -> bool:
    """Run the attempt until its result is on disk, unless another process has claimed it.

    Returns: whether this process is as it was before, so that it can run another attempt.
    """
    claimed = begin(str(attempt.path))
    return claimed is None or supervise_claimed(attempt, claimed, report)


def supervise_claimed(attempt: Attempt, claimed: ClaimedAttempt, report: Report) -> bool:
    """Supervise a claimed attempt; as ``supervise``."""
    try:
        return Supervisor(attempt, claimed, report).run()
    finally:
        os.close(claimed.alive)


class Supervisor:
    """The supervision of one attempt; to be ``run`` once."""

    def __init__(self, attempt: Attempt, claimed: ClaimedAttempt, report: Report) -> None:
        self.attempt, self.claimed, self.report = attempt, claimed, report
        self.order = as_order(claimed.order)
        self.time_limit_s = self.order.time_limit_s  # as changed since
        self.me = os.getpid()
        self.reaped = tree.Reaped()
        self.ran_s = 0.0  # up to the last pause
        self.runs_since: float | None = None  # None: paused
        self.sampler = Sampler(attempt.samples, self.me, self.reaped, self._energy_j)
        self.group: control_groups.Group | None = None  # holds the memory limit; None: the samples do
        self.ending: How | None = None
        self.kill_at: float | None = None
        self.checkpoint_wanted = False  # and the job not yet asked
        self.done, self.started_s = 0, 0.0
        self.start_reported = False
        self.hung_up = False  # it is told to end because its terminal is gone
        self.power: PackageCaps | NodeCaps | None = None
        self.remote_ranks: RemoteRanks | None = None
        self.parking: Parking | None = None

    def run(self) -> bool:
        """Run the attempt to its result; return whether this process can run another one."""
        reserved, trouble = self.claimed.reserved, ""
        self._prepare_node_caps()
        how: How = "not-started"
        try:
            self._start()
        except OSError as error:
            node = f" (on {node_name()})" if self.order.lease_s is not None else ""
            trouble = f"{error.filename or self.attempt.path}: {error.strerror}{node}"
        except UserError as error:
            how, trouble = "interrupted" if isinstance(error, AttemptRevoked) else how, str(error)
        if trouble:
            tree.kill(self.me)
            self.attempt.note(reserved, Result(how, time.time(), trouble=trouble))
        else:
            self._keep_lease()
            if self.claimed.terminal is not None:
                self.claimed.terminal.listen(signal.SIGUSR1)
            result = self._result(self._wait())
            if self.remote_ranks is not None:
                result = self.remote_ranks.finish(result)
            self.attempt.note(reserved, result)
            tree.kill(self.me)
            if self.parking is not None:
                self.parking.sweep()
            if self.order.mpi and result.code != 0:
                sweep_segments(self.started_s, time.monotonic() - self.claimed.at)
        self._remove_group()
        if self.power is not None:
            self.power.release()
            self.power.close()
        retry_until_written(lambda: self.attempt.publish(reserved))
        if not (self.start_reported or trouble):
            self.report("started", self.started_s)
        self.report("ended", time.time())
        retry_until_written(lambda: self.attempt.make_durable(reserved))
        for descriptor in (reserved, *self.claimed.ties):
            os.close(descriptor)
        if self.claimed.terminal is not None:
            self.claimed.terminal.close()
        again = self.order.plain and not trouble and self.ending != "interrupted" and not _told_to_end()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.claimed.mask)
        return again

    def _prepare_order(self) -> None:
        """Have other nodes start their ranks, and the layer below the programs of this one."""
        if self.order.hosts:
            self.remote_ranks = RemoteRanks(self.attempt, self.order)
            self.order = share_of_this_node(self.order)
        if self.order.library:
            from agent.supervisor.parking import prepared

            self.order = prepared(self.order)

    def _keep_lease(self) -> None:
        if self.order.lease_s is not None:
            Lease(self.attempt, self.order.lease_s, self._lose).begin()

    def _lose(self) -> None:
        """Kill the whole job; called from another thread."""
        self.ending = "interrupted"
        tree.send(tree.descendants(self.me), signal.SIGKILL)

    def _prepare_node_caps(self) -> None:
        if self.order.capped_nodes:
            from agent.power.caps import NodeCaps

            self.power = NodeCaps(self.attempt, self.order, self._lose)

    def _begin_caps(self) -> None:
        if self.order.sysfs and self.power is None:
            from agent.power.caps import PackageCaps

            self.power = PackageCaps(self.attempt, Path(self.order.sysfs))
        if self.power is not None:
            self.power.begin()

    def _energy_j(self) -> float | None:
        return None if self.power is None else self.power.energy_j

    def _wait(self) -> int:
        """Carry out requests and hold the limits until the main process has ended; return its status."""
        if not self.order.plain:
            self._report_start()
        status = tree.reap(self.claimed.pid, self.reaped)  # it may have ended already
        while status is None:
            received = tree.await_signal(AWAITED, self._patience() if self.start_reported else BRIEF_S)
            status = tree.reap(self.claimed.pid, self.reaped)
            if status is not None:
                if status and self.ending is None and TO_END & {received, *signal.sigpending()}:
                    self.ending = "interrupted"  # the job got the same signal, and ended sooner
                break
            if not self.start_reported:
                self._report_start()
            if received in ASKS:
                self._carry_out_request()
            elif received not in (None, signal.SIGCHLD):
                self._terminate("interrupted")
            self._hold_limits()
        return status

    def _report_start(self) -> None:
        """Write down and report that the job runs."""
        self.start_reported = True
        self._write_state()
        self.report("started", self.started_s)
        self._carry_out_request()  # a request may have come earlier

    def _enter_group(self) -> None:
        """Let the kernel hold the memory limit of children from now on, if this process may do that.

        And keep them from device files.
        """
        limit_mb, closed = self.order.memory_limit_mb, self.order.closed
        if limit_mb is not None or closed:
            name = f"{self.order.job_id}-{self.order.attempt}-{self.me}"
            self.group = control_groups.confine(limit_mb, name, self.attempt.write_group, closed)
        try:
            if self.group is not None:
                self.group.enter()
        except OSError:
            self._remove_group()

    def _remove_group(self) -> None:
        if self.group is not None:
            control_groups.remove(self.group.path)
            self.group = None

    def _start(self) -> None:
        """Start the command if it does not run yet; OSError, UserError if it cannot be started."""
        claimed = self.claimed
        if claimed.error is not None:
            raise claimed.error
        if not claimed.pid:
            self._prepare_order()
            self._begin_caps()
            self._enter_group()
            try:
                claimed.start(self.order)
            finally:
                if self.group is not None:
                    self.group.leave()
        if self.order.layer:
            from agent.supervisor.parking import Parking

            self.parking = Parking(self.order, self.attempt.path)
        self.runs_since, self.started_s = claimed.at, claimed.at_s
        steady = self._limit_by() == "looking"
        self.sampler = Sampler(self.attempt.samples, self.me, self.reaped, self._energy_j, steady=steady)

    def _carry_out_request(self) -> None:
        """Carry out the last request once, and the last request for a cap; and what the terminal says."""
        if self.claimed.terminal is not None:
            self._follow_terminal(self.claimed.terminal)
        if self.power is not None:
            self.power.follow()
        if self.parking is not None and self.ending is None and (parked := self.parking.news()) is not None:
            self._pause() if parked else self._continue_job()
        request = self.attempt.request()
        if request is not None and request.time_limit_s is not None:
            self.time_limit_s = request.time_limit_s or None
        if request is None or request.number <= self.done or self._parking_begins(request):
            return
        self._carry_out(request)
        self.done = request.number
        self._write_state()
        self.report("changed", time.time())

    def _follow_terminal(self, terminal: Terminal) -> None:
        """Hand on the signals from the terminal as it would: to the group of the main process."""
        for number in terminal.signals():
            with suppress(OSError):  # it is gone, or another user's (sudo)
                os.killpg(self.claimed.pid, number)
        if terminal.gone and self.ending is None:
            self.hung_up = True
            self._terminate("cancelled")

    def _carry_out(self, request: Request) -> None:
        if request.want == "pause" and self.runs_since is not None:
            self._pause()
        elif request.want == "run" and not (self.parking is not None and self.parking.parked):
            self._continue_job(request)
        elif request.want == "checkpoint" and self.order.checkpoint_signal is not None:
            self._continue_job(request)  # if it overtook a request to run
            self.checkpoint_wanted = True
        elif request.want == "end":
            self._terminate("cancelled")

    def _parking_begins(self, request: Request) -> bool:
        """Have programs parked, or let them go on, in a thread; return whether the request waits for that."""
        if self.parking is None or self.ending is not None:
            return False
        if self.parking.waits(request, runs=self.runs_since is not None):
            if request.want == "run":
                tree.send(tree.descendants(self.me), signal.SIGCONT)  # a stopped program cannot answer
            self.parking.begin(request)
        return self.parking.unsettled and request.want != "end"

    def _pause(self) -> None:
        tree.stop(self.me)
        self._tell_keepers("pause")
        if self.power is not None:
            self.power.release()
        if self.runs_since is not None:
            self.ran_s += time.monotonic() - self.runs_since
            self.runs_since = None

    def _continue_job(self, request: Request | None = None) -> None:
        """Let the job go on, on the cores of the request if there is one, and under its power cap."""
        if request is not None:
            cores = cpus_for(self.order, request.cores) if self.order.places else request.cores
            tree.pin(tree.descendants(self.me), cores)
        if self.runs_since is None:
            if self.power is not None:
                tree.stop(self.me)  # it may run already: Slurm continues all that it had suspended
                self.power.begin()
            self.runs_since = time.monotonic()
            tree.send(tree.descendants(self.me), signal.SIGCONT)
            self._tell_keepers("run")

    def _tell_keepers(self, command: RankCommand) -> None:
        if self.remote_ranks is not None:
            self.remote_ranks.tell(command)

    def _terminate(self, why: How) -> None:
        """Ask the job to end, and have it killed after its grace."""
        if self.ending is None:
            self.ending = why
            self.kill_at = time.monotonic() + self.order.grace_s
            below = tree.descendants(self.me)
            tree.send((rank_processes(self.me) if self.order.mpi else below) or below, signal.SIGTERM)
            tree.send(below, signal.SIGCONT)
            self._tell_keepers("term")
            if self.runs_since is None:
                self.runs_since = time.monotonic()

    def _hold_limits(self) -> None:
        number = self.order.checkpoint_signal
        if self.checkpoint_wanted and number is not None and tree.catches(self.claimed.pid, number):
            tree.send([self.claimed.pid], number)
            self.checkpoint_wanted = False
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            tree.send(tree.descendants(self.me), signal.SIGKILL)
            self._tell_keepers("end")
            self.kill_at = time.monotonic() + 1.0
        if self.runs_since is None:
            return
        if self.remote_ranks is not None and self.remote_ranks.stuck():
            tree.send(tree.descendants(self.me), signal.SIGKILL)
        if self.time_limit_s is not None and self._running_s() >= self.time_limit_s:
            self._terminate("time-limit")
        if time.monotonic() >= self.sampler.due:
            used, limit_mb = self.sampler.look(), self.order.memory_limit_mb
            if self.parking is not None and self.parking.look():
                self._write_state()
            if limit_mb is not None and (
                self.group.kills() > 0 if self.group is not None else used.memory_mb > limit_mb
            ):
                self._terminate("memory-limit")

    def _running_s(self, until: float | None = None) -> float:
        until = time.monotonic() if until is None else until
        return max(0.0, self.ran_s + (until - self.runs_since if self.runs_since is not None else 0.0))

    def _patience(self) -> float:
        """Compute the seconds until something is due."""
        wait = LISTENS_S if self.checkpoint_wanted else 3600.0  # only signals are awaited
        if self.runs_since is not None:
            wait = min(wait, self.sampler.due - time.monotonic())
        if self.time_limit_s is not None and self.runs_since is not None and self.ending is None:
            wait = min(wait, self.time_limit_s - self._running_s())
        if self.kill_at is not None:
            wait = min(wait, self.kill_at - time.monotonic())
        return max(wait, 0.001)

    def _result(self, status: int) -> Result:
        until, ended_s = self.claimed.ended or (time.monotonic(), time.time())
        last = self.sampler.end()
        peak_mb = max(self.sampler.peak_mb, self.reaped.peak_mb)
        code = os.waitstatus_to_exitcode(status)
        how: How = "exited" if code >= 0 else "signalled"
        if self.ending is not None:
            how = self.ending
        elif self.group is not None and self.group.kills():
            how = "memory-limit"
        elif self.order.checkpoint_signal is not None and code == self.order.checkpoint_code:
            how = "checkpointed"
        if how == "memory-limit" and self.group is not None:
            peak_mb = self.group.peak_mb() or peak_mb
        used = Usage(
            wall_s=until - self.claimed.since,
            running_s=self._running_s(until),
            user_s=self.reaped.user_s,
            system_s=self.reaped.system_s,
            peak_memory_mb=peak_mb,
            read_mb=last.read_mb,
            written_mb=last.written_mb,
            memory_limit_by=self._limit_by(),
            energy_j=self._energy_j(),
            emulated=self.order.emulated,
        )
        trouble = "its terminal is gone" if self.hung_up else ""
        if self.order.mpi and code and how in ("exited", "signalled"):
            code, trouble = first_death(code, self.attempt.path, Path(self.order.stderr))
            how = "exited" if code >= 0 else "signalled"
        number = -code if code < 0 else None
        return Result(how, ended_s, None if code < 0 else code, number, trouble[:MOST_TROUBLE], usage=used)

    def _write_state(self) -> None:
        with suppress(OSError):  # a full disk: the next change is written again
            paused, by = self.runs_since is None, self._limit_by()
            state = RunState(self.me, self.claimed.pid, self.started_s, paused, self.done, by)
            self.attempt.write_state(state if self.parking is None else self.parking.described(state))

    def _limit_by(self) -> str:
        if self.order.memory_limit_mb is None:
            return ""
        return "looking" if self.group is None else self.group.version


def _told_to_end() -> bool:
    """Return whether a signal to end came after the end of the job; earlier ones concerned the job."""
    to_end = False
    while (got := signal.sigtimedwait(AWAITED, 0)) is not None:
        to_end = to_end or got.si_signo in TO_END
    return to_end
