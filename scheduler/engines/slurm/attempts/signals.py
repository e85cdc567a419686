"""Hands requests on: to a supervisor by a signal, to Slurm by suspending and resuming."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.client.heartbeats import Key
from scheduler.engines.slurm.client.poller import Outcome, SlurmPoller
from scheduler.engines.slurm.client.tools import Slurm, SlurmError, SlurmForbidden, SlurmSilent

AGAIN_S = 3.0  # a supervisor that has not done what it was told is told again
CROWDED_S = 0.3  # CPUs that are to be free soon are looked at again
PATIENCE_S = 15.0  # beyond a job's grace, before Slurm is told to end it


class Steering:
    """One call at a time for each attempt; ``steer`` looks at what is to be done next."""

    def __init__(self, poller: SlurmPoller) -> None:
        self.poller, self.slurm = poller, poller.slurm

    def steer(self, watched: SlurmAttempt, done: int) -> None:
        """Bring what runs closer to what is wanted; ``done``: the last request that was carried out."""
        number, now = watched.slurm, time.monotonic()
        told = bool(watched.want or watched.recap)
        if watched.calling or number is None or not told or now < watched.wait_until:
            return
        obeyed = done >= watched.request
        if watched.want == "end" and now > watched.asked_at + watched.grace_s + PATIENCE_S:
            watched.cancelled = True
            watched.wait_until = now + PATIENCE_S
            self.cancel(watched.key, number, watched.comment)
        elif watched.want == "pause":
            if watched.suspended:
                return
            if obeyed:  # its clock has stopped: now its CPUs are for others
                self._call(watched, "suspend", self._if_ours(watched, number, self.slurm.suspend))
            else:
                self._wake(watched, number)
        elif watched.suspended:
            shares = watched.cpus if watched.want == "run" else {}
            again = self._if_ours(watched, number, partial(resume, self.slurm, shares=shares))
            self._call(watched, "resume", again)
        elif not obeyed or watched.recap:
            self._wake(watched, number)

    def settle(self, watched: SlurmAttempt, outcome: Outcome) -> None:
        """What became of a call."""
        now, error = time.monotonic(), outcome.error
        if isinstance(error, SlurmForbidden) and outcome.what == "suspend":
            watched.suspended = False  # it is stopped, but keeps its CPUs: others wait for them in Slurm
            watched.wait_until = now + 60.0
        elif error is not None:
            watched.wait_until = now + AGAIN_S
        elif outcome.what == "suspend":
            watched.suspended = True
        elif outcome.what == "resume" and outcome.value:
            watched.suspended = False
            watched.wake_at = now + AGAIN_S  # going on has woken it, and Slurm drops a signal that comes now
        elif outcome.what == "resume":
            watched.wait_until = now + CROWDED_S
            self.poller.look(CROWDED_S)  # after which it is tried again

    def cancel(self, key: Key, number: int, comment: str) -> None:
        def cancel() -> None:
            if self.slurm.ours(number, comment):
                self.slurm.cancel(number)

        self.poller.do(key, "cancel", cancel)

    def _wake(self, watched: SlurmAttempt, number: int) -> None:
        now = time.monotonic()
        if now >= watched.wake_at:
            watched.wake_at = now + AGAIN_S
            self._call(watched, "wake", self._if_ours(watched, number, self.slurm.wake))

    def _if_ours(
        self, watched: SlurmAttempt, number: int, call: Callable[[int], object]
    ) -> Callable[[], object]:
        """The call, for what has that number in Slurm, if that is the attempt still."""
        comment = watched.comment

        def made() -> object:
            if not self.slurm.ours(number, comment):
                raise SlurmError(f"Slurm's job {number} is another's now")
            return call(number)

        return made

    def _call(self, watched: SlurmAttempt, what: str, call: Callable[[], object]) -> None:
        watched.calling = True
        self.poller.do(watched.key, what, call)


def resume(slurm: Slurm, number: int | str, shares: dict[str, int]) -> bool:
    """Let a suspended job go on if its CPUs are free, which Slurm does not check; whether it does.

    Its supervisor was stopped as well: it looks for requests when it goes on.
    """
    if shares:
        room = {node.name: node.cpus - node.cpus_used for node in slurm.nodes()}
        if any(cpus > room.get(name, 0) for name, cpus in shares.items()):
            return False
    try:
        slurm.resume(number)
    except (SlurmSilent, SlurmForbidden):
        raise
    except SlurmError as error:
        if "not suspended" not in str(error):
            raise
    return True
