"""The place for a control group, on trees as machines have them; the kernel's part is in test_supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.processes.control_groups import Group, place

V1 = "40 30 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "42 30 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
CPU = "41 30 0:36 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
CONTAINER = "40 30 0:35 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
SLICE, SERVICE = "sys/fs/cgroup/user.slice", "sys/fs/cgroup/user.slice/t.service"


@pytest.mark.parametrize(
    ("own", "mounts", "files", "expected"),
    [
        ("4:memory:/a\n1:cpu:/b\n", CPU + V1, {"sys/fs/cgroup/memory/a/tasks": ""}, "sys/fs/cgroup/memory/a"),
        (
            "4:memory:/docker/abc/d\n",
            CONTAINER,
            {"sys/fs/cgroup/memory/d/tasks": ""},
            "sys/fs/cgroup/memory/d",
        ),
        ("4:memory:/elsewhere\n", CONTAINER, {}, None),
        ("1:cpu:/b\n", CPU, {}, None),
        (
            "0::/user.slice/t.service\n",
            V2,
            {
                f"{SERVICE}/cgroup.subtree_control": "",
                f"{SERVICE}/memory.max": "max\n",
                f"{SLICE}/cgroup.subtree_control": "cpu memory pids\n",
                f"{SLICE}/cgroup.procs": "",
            },
            SLICE,
        ),
        (  # beside the group it would escape the group's own limit
            "0::/user.slice/t.service\n",
            V2,
            {
                f"{SERVICE}/cgroup.subtree_control": "",
                f"{SERVICE}/memory.max": "1000000\n",
                f"{SLICE}/cgroup.subtree_control": "cpu memory pids\n",
                f"{SLICE}/cgroup.procs": "",
            },
            None,
        ),
        ("0::/\n", V2, {"sys/fs/cgroup/cgroup.subtree_control": "cpu\n"}, None),
        (  # version 2 is there, and memory is with version 1
            "4:memory:/a\n0::/\n",
            V2 + V1,
            {"sys/fs/cgroup/memory/a/tasks": "", "sys/fs/cgroup/cgroup.subtree_control": ""},
            "sys/fs/cgroup/memory/a",
        ),
        ("", "", {}, None),
    ],
)
def test_where_a_group_may_be_made(
    tmp_path: Path, own: str, mounts: str, files: dict[str, str], *, expected: str | None
) -> None:
    tree = {"proc/self/cgroup": own, "proc/self/mountinfo": mounts, **files}
    for name, content in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    found = place("7-1", tmp_path)
    assert (None if found is None else found.path) == (expected and tmp_path / expected / "tenbin-7-1")


def test_what_is_written_and_read_in_version_2(tmp_path: Path) -> None:
    """The files by their names in the kernel's documentation (cgroup-v2.rst, memory interface files)."""
    folder = tmp_path / "g"
    folder.mkdir()
    for name in ("memory.max", "memory.swap.max"):
        (folder / name).touch()
    group = Group(folder, "cgroup v2", folder)
    group.limit(250.0)
    assert (folder / "memory.max").read_text() == "250000000"
    assert (folder / "memory.swap.max").read_text() == "0"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    (folder / "memory.peak").write_text("249999360\n")
    assert group.kills() == 2 and group.peak_mb() == pytest.approx(249.99936)
