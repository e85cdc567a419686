"""Failures of ranks: the rank that failed first, from the guards' reports, else from mpiexec's account.

A guard reports a rank that no launcher ended (``probes.mpi.rank_guard``). Where several ranks report, the
others may have followed the first, because an MPI that loses a peer aborts or crashes. Losing a peer kills
no rank, so a rank that was killed is the cause; else the earliest is. A doubt is stated where the clocks do
not tell, and where a lone report may be such a consequence: a rank killed together with its guard goes
unreported. Where no guard could report, mpiexec's account is all there is.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from probes.mpi.rank_guard import RankEnd

LAUNCHER_LINE = re.compile(  # on stdout (MPICH) or stderr, when a rank has died
    r"^\s*$|^[=-]{20}|^=   |Exit codes:|EXIT STRING|typically refers|FAQ page"
    r"|^Abort\(|^\[(mpiexec|proxy)\S*\] (?!HYDU_create)|^\s*\^+$"
)
AT_ONCE_S = 0.1  # two ends on one kernel that are closer may be reported in the wrong order: 1 ms was seen
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_LOST_PEER = re.compile(r"MPI_ERRORS_ARE_FATAL|Fatal error in|mpi4py\.MPI\.Exception|peer process has unexp")


def describe_failure(
    code: int, errors: Sequence[str], ends: Sequence[RankEnd], *, ranks: int, hosts: Sequence[str] = ()
) -> str:
    """Name the rank that failed first, how it ended, and its last words.

    Args:
        code: mpiexec's exit code.
        errors: lines of mpiexec and ranks on standard error.
        ends: reports of the guards.
        ranks: their number; of a single rank there is no doubt which was first.
        hosts: the host of each rank; empty: all on this node.
    """
    text = "\n".join(errors)
    if ends:
        rank, node, how, doubt = _from_guards(ends, text, hosts)
    else:
        rank, node, how, doubt = _from_launcher(code, text, hosts)
    return f"{_who(rank, node, hosts)} ended with {how}{doubt if ranks > 1 else ''}{last_words(errors)}"


def _who(rank: int | None, node: str, hosts: Sequence[str]) -> str:
    if rank is not None and hosts:
        node = hosts[rank]  # one rank a host, in this order
    return ("a rank" if rank is None else f"rank {rank}") + (f" on {node}" if node else "")


def _from_guards(
    ends: Sequence[RankEnd], text: str, hosts: Sequence[str]
) -> tuple[int | None, str, str, str]:
    """Tell rank, node, how the rank ended, and a doubt."""
    in_order = cause_first(ends)
    first, doubt = in_order[0], ""
    for other in in_order[1:]:
        if _was_killed(first) and not _was_killed(other):
            break
        if other.boot != first.boot or other.unix_s < first.unix_s + AT_ONCE_S:
            who, how = _who(other.rank, other.host, hosts), how_ended(other.wait_status)
            doubt = f" (or {who} went first, with {how})"
            break
    if len(ends) == 1 and (_crashed(first) or (not _was_killed(first) and _LOST_PEER.search(text))):
        doubt = " (or its MPI lost another rank before, together with the guard that would have told)"
    return first.rank, first.host, how_ended(first.wait_status), doubt


def cause_first(ends: Sequence[RankEnd]) -> list[RankEnd]:
    """Sort reports, the likely cause first: killed ranks, then by time."""
    return sorted(ends, key=lambda end: (not _was_killed(end), end.unix_s))


def _was_killed(end: RankEnd) -> bool:
    number = os.waitstatus_to_exitcode(end.wait_status)
    return number < 0 and not _crashed(end)


def _crashed(end: RankEnd) -> bool:
    return -os.waitstatus_to_exitcode(end.wait_status) in _CRASHES


def _from_launcher(code: int, text: str, hosts: Sequence[str]) -> tuple[int | None, str, str, str]:
    """Tell rank, node, how the rank ended, and a doubt, from the words of each family."""
    rank, node, how, doubt = None, "", f"exit code {code}", ""
    ended_too = " (or another rank: MPICH ended the rest by signal too)"
    dead = _dead_ranks(text)
    if len(dead) == 1:
        rank, node, status = dead[0]
        how, doubt = how_ended(status), ended_too if _as_mpich_ends(status) else ""
    elif match := re.search(r"RUNNING AT (\S+)\n=   EXIT CODE: (\d+)", text):  # MPICH
        node, how, doubt = match[1], how_ended(int(match[2])), ended_too
        rank = hosts.index(node) if node in hosts else None
    elif match := re.search(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)", text):
        rank, node, how = int(match[1]), match[2], how_ended(int(match[3]))  # Open MPI
    elif match := re.search(r"Process name: \[\S+?,(\d+)\]\s+Exit code:\s+(\d+)", text):  # Open MPI
        rank, how = int(match[1]), f"exit code {match[2]}"
    elif match := re.search(r"\(rank (\d+) in comm|process rank (\d+) with|invoked on rank (\d+)", text):
        rank = int(next(group for group in match.groups() if group))
    return rank, node, how, doubt if rank is not None else ""


def _dead_ranks(text: str) -> list[tuple[int, str, int]]:
    """Read rank, node and wait status from MPICH's ``Exit codes: [node] status,status [node] status``.

    MPICH ends the other ranks by signal after one death, so ranks that ended otherwise come alone, if any.
    """
    match = re.search(r"Exit codes: (.*)", text)
    nodes = re.findall(r"\[(\S+)\] ([\d,]+)", match[1]) if match else []
    status = [(node, int(code)) for node, several in nodes for code in several.split(",")]
    dead = [(rank, node, code) for rank, (node, code) in enumerate(status) if code]
    return [end for end in dead if not _as_mpich_ends(end[2])] or dead


def _as_mpich_ends(wait_status: int) -> bool:
    return wait_status in (signal.SIGKILL, signal.SIGTERM)


def how_ended(wait_status: int) -> str:
    """Say how a process ended: ``exit code 3``, ``signal 9 (SIGKILL)``."""
    number = os.waitstatus_to_exitcode(wait_status)
    if number >= 0:
        return f"exit code {number}"
    named = -number in set(signal.Signals)  # most real-time signals are not
    return f"signal {-number}" + (f" ({signal.Signals(-number).name})" if named else "")


def last_words(errors: Sequence[str]) -> str:
    """Give the last lines of stderr without the launcher's own (Open MPI puts its own between dashes)."""
    text = re.sub(r"^-{20,}\n.*?^-{20,}$", "", "\n".join(errors), flags=re.MULTILINE | re.DOTALL)
    words = [line.strip("\0 ") for line in text.splitlines() if not LAUNCHER_LINE.search(line)]
    words = [word for word in words if word]
    return f"; last words: {' | '.join(words[-3:])}" if words else ""


# -- shared memory between the ranks of a node, which killed ranks leave behind ----------------------------


SHARED = Path("/dev/shm")
NAMES = ("mpich_shm_", "vader_segment.", "sm_segment.")  # of MPICH and Open MPI
SETTLE_S = 1.0  # in which a new segment is surely mapped by its maker, on a busy machine too


def sweep_segments(since_s: float, lasted_s: float = 0.0) -> None:
    """Remove segments of killed ranks of a run: ours, and mapped by no process.

    Args:
        since_s: its begin (seconds since 1970).
        lasted_s: seconds since then by the monotonic clock, because the other may have been set back.
    """
    since_s = min(since_s, time.time() - lasted_s)
    left = {path for path in _segments() if _is_ours(path, since_s)}
    if left:
        time.sleep(SETTLE_S)
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                left = {path for path in left if str(path) not in text}
    for path in left:
        path.unlink(missing_ok=True)


def _segments() -> Iterable[Path]:
    return (path for path in SHARED.iterdir() if path.name.startswith(NAMES)) if SHARED.is_dir() else ()


def _is_ours(path: Path, since_s: float) -> bool:
    with suppress(OSError):
        stat = path.lstat()
        return stat.st_uid == os.getuid() and stat.st_ctime >= since_s - 1.0
    return False
