"""A quiet moment: the coordinator of this node starts no job while a check runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenbin.client.client import Client

POLL_S = 0.5
NO_ANSWER = 4  # exit code of a call where no coordinator runs
CHECK_S = 60.0  # a check and its beginning; if this process is killed, jobs start again after that time


@contextmanager
def quiet_moment(home: Path | None, wait_s: float) -> Iterator[str]:
    """Hold the starts of jobs on this node, and wait at most ``wait_s`` for those that run.

    Yields:
        Who was asked, and the answer, as a sentence; "" if nobody was.
    """
    from tenbin.client.client import Client
    from tenbin.errors import TenbinError

    client = Client(home)
    if client.address != str(client.home):  # by $TENBIN_URL: the coordinator of another machine
        yield ""
        return
    try:
        client.call("POST", f"/hold?seconds={wait_s + CHECK_S:g}")
    except TenbinError as error:
        yield "" if error.exit_code == NO_ANSWER else f"the coordinator gave no quiet moment: {error}"
        return
    try:
        left = _wait(client, wait_s)
        yield f"the coordinator holds new jobs; {left or 'no'} jobs run beside the check"
    finally:
        with suppress(TenbinError):
            client.call("POST", "/hold?seconds=0")


def _wait(client: Client, wait_s: float) -> int:
    """Wait for running jobs; return how many still run."""
    end_s = time.monotonic() + wait_s
    while True:
        stages = client.call("GET", "/status")["jobs"]
        left = sum(stages.get(stage, 0) for stage in ("running", "stopping"))
        if not left or time.monotonic() >= end_s:
            return int(left)
        time.sleep(POLL_S)
