"""Outcomes of jobs for people; a failure comes with the last line that the job wrote to stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenbin.client.client import FINAL
from tenbin.errors import TenbinError

if TYPE_CHECKING:
    from tenbin.client.client import Client

LOST = 125  # exit code of wait for a job that did not succeed and left with none, or with 0
SIGNALLED = 128
TAIL_BYTES = 4096
LONGEST_LINE = 500


def exit_code(found: dict[str, Any]) -> int:
    """Return 0 for a job that succeeded; else its own exit code, 128 + signal, or 125 without either."""
    if found["stage"] == "done":
        return 0
    if found["signal"]:
        return SIGNALLED + int(found["signal"])
    return int(found["code"] or LOST)


def has_failed(found: dict[str, Any]) -> bool:
    """Return True if a job has ended without success, and was not cancelled."""
    return found["stage"] in FINAL - {"done", "cancelled"}


def last_error(client: Client, found: dict[str, Any]) -> str:
    """Return the last line that a failed job wrote to stderr; "" without one, or if it cannot be read."""
    if not has_failed(found):
        return ""
    try:
        end: bytes = client.call("GET", f"/jobs/{found['id']}/stderr?last={TAIL_BYTES}")
    except TenbinError:
        return ""
    lines = [line.strip() for line in end.decode(errors="replace").splitlines()]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")


def outcome(client: Client, found: dict[str, Any]) -> str:
    """Name the reason why a job did not succeed; "": the job succeeded."""
    if found["stage"] == "done":
        return ""
    from profiles.instants import local
    from tenbin.text import label, printable

    trouble, said = local(found["trouble"]), last_error(client, found)
    lines = [f"job {label(found)}: {found['stage']}{': ' if trouble else ''}{trouble}"]
    lines += [f"  stderr ends: {said}"] if said else []
    return "\n".join(map(printable, lines))
