"""Parks and moves of an attempt's OpenCL programs by the layer below, in a thread beside its supervisor."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agent.attempts.records import Order, Request, RunState
from agent.opencl_layer import loader, requests
from agent.processes import tree
from profiles.errors import Unavailable, UserError

LOOK_S = 0.05  # between looks whether a program has used OpenCL by now
LOADING_S = 5.0  # so long a loader may take, which opens drivers before layers
AGAIN_S = 1.0  # between attempts to go on, on the device that the job has to itself
NOT_USED = "it has not used OpenCL so far"
ASKS_S = 10.0  # between questions to programs on a node of a cluster whether they can be parked


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request to park the programs, or to let them go on.

    Attributes:
        request: its number.
        refused: why it was not carried out; all is as before then. for_now: it may be carried out later.
        unused: the programs have nothing on a device so far.
    """

    request: int
    refused: str = ""
    for_now: bool = False
    unused: bool = False


def below(order: Order, library: Path, folder: Path, devices: Sequence[str]) -> Order:
    """Return the order with the layer: the program may use these devices, the first one to start with.

    Args:
        folder: of the sockets.
    """
    more = requests.environment(library, folder, devices, order.environment)
    # The program sees one device, whatever the number of its own.
    return replace(order, environment={**order.environment, **more, "TENBIN_DEVICE": "0"}, layer=str(folder))


def prepared(order: Order) -> Order:
    """Return the order with the layer on this node of a cluster, if it has the library; else without."""
    try:
        if Path(order.library).is_file():
            folder = requests.own_folder(Path(order.layer))
            return below(order, Path(order.library), folder, [order.device])
    except (OSError, UserError):
        pass  # the job needs no layer
    return replace(order, layer="")


class Parking:
    """The programs of one attempt; one request at a time.

    Args:
        aside: folder for contents that do not fit into memory.

    Attributes:
        parked: process IDs of the parked programs.
        last: outcome of the last request.
    """

    def __init__(self, order: Order, aside: Path) -> None:
        self._folder, self._aside, self._on_cluster = Path(order.layer), aside, bool(order.library)
        self._memory_is_limited = order.memory_limit_mb is not None or (
            self._on_cluster and _by_control_group()
        )
        self._moves, self._ask_at = "", 0.0
        self._me = os.getpid()
        self._thread: threading.Thread | None = None
        self.parked: list[int] = []
        self.last: Outcome | None = None
        self._last_reported: Outcome | None = None
        self._parked_mb, self._device = 0.0, ""
        self._moved: requests.LayerStatus | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None

    @property
    def unsettled(self) -> bool:
        """Tell if a request is under way, or has ended and ``news`` has not been asked since."""
        return self.busy or self.last is not self._last_reported

    def news(self) -> bool | None:
        """Return whether the programs are parked, if a request has ended since this was asked last."""
        if self.busy or self.last is self._last_reported:
            return None
        self._last_reported = self.last
        return bool(self.parked)

    def waits(self, request: Request, *, runs: bool) -> bool:
        """Return whether the request has to be begun."""
        if self.busy or (self.last is not None and self.last.request == request.number):
            return False
        return runs if request.want == "park" else request.want == "run" and bool(self.parked)

    def begin(self, request: Request) -> None:
        """Carry out a request in a thread; this process gets SIGUSR1 at its end."""
        self._thread = threading.Thread(target=self._work, args=(request,), daemon=True)
        self._thread.start()

    def look(self) -> bool:
        """Ask programs on a node of a cluster if they can be parked; return whether the answer is new."""
        now, before = time.monotonic(), self._moves
        if self._on_cluster and not self.busy and now >= self._ask_at:
            self._moves = requests.moves(self._folder, tree.descendants(self._me))
            self._ask_at = now + (ASKS_S if self._moves != requests.UNUSED else 0.0)
        return self._moves != before

    def described(self, state: RunState) -> RunState:
        """Return the state with what became of the last request."""
        state = replace(state, moves=self._moves)
        if self.last is None:
            return state
        mb, last = self._parked_mb if self.parked else None, self.last
        refused = last.refused if last.request == state.done else ""
        state = replace(state, parked_mb=mb, device=self._device, refused=refused)
        state = replace(state, for_now=last.for_now, unused=bool(refused) and last.unused)
        if self._moved is None or self._moved.estimate is None:
            return state
        return replace(state, pause_s=self._moved.last_pause_s, expected_pause_s=self._moved.estimate.pause_s)

    def sweep(self) -> None:
        """Remove the sockets that killed programs have left, and on a cluster their folder."""
        for path in self._folder.glob("[0-9]*"):
            if not Path(f"/proc/{path.name}").exists():
                path.unlink(missing_ok=True)
        if self._on_cluster:
            with suppress(OSError):
                self._folder.rmdir()

    def _work(self, request: Request) -> None:
        try:
            carry_out = self._park if request.want == "park" else self._resume
            self.last = carry_out(request)
        except requests.LayerRefused as error:
            self.last = Outcome(request.number, error.trouble, error.postponed)
        except UserError as error:  # what is not there now may be later: a stopped program goes on
            self.last = Outcome(request.number, error.what, for_now=isinstance(error, Unavailable))
        finally:
            self._thread = None  # no longer busy when the signal comes
            os.kill(self._me, signal.SIGUSR1)

    def _park(self, request: Request) -> Outcome:
        """Park all programs, or none; a single one moves if the device where it is to go on is reserved."""
        began = time.monotonic()
        patience_s = requests.PATIENCE_S if request.device else 0.0
        while not (pids := requests.programs(self._folder, tree.descendants(self._me))):
            waited_s = time.monotonic() - began
            if waited_s >= patience_s:
                why = loader.outside(tree.descendants(self._me))
                if not why or waited_s >= LOADING_S:
                    return Outcome(request.number, why or NOT_USED, for_now=not why, unused=not why)
            time.sleep(LOOK_S)
        if request.reserved and len(pids) == 1 and self._move(pids[0], request.device):
            return Outcome(request.number)
        parked: list[requests.LayerStatus] = []
        try:
            for pid in pids:
                parked.append(self._park_one(pid))
        except UserError:
            for program in parked:
                self._until_resumed(program.pid)
            raise
        self.parked = [program.pid for program in parked]
        self._parked_mb = sum(program.parked_bytes for program in parked) / 1e6
        self._device = parked[0].device
        return Outcome(request.number)

    def _move(self, pid: int, device: str) -> bool:
        """Move a program while it runs; False: there is too little memory to have it on both devices."""
        try:
            self._moved = requests.move(self._folder, pid, device)
        except requests.LayerRefused as error:
            if error.code != requests.NO_DEVICE_MEMORY:
                raise
            return False
        self._device = self._moved.device
        return True

    def _park_one(self, pid: int) -> requests.LayerStatus:
        """Put the contents into memory if they fit there, else into a file."""
        if not self._memory_is_limited:
            try:
                return requests.park(self._folder, pid)
            except requests.LayerRefused as error:
                if error.code != requests.NO_HOST_MEMORY:
                    raise
        return requests.park(self._folder, pid, self._aside)

    def _resume(self, request: Request) -> Outcome:
        """Let all programs go on; on their own device that is tried until it succeeds."""
        elsewhere = request.device not in ("", self._device)
        if elsewhere:
            requests.resume(self._folder, self.parked[0], request.device)
        for pid in self.parked[1:] if elsewhere else self.parked:
            self._until_resumed(pid, request.device)
        self.parked = []
        return Outcome(request.number)

    def _until_resumed(self, pid: int, device: str = "") -> None:
        """Let a program go on as soon as that is possible; it may have ended."""
        while requests.programs(self._folder, [pid]) and Path(f"/proc/{pid}").exists():
            try:
                requests.resume(self._folder, pid, device)
                return
            except UserError:
                time.sleep(AGAIN_S)


def _by_control_group() -> bool:
    """Tell if a control group limits the memory of this process, as Slurm does it."""
    from agent.inventory import Roots, read_limits, read_memory_mb

    roots = Roots(Path("/sys"), Path("/proc"), Path("/"))
    return read_limits(roots, 1, read_memory_mb(roots)).memory_mb is not None
