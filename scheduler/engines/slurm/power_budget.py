"""A power budget over nodes whose caps the jobs' supervisors set and confirm.

Each attempt is charged the most that it may draw at the moment: of two caps the higher one, until the lower
is confirmed. Nothing is started, goes on or gets a higher cap before the charges of all leave room for it.
What the policy has decided fits the budget in the end, so no attempt waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.attempts.folder import Attempt
from agent.power.caps import CapRequest, cap_in_force, request_cap, requested_cap
from scheduler.engines.slurm.attempt_step import SlurmAttempt
from scheduler.engines.slurm.poller import Key
from scheduler.model.jobs import Pool
from scheduler.model.state import POWER_TOLERANCE_W


@dataclass(slots=True)
class Share:
    """An attempt's share of the budget.

    Attributes:
        wanted_w: cap of each of its nodes, as it was decided last.
        number, requested_w: of the last request to its supervisor.
        charged_w: the highest cap that may be in force; None: it does not run.
        recap: its supervisor has not confirmed the last cap.
    """

    attempt: Attempt
    nodes: int
    wanted_w: float
    number: int
    requested_w: float
    charged_w: float | None = None
    recap: bool = False


class PowerBudget:
    """The shares of all attempts."""

    def __init__(self, pool: Pool, budget_w: float, wake: Callable[[Key], None]) -> None:
        """``wake`` has the supervisor of an attempt told of its new cap at once."""
        self.pool, self.budget_w, self._wake = pool, budget_w, wake
        self._shares: dict[Key, Share] = {}
        self._later: dict[Key, Callable[[], None]] = {}

    def enter(self, attempt: SlurmAttempt, cap_w: float) -> None:
        """Enter a new attempt; OSError if the cap cannot be written into its folder."""
        request_cap(attempt.files, CapRequest(cap_w, 1, cap_w))
        self._shares[attempt.key] = Share(attempt.files, len(attempt.cpus), cap_w, 1, cap_w)

    def recover(self, attempt: SlurmAttempt, cap_w: float) -> None:
        """Enter an attempt from before a restart, charged what it may draw whatever is decided."""
        request = requested_cap(attempt.files)
        if request is None and not attempt.files.claimed():
            return  # it was never handed to Slurm
        if request is None or request.cap_w is None:  # its files were changed: it may draw the most
            request = CapRequest(cap_w, 0, self.pool.caps_w[-1])
        requested_w = cap_w if request.cap_w is None else request.cap_w
        share = Share(attempt.files, len(attempt.cpus), cap_w, request.number, requested_w)
        share.charged_w = requested_w if _confirmed(share) else request.most_w
        self._shares[attempt.key] = share
        self._settle(attempt, share)

    def unconfirmed(self, key: Key) -> bool:
        """Say whether the attempt's supervisor is to be told of a new cap."""
        share = self._shares.get(key)
        return share is not None and share.recap

    def leave(self, key: Key) -> None:
        """Forget an attempt of which nothing runs any more."""
        self._shares.pop(key, None)
        self._later.pop(key, None)

    def when_it_fits(self, key: Key, go: Callable[[], None]) -> None:
        """Have an attempt begin, or go on after a pause, as soon as its watts are free."""
        self._later[key] = go

    def wait_no_more(self, key: Key) -> None:
        """Forget that it is to go on: something else is asked of it."""
        self._later.pop(key, None)

    def decide(self, attempt: SlurmAttempt, cap_w: float) -> None:
        """Decide the cap of a running attempt; OSError if it cannot be written."""
        share = self._shares.get(attempt.key)
        if share is not None:
            share.wanted_w = cap_w
            if cap_w < share.requested_w or share.charged_w is None:
                self._request(attempt, share)

    def advance(self, attempts: Mapping[Key, SlurmAttempt]) -> None:
        """Note which caps are confirmed, and let attempts go on that fit now."""
        for key, share in self._shares.items():
            if key in attempts:
                self._settle(attempts[key], share)
        for key, go in list(self._later.items()):
            waits = self._shares.get(key)
            if waits is None or self._fits(key, waits.requested_w):
                del self._later[key]
                if waits is not None:
                    waits.charged_w = waits.requested_w
                go()
        for key, share in self._shares.items():
            raises = share.charged_w is not None and share.wanted_w > share.requested_w
            if raises and self._fits(key, share.wanted_w):
                self._request(attempts[key], share)

    def _settle(self, attempt: SlurmAttempt, share: Share) -> None:
        if share.charged_w is None:
            return
        if share.charged_w != share.requested_w and _confirmed(share):
            share.charged_w, share.recap = share.requested_w, False
        elif share.recap and _confirmed(share):
            share.recap = False
        if attempt.want == "pause" and attempt.key not in self._later and attempt.done >= attempt.request:
            share.charged_w = None

    def _fits(self, key: Key, cap_w: float) -> bool:
        others = sum(
            self.pool.power_w(share.nodes, share.charged_w)
            for other, share in self._shares.items()
            if other != key and share.charged_w is not None
        )
        more = self.pool.power_w(self._shares[key].nodes, cap_w)
        return others + more <= self.budget_w + POWER_TOLERANCE_W

    def _request(self, attempt: SlurmAttempt, share: Share) -> None:
        """Request the cap from its supervisor; until that confirms it, the higher cap is charged."""
        most_w = max(share.charged_w or 0.0, share.wanted_w)
        request_cap(share.attempt, CapRequest(share.wanted_w, share.number + 1, most_w))
        share.number, share.requested_w = share.number + 1, share.wanted_w
        if share.charged_w is not None:
            share.charged_w = most_w
            share.recap = True
            self._wake(attempt.key)


def _confirmed(share: Share) -> bool:
    confirmed = cap_in_force(share.attempt)
    return confirmed is not None and confirmed.number >= share.number
