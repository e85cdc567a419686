"""Device files that a control group may not open, by the kernel itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.processes import control_groups
from agent.processes.control_groups import refuse, trouble
from tests.support.labs.components import require

OPEN = 'for file in "$@"; do head -c 1 "$file" > /dev/null 2>&1 && echo "$file"; done'


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a control group of version 2."""
    require(not (why := trouble()), f"device files can be refused: {why}")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folder = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if folder is None:
        pytest.skip("no control groups of version 2")
    made = folder / f"tenbin-test-{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


def opened(group: Path, *files: str) -> list[str]:
    """Return which of these a process of the group can read."""
    enter = f"echo $$ > {group}/cgroup.procs && {OPEN}"
    done = subprocess.run(["sh", "-c", enter, "sh", *files], capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_only_these_are_refused_and_only_there(group: Path) -> None:
    files = ["/dev/zero", "/dev/full", "/dev/urandom"]
    assert opened(group, *files) == files
    refuse(group, [Path("/dev/full"), Path("/dev/urandom")])
    assert opened(group, *files) == ["/dev/zero"]
    with Path("/dev/full").open("rb") as outside:
        assert outside.read(1) == b"\0"


def test_programs_add_up_and_hold_below(group: Path) -> None:
    refuse(group, [Path("/dev/full")])
    refuse(group, [Path("/dev/zero")])
    below = group / "below"
    below.mkdir()
    try:
        assert opened(below, "/dev/zero", "/dev/full", "/dev/urandom") == ["/dev/urandom"]
    finally:
        below.rmdir()


def test_other_files_are_no_devices(group: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with pytest.raises(OSError, match=r"no character device"):
        refuse(group, [tmp_path / "plain"])


def test_a_file_that_is_gone_leaves_the_others_refused(group: Path, tmp_path: Path) -> None:
    refuse(group, [tmp_path / "none", Path("/dev/full")])
    assert opened(group, "/dev/zero", "/dev/full") == ["/dev/zero"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")
def test_another_user_is_told_why() -> None:
    program = (
        "from agent.processes.control_groups import trouble; import os; os.setuid(65534); print(trouble())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "takes root" in done.stdout


def test_a_job_s_group_needs_no_memory_limit(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = control_groups.Group(group / "tenbin-job", "cgroup v2", group)
    monkeypatch.setattr(control_groups, "place", lambda name: made)
    announced: list[Path] = []
    assert control_groups.confine(None, "job", announced.append, ["/dev/gone", "/dev/full"]) is made
    try:
        assert announced == [made.path]
        assert opened(made.path, "/dev/zero", "/dev/full") == ["/dev/zero"]
    finally:
        assert control_groups.remove(made.path)
    (tmp_path / "plain").touch()
    assert control_groups.confine(None, "job", announced.append, [str(tmp_path / "plain")]) is None
    assert not made.path.exists()
