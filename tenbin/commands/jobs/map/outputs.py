"""The outputs of the jobs of ``tenbin map``, printed job by job as they end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from tenbin.text import label, say

if TYPE_CHECKING:
    from tenbin.client.client import Client

LONGEST_WAIT_S = 60.0
LOOKED_AT = (
    500  # jobs at once, because each end of any job makes the coordinator look at all that are waited for
)
MOST_FAILURES = 101  # as GNU parallel: the exit code of more than 100


@dataclass
class Outputs:
    """Prints the output of jobs.

    Attributes:
        commands: of each job, in the order of ``ids``.
        ordered: print in that order, else as the jobs end.
        streams: to print; others go to files that the user has named.
    """

    client: Client
    ids: Sequence[int]
    commands: Sequence[list[str]]
    ordered: bool
    streams: Sequence[str]

    def print_all(self) -> int:
        """Wait for all jobs and print their output; return the number of those that did not succeed."""
        failures = 0
        for found in self._in_order() if self.ordered else self._ends():
            self._print(found)
            failures += found["stage"] != "done"
        return failures

    def _ends(self) -> Iterator[dict[str, Any]]:
        """Yield jobs as they end."""
        waiting = dict.fromkeys(self.ids)
        while waiting:
            for found in self.client.ended(list(waiting)[:LOOKED_AT], LONGEST_WAIT_S):
                del waiting[found["id"]]
                yield found

    def _in_order(self) -> Iterator[dict[str, Any]]:
        """Yield jobs in the order of their arguments."""
        ended: dict[int, dict[str, Any]] = {}
        ends = self._ends()
        for job_id in self.ids:
            while job_id not in ended:
                found = next(ends)
                ended[found["id"]] = found
            yield ended.pop(job_id)

    def _print(self, found: dict[str, Any]) -> None:
        files: dict[str, IO[bytes]] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        for stream in self.streams:
            for part in self.client.job(found["id"]).output(stream):
                files[stream].write(part)
            files[stream].flush()
        if found["stage"] != "done":
            command = shlex.join(self.commands[found["id"] - self.ids[0]])
            reason = f": {found['trouble']}" if found["trouble"] else ""
            say(f"tenbin: job {label(found)} {found['stage']}{reason}: {command}", error=True)

    @contextmanager
    def cancelled_by_interrupt(self) -> Iterator[None]:
        """Cancel all jobs that have not ended if an interrupt comes."""
        try:
            yield
        except KeyboardInterrupt:
            self.client.change("cancel", [], self.ids)
            say("tenbin: interrupted; all jobs that had not ended are cancelled", error=True)
            raise
