"""What is particular about a job that is started by mpiexec: its ranks.

Between the supervisor and a rank are mpiexec, its proxy and the rank's guard (``probes.rank_guard``), which
reports in the attempt's folder how its rank ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent.jobs import tree
from probes import rank_guard
from probes.rank_guard import RankEnd

REPORTS = "rank-ends"  # in the attempt's folder, of each node
SHARED = Path("/dev/shm")
SEGMENTS = ("mpich_shm_", "vader_segment.", "sm_segment.")
SETTLE_S = 1.0  # in which a new segment is surely mapped by who made it, on a busy machine too
LAST_WORDS_BYTES = 8192


def programs(root: int) -> list[int]:
    """The ranks proper below ``root``, with all that they started: neither mpiexec nor guards.

    A signal for the job is for these: mpiexec, or a guard, would at once take their ranks with them.
    """
    found: list[int] = []
    guard = [b"-I", b"-S", os.fsencode(rank_guard.__file__)]  # mpiexec has these words too, further on
    for pid in tree.descendants(root):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:4] == guard:
                found += tree.descendants(pid)
    return found


def first_death(code: int, attempt: Path, stderr: Path) -> tuple[int, str]:
    """How the rank ended whose death ended the others, and a sentence about it.

    Returns:
        its exit code, or minus the signal that killed it (``code``, mpiexec's own, if no guard saw it).
    """
    from probes.obituary import cause_first, obituary

    lines: list[str] = []
    for file in attempt.glob(f"{REPORTS}-*"):
        with suppress(OSError):
            lines += file.read_text().splitlines()
    ends = [end for line in lines if (end := RankEnd.from_line(line))]
    sentence = obituary(code, _last_lines(stderr), ends, len(ends) + 1, ())
    return os.waitstatus_to_exitcode(cause_first(ends)[0].wait_status) if ends else code, sentence


def sweep_segments(since_s: float) -> None:
    """Remove the shared memory that killed ranks have left since then: ours, and mapped by nobody."""
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
    return (path for path in SHARED.iterdir() if path.name.startswith(SEGMENTS)) if SHARED.is_dir() else ()


def _is_ours(path: Path, since_s: float) -> bool:
    with suppress(OSError):
        found = path.stat()
        return found.st_uid == os.getuid() and found.st_ctime >= since_s - 1.0
    return False


def _last_lines(path: Path) -> list[str]:
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_WORDS_BYTES))
        return file.read().decode(errors="replace").splitlines()
    return []
