"""Power caps of jobs, and their energy: on packages of this machine, and on all nodes of a job of Slurm.

The coordinator shares a budget of watts among jobs. The sum of the caps in force must never exceed it, and
messages may be late, be lost, or meet a coordinator that has just been killed. So a cap is no command but a
state that is requested and confirmed, in two files with one writer each: the coordinator numbers its
requests, the supervisor confirms the number whose cap is in force. A request says the highest cap that may be
in force until it is confirmed (``most_w``), so that a coordinator that starts anew charges the job no less.

The supervisor caps, and not the coordinator, because it lives as long as the job. It journals the limits as
found (``agent.journal``), caps before the command starts, and restores before it tells that the job is paused
or has ended. The order matters on both sides: a command that starts first would draw more than its share, and
packages that are told free first would be given to a job whose supervisor finds them in use.

On this machine the coordinator may change a cap that is in force itself, which takes a write and no message.
Request and change are under one lock (``.cap.lock``), with the supervisor's restore: else a change could come
after the restore, and stay for ever.

On a cluster each other node has a keeper (``agent.power.cap_keeper``). A cap counts as in force when all have
confirmed it. A keeper whose input ends has lost its supervisor: it kills what is left of the job, and only
then restores.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.attempts import checked
from agent.attempts.begin import LOG
from agent.attempts.folder import Attempt
from agent.attempts.records import Order
from agent.journal import read_control, write_control
from agent.multi_node.lease import node_name
from agent.power.cap_keeper import CapKeeper, keeper_of_node
from probes.powercap import Caps, Zone, zones
from profiles.errors import Unavailable, UserError
from profiles.files.safe_files import state_dir, try_lock, write_whole

# -- requests and confirmations ----------------------------------------------------------------------------
#
#     cap.json   the last request; the coordinator
#     held.json  the cap in force; the supervisor
#
# Both lie in the attempt's folder, and each has one writer.


REQUEST, IN_FORCE = "cap.json", "held.json"


@dataclass(frozen=True)
class CapRequest:
    """The power cap that a job shall have.

    Attributes:
        cap_w: of each node, or of each of ``packages``; None: leave the limits as found.
        number: grows with each request.
        most_w: the highest cap that may be in force until this one is confirmed.
        packages: keys of the job's zones (``probes.powercap``); empty: all of each node.
    """

    cap_w: float | None
    number: int = 0
    most_w: float = 0.0
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class CapInForce:
    """Confirms request ``number``: this cap is in force; None: the limits are as found."""

    number: int
    cap_w: float | None
    packages: tuple[str, ...] = ()


def request_cap(attempt: Attempt, request: CapRequest) -> None:
    """Write the request; OSError if it cannot be written."""
    write_whole(attempt.path / REQUEST, json.dumps(asdict(request)))


def requested_cap(attempt: Attempt) -> CapRequest | None:
    """Read the last request; None if there is none, or the file is damaged."""
    return attempt.read(CapRequest, REQUEST)


def require_requested_cap(attempt: Attempt) -> CapRequest | None:
    """Read the last request, None if there is none. Raises as ``checked.read``."""
    return checked.read(CapRequest, attempt.path / REQUEST)


def confirm_cap(attempt: Attempt, cap: CapInForce) -> None:
    """Write which cap is in force; OSError if it cannot be written."""
    write_whole(attempt.path / IN_FORCE, json.dumps(asdict(cap)))


def cap_in_force(attempt: Attempt) -> CapInForce | None:
    """Read the confirmed cap; None if there is none, or the file is damaged."""
    return attempt.read(CapInForce, IN_FORCE)


# -- on packages of this machine ---------------------------------------------------------------------------
#
# The coordinator requests packages and cap, and changes a cap that is in force itself, at once. The
# supervisor journals the limits as found, caps the packages before the job starts, and restores them before
# it tells that the job is paused or has ended. So no package of a running job is ever without its cap, even
# while no coordinator lives. What a killed supervisor left is restored by the next coordinator or by
# ``tenbin profile restore``.


HINT = "start tenbin up anew: it looks which packages there are"
LOCKS_S = 5.0  # a process that changes a cap has the lock for milliseconds


def set_package_caps(attempt: Attempt, sysfs: Path, packages: Sequence[str], cap_w: float | None) -> None:
    """Request a cap for each package; if the attempt's caps are in force, change them before returning.

    Raises:
        OSError: a file cannot be written.
    """
    with _locked(attempt):
        before, in_force = requested_cap(attempt), cap_in_force(attempt)
        number = before.number + 1 if before else 1
        now = CapRequest(cap_w, number, packages=tuple(packages))
        request_cap(attempt, now)
        capped = in_force is not None and in_force.packages == now.packages
        if cap_w is not None and capped and attempt.lives():
            Caps(_zones(sysfs, now.packages), _set).set_w(cap_w * len(now.packages))


class PackageCaps:
    """The supervisor's part: holds the requested cap while the job runs."""

    def __init__(self, attempt: Attempt, sysfs: Path) -> None:
        self._attempt, self._sysfs = attempt, sysfs
        self._keeper = CapKeeper(sysfs, state_dir() / "journal")

    def begin(self) -> None:
        """Cap the packages as requested, and count their energy from now on.

        Raises:
            Unavailable, Busy: a limit cannot be written, or another process has changed it.
            Broken: the request cannot be read.
        """
        self._keeper.retry_while_busy(self._begin)

    def _begin(self) -> None:
        with _locked(self._attempt):
            request = require_requested_cap(self._attempt)
            if request is None:
                return
            own = _zones(self._sysfs, request.packages)
            if len(own) != len(request.packages):
                raise Unavailable(f"{', '.join(request.packages)}: not all are below {self._sysfs}", HINT)
            cap_w = None if request.cap_w is None else request.cap_w * len(own)
            self._keeper.hold(Caps(own, self._keeper.control), cap_w)
            if cap_w is not None:
                confirm_cap(self._attempt, CapInForce(request.number, request.cap_w, request.packages))

    def follow(self) -> None:
        """Do nothing, because the coordinator changes a cap that is in force itself."""

    def release(self) -> None:
        """Restore the limits as found, and stop counting energy."""
        with suppress(OSError), _locked(self._attempt):  # the folder may be gone
            self._keeper.release()
            if (request := requested_cap(self._attempt)) is not None:
                confirm_cap(self._attempt, CapInForce(request.number, None))
        self._keeper.release()

    def close(self) -> None:
        """Do nothing, because ``release`` leaves nothing to close."""

    @property
    def energy_j(self) -> float | None:
        """Energy of the packages and their memory while the job had them; None if a counter is missing."""
        return self._keeper.energy_j


def _zones(sysfs: Path, keys: Sequence[str]) -> list[Zone]:
    by_key = {zone.key: zone for zone in zones(sysfs)}
    return [by_key[key] for key in keys if key in by_key]


def _set(path: Path, value: str) -> None:
    """Write a control file whose original another process has journalled."""
    if read_control(path) != value.strip():
        write_control(path, value)


@contextmanager
def _locked(attempt: Attempt) -> Iterator[None]:
    """Keep the other side from changing a cap; OSError if it does not let go."""
    lock, deadline = attempt.path / ".cap.lock", time.monotonic() + LOCKS_S
    while (descriptor := try_lock(lock)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked", str(lock))
        time.sleep(0.001)
    try:
        yield
    finally:
        os.close(descriptor)


# -- on whole nodes ----------------------------------------------------------------------------------------
#
# The supervisor caps its own node, and starts a keeper (``agent.power.cap_keeper``) on each other node by a
# step in the job's allocation. It confirms a cap when the cap is in force on all of them.


ANSWERS_S = 30.0


class NodeCaps:
    """The caps of all nodes of a job; made before the supervisor adopts orphans, which no srun may become.

    Args:
        lost: called from another thread when a node's keeper is gone, to end the job.
    """

    def __init__(self, attempt: Attempt, order: Order, lost: Callable[[], None]) -> None:
        self._attempt = attempt
        self._own = keeper_of_node(order.sysfs, order.states)
        others = [node for node in order.capped_nodes if node != node_name()]
        self._others = RemoteCapKeepers(attempt, order, others, lost) if others else None
        self._number = 0
        self._cap_w: float | None = None

    def begin(self) -> None:
        """Cap the nodes as requested, and count their energy from now on.

        Raises:
            Unavailable, Busy: a limit cannot be written, or another process has changed it.
        """
        request = requested_cap(self._attempt)
        if request is not None and request.cap_w is not None:
            self._hold(request.cap_w)
            self._confirm(request.number)

    def follow(self) -> None:
        """Carry out a newer request, if the job has its nodes; what fails stays as it was."""
        request = requested_cap(self._attempt)
        if request is None or None in (request.cap_w, self._cap_w) or request.number <= self._number:
            return
        try:
            if request.cap_w is not None and request.cap_w != self._cap_w:
                self._hold(request.cap_w)
            self._confirm(request.number)
        except (UserError, OSError) as error:
            print(f"power cap: {error}", file=sys.stderr, flush=True)

    def release(self) -> None:
        """Restore the limits of all nodes, and stop counting energy."""
        self._own.release_node()
        if self._others is not None:
            self._others.tell(None)
        self._cap_w = None
        with suppress(OSError):  # a full disk: the result follows
            self._confirm(self._number)

    def close(self) -> None:
        """End the keepers, after the last ``release``."""
        if self._others is not None:
            self._others.close()

    @property
    def energy_j(self) -> float | None:
        """Energy of all nodes while they were capped; None if a counter is missing."""
        own, others = self._own.energy_j, self._others.energy_j if self._others else 0.0
        return None if own is None or others is None else own + others

    def _hold(self, cap_w: float) -> None:
        self._own.hold_node(cap_w)
        if self._others is not None:
            self._others.tell(cap_w)
        self._cap_w = cap_w

    def _confirm(self, number: int) -> None:
        self._number = number
        confirm_cap(self._attempt, CapInForce(number, self._cap_w))


class RemoteCapKeepers:
    """The keepers on the job's other nodes, one step of Slurm."""

    def __init__(
        self, attempt: Attempt, order: Order, nodes: Sequence[str], lost: Callable[[], None]
    ) -> None:
        self.nodes, self._lost = tuple(nodes), lost
        self._answers: dict[str, tuple[float | None, str]] = {}
        self._energy: dict[str, float | None] = {}
        self._news = threading.Condition()
        self._closing = self._gone = False
        command = [
            *("srun", f"--jobid={os.environ.get('SLURM_JOB_ID', '')}", "--overlap", "--mem=0", "--quiet"),
            *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--cpus-per-task=1"),
            *(f"--nodelist={','.join(nodes)}", "--cpu-bind=none", "--mpi=none", "--chdir=/", "--export=ALL"),
            *(sys.executable, "-P", "-m", "agent.power.cap_keeper", order.sysfs, order.states, order.mark),
        ]
        with (attempt.path / LOG).open("ab") as log:
            # By a shell that ends at once, so that srun is no child of this process and no part of the job.
            starter = subprocess.Popen(
                ["sh", "-c", 'exec 3<&0; "$@" <&3 3<&- &', "keepers", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),  # noqa: PLW1509
            )
        starter.wait()
        assert starter.stdin is not None and starter.stdout is not None
        self._in, self._out = starter.stdin, starter.stdout
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, cap_w: float | None) -> None:
        """Have all nodes capped (None: restored), and wait for their answers.

        Raises:
            Unavailable: a node cannot be capped, or does not answer. A failed restore raises nothing, because
                the keeper repeats it at its end, and so does the next user of the node.
        """
        with self._news:
            self._answers.clear()
        with suppress(OSError):
            self._in.write(json.dumps({"cap_w": cap_w}).encode() + b"\n")
            self._in.flush()
        with self._news:
            done = self._news.wait_for(lambda: self._gone or len(self._answers) == len(self.nodes), ANSWERS_S)
            said = dict(self._answers)
        if cap_w is None:
            return
        if self._gone or not done:
            silent = ", ".join(node for node in self.nodes if node not in said)
            raise Unavailable(
                f"{silent}: the step that caps its power does not answer", "see its slurmd's log"
            )
        for node, (held, trouble) in said.items():
            if held != cap_w:
                raise Unavailable(f"{node}: {trouble}", "see: tenbin doctor, on that node")

    @property
    def energy_j(self) -> float | None:
        """Energy of these nodes; None if one has not told any."""
        of_nodes = [self._energy.get(node) for node in self.nodes]
        return None if None in of_nodes else sum(joules for joules in of_nodes if joules is not None)

    def close(self) -> None:
        """End the keepers by closing their input."""
        self._closing = True
        with suppress(OSError):
            self._in.close()

    def _listen(self) -> None:
        for line in self._out:
            with suppress(ValueError, KeyError):
                answer = json.loads(line)
                with self._news:
                    self._energy[answer["node"]] = answer["energy_j"]
                    if "cap_w" in answer or "trouble" in answer:
                        self._answers[answer["node"]] = answer.get("cap_w"), answer.get("trouble", "")
                    self._news.notify_all()
        with self._news:
            self._gone = True
            self._news.notify_all()
        if not self._closing:
            self._lost()
