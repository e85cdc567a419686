"""The processes below this one, and below another one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

from agent.processes import tree

SHELL = ["sh", "-c", "sleep 60 & echo; wait"]


def test_descendants_are_found_until_they_are_reaped() -> None:
    """Of this process, which may have other children, and of one that is not this process."""
    before = set(tree.descendants(os.getpid()))
    with subprocess.Popen(SHELL, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        below = tree.descendants(shell.pid)
        assert len(below) == 1
        assert set(tree.descendants(os.getpid())) - before == {shell.pid, *below}
        tree.send([*below, shell.pid], 9)
    assert not {shell.pid, *below} & set(tree.descendants(os.getpid()))


def test_a_process_without_children_has_none_below() -> None:
    code = "import os; from agent.processes import tree; print(tree.descendants(os.getpid()))"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_mark_outlives_an_environment_of_ones_own() -> None:
    """Also where it was started by others below; dead processes that nobody has reaped do not count."""
    mark, other = f"/home/me:{os.getpid()}:1", f"/home/me:{os.getpid()}:11"
    before = resource.getrlimit(tree.RLIMIT_LOCKS)
    with tree.Marking(mark):
        away = subprocess.Popen(["env", "-i", "setsid", "sh", "-c", "sleep 60 & echo $!; wait"], stdout=-1)
    assert resource.getrlimit(tree.RLIMIT_LOCKS) == before
    named = subprocess.Popen(["sleep", "60"], env={tree.MARK: mark})
    with away, named:
        assert away.stdout is not None
        below = int(away.stdout.readline())
        assert tree.descendants(away.pid) == [below]
        assert set(tree.marked(mark)) == {away.pid, below, named.pid} and tree.marked(other) == []
        os.kill(named.pid, signal.SIGKILL)
        os.waitid(os.P_PID, named.pid, os.WEXITED | os.WNOWAIT)
        assert set(tree.marked(mark)) == {away.pid, below}
        assert tree.kill_marked(mark)
