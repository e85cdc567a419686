"""Signs of life: a dead node is noticed before Slurm does, and what is only stopped is not taken for dead."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.attempts.folder import Attempt
from agent.multi_node import lease
from agent.multi_node.lease import MARGIN_S
from profiles.files.safe_files import overwrite
from scheduler.engines.slurm import poller
from scheduler.engines.slurm.attempt_driver import OrphanedJobs
from scheduler.engines.slurm.attempt_step import should_beat
from scheduler.engines.slurm.discovery import setting_down, slurm_cluster
from scheduler.engines.slurm.poller import SET_DOWN, Heartbeats, knock
from scheduler.engines.slurm.slurm_commands import Slurm, SlurmJob, parse_nodes
from tests.scheduler.engines.slurm.attempts.test_mpi import submit
from tests.scheduler.engines.slurm.client.test_tools import NODE
from tests.scheduler.engines.slurm.nodes.test_regions import as_nobody
from tests.scheduler.engines.slurm.test_engine import START, run
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab, short_slurmlab

KEY = (1, 1)
WAITS = "hostname >>begun; until [ -e go ]; do sleep 0.05; done"


class Watcher:
    """A Heartbeats of one attempt on node1 and node2, in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.attempt, self.number, self.now = Attempt(folder), 0, 1000.0
        lease.prepare(self.attempt, ["node1", "node2"])
        self.life = Heartbeats(0.5)
        self.life.watch(KEY, folder, ["node1", "node2"])
        self.life.expect(KEY, True)

    def beat(self, host: str) -> None:
        self.number += 1
        overwrite(lease.beat_file(self.attempt.path, host), str(self.number), lease.WIDTH)

    def until(self, condition: Callable[[], object], *beating: str) -> bool:
        """Look until the condition holds while these nodes beat; return True if a new node was suspected."""
        deadline, found = self.now + 30, False
        while not condition():
            assert self.now < deadline
            for host in beating:
                self.beat(host)
            found = self.life.look() or found
            self.now += 0.1
        return found


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    made = Watcher(tmp_path)
    monkeypatch.setattr(poller, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_a_node_is_silent_when_its_beats_stop(watcher: Watcher) -> None:
    life = watcher.life
    assert watcher.until(lambda: life.silent(KEY, "node2"), "node1")
    assert not life.silent(KEY, "node1") and life.begun(KEY, "node1") and not life.begun(KEY, "node2")
    assert life.still("node2") and not life.still("node1")
    watcher.beat("node2")
    assert not life.look()  # no news
    assert not life.silent(KEY, "node2") and life.begun(KEY, "node2")


def test_what_is_stopped_is_not_silent(watcher: Watcher) -> None:
    """And has all of its time again when it goes on."""
    life = watcher.life
    life.expect(KEY, False)
    end = watcher.now + MARGIN_S + 2.0
    watcher.until(lambda: watcher.now > end)
    assert not life.silent(KEY, "node1")
    life.expect(KEY, True)
    life.look()
    assert not life.silent(KEY, "node1")
    watcher.until(lambda: life.silent(KEY, "node1"))


def test_who_should_give_signs() -> None:
    """A job that Slurm gave up with its node begins no new silence, which would last a second lease."""

    def seen(state: str) -> SlurmJob:
        return SlurmJob(7, state, "None", ("node1",), "tenbin:1:1")

    assert should_beat(seen("RUNNING"), paused=False) and should_beat(seen("COMPLETING"), paused=False)
    assert should_beat(seen("RUNNING"), paused=True) is should_beat(seen("SUSPENDED"), paused=False) is False
    assert should_beat(seen("PENDING"), paused=False) is should_beat(None, paused=False) is False
    assert should_beat(seen("PENDING"), begun=True, paused=False)  # slurmctld may have forgotten its start
    assert should_beat(seen("NODE_FAIL"), paused=False) is should_beat(seen("CANCELLED"), paused=True) is None


def test_a_disk_that_nobody_could_look_at_makes_nobody_silent(watcher: Watcher) -> None:
    """One long gap between two looks is not a time without beats."""
    watcher.beat("node1")
    watcher.life.look()
    watcher.now += MARGIN_S + 2.0
    watcher.life.look()
    assert not watcher.life.silent(KEY, "node1")


def test_knocking() -> None:
    with socket.socket() as listens, socket.socket() as deaf:
        listens.bind(("127.0.0.1", 0))
        listens.listen()
        deaf.bind(("127.0.0.1", 0))
        asked = {"a": ("127.0.0.1", listens.getsockname()[1]), "b": ("127.0.0.1", deaf.getsockname()[1])}
        asked |= {"c": ("no.such.host.invalid", 1), "d": ("192.0.2.1", 9)}  # the latter is of documentation
        assert knock(asked) == {"a"} and knock({}) == frozenset()


def test_who_is_asked(watcher: Watcher) -> None:
    """Nodes without a sign, until they answer; not those that Slurm gave up, but those that tenbin did."""
    watcher.until(lambda: watcher.life.silent(KEY, "node1"), "node2")
    with socket.socket() as slurmd:
        slurmd.bind(("127.0.0.1", 0))
        port = slurmd.getsockname()[1]

        def ask(state: str = "IDLE", reason: str = "") -> tuple[set[str], set[str]]:
            text = NODE.replace("10.0.0.11", "127.0.0.1").replace("IDLE+DRAIN", state)
            (node,) = parse_nodes(text.replace("disk full State=DOWN", reason))
            found = watcher.life.ask({"node1": node}, lambda: port)
            return set(found.mute), set(found.back)

        assert ask() == ({"node1"}, set())
        assert ask("DOWN", "Not responding") == ({"node1"}, set())
        slurmd.listen()
        assert ask("DOWN", "Not responding") == (
            {"node1"},
            set(),
        )  # that it listens is not known to Slurm yet
        assert ask() == (set(), set())
        assert ask("DOWN", SET_DOWN) == (set(), {"node1"})


def test_strays_are_what_is_seen_twice() -> None:
    def job(number: int, comment: str, state: str = "RUNNING") -> SlurmJob:
        return SlurmJob(number, state, "None", ("node1",), comment)

    strays = OrphanedJobs("tenbin:me:")
    jobs = [job(1, "tenbin:me:1:1"), job(2, "tenbin:me:2:1"), job(3, "tenbin:other:1:1"), job(4, "")]
    jobs += [job(5, "tenbin:me:3:1", "COMPLETED"), job(6, "tenbin:me:4:1", "COMPLETING")]
    assert strays.find(jobs, {"tenbin:me:1:1"}) == []
    assert [one.id for one in strays.find(jobs, {"tenbin:me:1:1"})] == [2]
    assert [one.id for one in strays.find([*jobs, job(7, "tenbin:me:7:1")], {"tenbin:me:1:1"})] == [2]
    assert strays.find(jobs, {"tenbin:me:1:1", "tenbin:me:2:1"}) == []


# -- on a cluster whose Slurm takes ten minutes to notice that a node is dead ------------------------------


@pytest.fixture(scope="module")
def _cluster() -> Iterator[SlurmLab]:
    with short_slurmlab(timeout_s=600, extra="ReturnToService=0") as lab:
        yield lab


@pytest.fixture
def lab(lab: SlurmLab) -> Iterator[SlurmLab]:
    yield lab
    # Nodes that are down have no jobs: Slurm would look for those of dead ones for minutes.
    every = f"nodename={','.join(lab.nodes)}"
    lab.call("scontrol", "update", every, "state=down", "reason=the test is over")


def hosts(folder: Path) -> list[str]:
    return (folder / "begun").read_text().split() if (folder / "begun").exists() else []


def test_a_dead_node_is_noticed_before_slurm_does(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    """Its job runs elsewhere, no other is sent there, and it is used again when it answers."""
    up.start(*START, "--lease", "2")
    run(up, "submit", "--chdir", str(tmp_path), "--", "sh", "-c", WAITS)
    up.until(lambda: len(hosts(tmp_path)) == 1)
    (node,) = hosts(tmp_path)
    lab.power_off(node)
    up.until(lambda: len(hosts(tmp_path)) == 2, 120)
    assert "down" not in lab.call("sinfo", "-h", "-n", node, "-o", "%T")
    assert f"{node}: jobs: none; DOWN: no sign of life" in run(up, "nodes")
    assert hosts(tmp_path)[1] != node
    run(up, "submit", "--array", "1-2", "--chdir", str(tmp_path), "--", "sh", "-c", WAITS)
    up.until(lambda: len(hosts(tmp_path)) == 3)
    lab.power_on(node)
    up.until(lambda: len(hosts(tmp_path)) == 4, 120)
    assert set(hosts(tmp_path)) == set(lab.nodes) and hosts(tmp_path)[3] == node
    (tmp_path / "go").touch()
    assert [up.client.job(n).result(60) for n in (1, 3, 4)] == [0, 0, 0]
    assert up.client.job(1).info()["attempt"] == 2


@pytest.mark.slow
def test_a_dead_node_is_set_down_and_resumed(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    """The site keeps dead nodes down until an administrator resumes them."""
    up.start(*START, "--lease", "2", "--set-down")
    run(up, "submit", "--chdir", str(tmp_path), "--", "sh", "-c", WAITS)
    up.until(lambda: len(hosts(tmp_path)) == 1)
    (node,) = hosts(tmp_path)
    lab.power_off(node)
    up.until(lambda: len(hosts(tmp_path)) == 2, 120)

    def said(other: str) -> str:
        return lab.call("scontrol", "--oneliner", "show", "node", other)

    up.until(lambda: "State=DOWN" in said(node) and f"Reason={SET_DOWN}" in said(node))
    lab.power_on(node)
    up.until(lambda: "State=IDLE " in said(node), 120)
    other = next(one for one in lab.nodes if one not in hosts(tmp_path))
    lab.call("scontrol", "update", f"nodename={other}", "state=down", "reason=by somebody else")
    (tmp_path / "go").touch()
    assert up.client.job(1).result(60) == 0
    time.sleep(3)
    assert "State=DOWN" in said(other)


def test_who_may_not_set_nodes_down_is_told_at_once(lab: SlurmLab, tmp_path: Path) -> None:
    machine = slurm_cluster("easy", tmp_path / "home", lease_s=30.0)
    assert setting_down(machine).site.set_down
    said = as_nobody(lambda: setting_down(machine))
    assert said.startswith("BadInput: --set-down: nobody may not set nodes down (there is no accounting")
    assert said.endswith("; leave it out, or see: tenbin slurm doctor") and "\n" not in said


@pytest.mark.slow
@pytest.mark.usefixtures("mpi")
def test_ranks_that_cannot_be_started_are_no_fault_of_the_job(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    """The daemon of one of its nodes is dead, which Slurm does not know yet: it runs elsewhere."""
    up.start(*START, "--lease", "3")
    lab.kill_slurmd("node2")
    job = submit(up, tmp_path, tasks=4)
    found = job.wait(120)
    assert (found["stage"], found["code"]) == ("done", 0), found["trouble"]
    assert found["hosts"] == ["node1", "node3"] and found["attempt"] > 1


def test_a_job_of_nobody_is_cancelled(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    """The Slurm job has this coordinator's mark and no attempt; others' jobs are left alone."""
    up.start(*START)
    run(up, "submit", "--wait", "--", "true")
    comment = f"tenbin:{json.loads((up.home / 'slurm.json').read_text())['name']}:1"
    held = ("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true")
    stray, other = (
        lab.call(*held, f"--comment={words}").strip() for words in (f"{comment}:9", f"x{comment}:9")
    )
    up.until(lambda: lab.call("squeue", "-h", "-t", "all", "-j", stray, "-o", "%T").strip() == "CANCELLED")
    assert lab.call("squeue", "-h", "-j", other, "-o", "%T").strip() == "PENDING"


def test_whose_number_it_is(lab: SlurmLab) -> None:
    number = lab.call("sbatch", "--parsable", "--hold", "--comment=tenbin:a:1:1", "--wrap", "true")
    slurm = Slurm()
    assert slurm.ours(int(number), "tenbin:a:1:1")
    assert not slurm.ours(int(number), "tenbin:a:1:2") and not slurm.ours(999999, "tenbin:a:1:1")
