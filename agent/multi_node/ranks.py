"""The ranks of a job that is started by mpiexec.

Between the supervisor and a rank are mpiexec, its proxy and the rank's guard (``probes.mpi.rank_guard``). The
guard reports in the attempt's folder how its rank ended.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agent.processes import tree
from probes.mpi import rank_guard
from probes.mpi.rank_guard import RankEnd
from profiles.files.safe_files import read_plain

REPORTS = "rank-ends"  # prefix of a file for each node, in the attempt's folder
LAST_WORDS_BYTES = 8192
MOST_BYTES = 1 << 20  # of a node's reports


def programs(root: int) -> list[int]:
    """Find the ranks below ``root`` and all that they started, without mpiexec and guards.

    A signal for the job goes to these, because mpiexec or a guard would kill its ranks at once.
    """
    found: list[int] = []
    guard = [b"-I", b"-S", os.fsencode(rank_guard.__file__)]  # mpiexec has these words further on
    for pid in tree.descendants(root):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4] == guard:
                found += tree.descendants(pid)
    return found


def first_death(code: int, attempt: Path, stderr: Path) -> tuple[int, str]:
    """Find the rank whose death ended the others, and describe its end in a sentence.

    Returns:
        its exit code, or minus the signal that killed it; without a guard's report ``code``, that of mpiexec.
    """
    from probes.mpi.rank_failure import cause_first, describe_failure

    lines: list[str] = []
    for file in attempt.glob(f"{REPORTS}-*"):
        with suppress(OSError):
            lines += read_plain(file, MOST_BYTES, last=True).decode(errors="replace").splitlines()
    ends = [end for line in lines if (end := _end(line))]
    sentence = describe_failure(code, _last_lines(stderr), ends, ranks=len(ends) + 1)
    return os.waitstatus_to_exitcode(cause_first(ends)[0].wait_status) if ends else code, sentence


def _end(line: str) -> RankEnd | None:
    with suppress(ValueError, OverflowError):  # not written by a guard
        end = RankEnd.from_line(line)
        if end is not None:
            os.waitstatus_to_exitcode(end.wait_status)
        return end
    return None


def _last_lines(path: Path) -> list[str]:
    with suppress(OSError):  # also a pipe
        end = read_plain(os.path.realpath(path), LAST_WORDS_BYTES, last=True)
        return end.decode(errors="replace").splitlines()
    return []
