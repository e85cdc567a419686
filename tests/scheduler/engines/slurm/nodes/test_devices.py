"""OpenCL jobs on the nodes' devices, which move between nodes: real PoCL on each."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from profiles.records import OpenCLDevice
from scheduler.engines.slurm.discovery import ListedDevice, classes
from scheduler.engines.slurm.node_inventory import ClusterNode, Devices, NodeInventory, Slot
from scheduler.engines.slurm.slurm_commands import parse_nodes as parsed
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import CORE
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement
from tests.scheduler.engines.slurm.test_engine import START, run
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.paths import EXAMPLES
from tests.support.programs import opencl_devices
from tests.support.records import make_device

STENCIL = EXAMPLES / "stencil.py"
NEEDS = {"checkpoint_signal": int(signal.SIGURG), "folder": str(STENCIL.parents[1])}


@pytest.fixture
def pocl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(len(opencl_devices()) == 1, "one OpenCL device (PoCL)")
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))


def stencil(steps: int) -> list[str]:
    return [sys.executable, str(STENCIL), "--cells", "256", "--steps", str(steps)]


def test_each_job_has_a_device_and_its_share_of_cores(up: Up, lab: SlurmLab, pocl: None) -> None:
    """A node that is drained gives no device; one more job than devices waits."""
    up.start(*START, "--devices", "--policy", "fcfs")
    told = {row["name"] for row in up.client.call("GET", "/nodes")}
    assert told == {f"pocl-0@{node}" for node in lab.nodes} | set(lab.nodes)
    jobs = [
        up.client.submit(["sh", "-c", "hostname; echo $TENBIN_DEVICE; sleep 2"], expect_s={"": 9.0})
        for _ in range(4)
    ]
    assert [job.result(60) for job in jobs] == [0] * 4
    said = [up.client.output(job.id).decode().split() for job in jobs]
    assert {node for node, _ in said[:3]} == set(lab.nodes) and {device for _, device in said} == {"0"}
    lab.call("scontrol", "update", "nodename=node2,node3", "state=drain", "reason=service")
    up.until(lambda: "service" in run(up, "nodes"))
    jobs = [up.client.submit(["hostname"], expect_s={"": 9.0}) for _ in range(2)]
    assert [job.wait(60)["hosts"] for job in jobs] == [["node1"]] * 2
    assert "pocl-0@node1 (cpu)" in up.run("submit", "--device", "gpu", "--", "true").stderr


def test_moved_between_nodes_the_result_is_the_same(up: Up, lab: SlurmLab, pocl: None) -> None:
    """By its owner, to a class and to a node; the cost that was predicted is kept beside the measured."""
    up.start(*START, "--devices", "--policy", "fcfs")
    still = up.client.submit(stencil(60000), device="pocl-0@node3", **NEEDS)
    moved = up.client.submit(stencil(60000), device="any", **NEEDS)
    up.until(lambda: moved.info()["stage"] == "running")
    for to in ("node2", "pocl-0@node1"):
        run(up, "migrate", str(moved.id), "--to", to)
        up.until(lambda to=to: moved.info()["hosts"] == [to[-5:]] and moved.info()["stage"] == "running")  # type: ignore[misc]
    found = moved.wait(150)
    assert found["migrations"] == 2 and still.result(150) == 0
    assert up.client.output(moved.id) == up.client.output(still.id) != b""
    rows = json.loads(run(up, "program", "calibration", "--kind", "migration", "--json"))
    assert rows, rows


def device(key: str, kind: str, name: str) -> OpenCLDevice:
    return make_device(key=key, platform=key[:-2], name=name, kind=kind)


@pytest.mark.parametrize(
    ("gres", "asked"),
    [
        ("", ["", "", ""]),
        ("gpu:2", ["", "gpu:1", "gpu:1"]),
        ("gpu:x_9:2(S:0-1)", ["", "gpu:x_9:1", "gpu:x_9:1"]),
        ("gpu:x_9:1,gpu:tesla:1,shard:8", ["", "gpu:x_9:1", "gpu:1"]),
        ("gpu:x_9:1,gpu:y_1:1", ["", "gpu:x_9:1", "gpu:y_1:1"]),
        ("nic:4", ["", "", ""]),
    ],
)
def test_what_slurm_is_asked_for_with_a_device(gres: str, asked: list[str]) -> None:
    """GPUs that Slurm counts, by their type where it can be told; hidden ones are opened as the first."""
    line = "NodeName=n1 CPUTot=8 CPUAlloc=0 RealMemory=1000 State=IDLE Partitions=a Gres=%s"
    nodes = parsed(line % (gres or "(null)"))
    hosts = [ClusterNode(node.name, node.cpus, node.memory_mb) for node in nodes]
    gpus = [device("nvidia-0", "gpu", "X 9"), device("nvidia-1", "gpu", "Y-1")]
    found = {
        "n1": [
            ListedDevice(gpus[0], True),
            ListedDevice(gpus[1], True),
            ListedDevice(device("pocl-0", "cpu", "z")),
        ]
    }
    _, slots = classes(hosts, nodes, found)
    assert [slot.gres for slot in slots] == [*asked[1:], asked[0]]
    assert [slot.index for slot in slots] == [0, 0, 0]
    inventory = NodeInventory(hosts, CORE, whole=False)
    assert [Devices(slots, inventory).gres((number,)) for number in range(3)] == [slot.gres for slot in slots]


def test_devices_that_are_alike_are_a_class() -> None:
    """Of nodes with the same features and cores; a node with two such devices has two units of it."""
    line = "NodeName=n%d CPUTot=8 CPUAlloc=0 RealMemory=1000 State=IDLE Partitions=a AvailableFeatures=%s"
    nodes = parsed("\n".join(line % (n, "big" if n == 3 else "small") for n in (1, 2, 3)))
    hosts = [ClusterNode(node.name, node.cpus, node.memory_mb) for node in nodes]
    gpus = [device("amd-0", "gpu", "x"), device("amd-1", "gpu", "x")]
    cpu = device("pocl-0", "cpu", "z")
    there = {"n1": [cpu, *gpus], "n2": [cpu, gpus[0]], "n3": [cpu]}
    found = {name: [ListedDevice(one) for one in devices] for name, devices in there.items()}
    inventory = NodeInventory(hosts, CORE, whole=False)
    pools, slots = classes(hosts, nodes, found)
    assert [(pool.name, pool.units, pool.kind) for pool in pools] == [
        ("amd-0@n1", 3, "gpu"),
        ("pocl-0@n1", 2, "cpu"),
        ("pocl-0@n3", 1, "cpu"),
    ]
    assert slots[:3] == [
        Slot("amd-0@n1", 0, 1, 2, key="amd-0"),
        Slot("amd-0@n1", 0, 2, 2, key="amd-1"),
        Slot("amd-0@n1", 1, 1, 4, key="amd-0"),
    ]
    assert pools[0].names == ("n1", "n1", "n2")
    devices = Devices(slots, inventory)
    inventory.away[0] = "gone"
    assert devices.out_of_service("amd-0@n1") == 2
    one = placed(devices, 1, Placement("amd-0@n1", 1))
    assert (one.devices, one.cores) == ((2,), (8, 9, 10, 11))
    two = placed(devices, 2, Placement("amd-0@n1", 1, ((1, 1),)))
    assert (two.devices, two.cores) == ((1,), (0, 1))
    devices.free(two)
    inventory.free(two.cores)
    three = placed(devices, 3, Placement("amd-0@n1", 1))
    assert (three.devices, three.cores) == ((0,), (0, 1))


def placed(devices: Devices, number: int, placement: Placement) -> Entry:
    """Return a job that has a device of the class."""
    job = Entry(number, JobSpec(command=("true",), folder="/"), "", 0.0)
    job.devices, job.cores = devices.place(job, placement)
    return job


def test_a_parked_job_goes_on_on_its_own_device() -> None:
    """Two devices alike on two nodes: its own is given away last; it waits while that has another job."""
    hosts = [ClusterNode("n1", 4, 1000.0), ClusterNode("n2", 4, 1000.0)]
    inventory = NodeInventory(hosts, CORE, whole=False)
    devices = Devices([Slot("amd-0@n1", 0, 0, 4), Slot("amd-0@n1", 1, 0, 4)], inventory)
    place = Placement("amd-0@n1", 1)
    parked = placed(devices, 1, place)
    parked.alive = True
    devices.free(parked)
    inventory.release(parked)
    beside = placed(devices, 2, place)
    other = placed(devices, 4, place)
    assert (beside.devices, other.devices) == ((1,), (0,)) == ((1,), parked.devices)
    devices.free(beside)
    inventory.release(beside)
    assert devices.place(parked, place) == ((0,), other.cores)
    assert devices.shared(parked)
    assert not devices.shared(parked, waiting=[other.id]), "two that wait do not wait for each other"
    inventory.away[1] = "drained"
    assert devices.out_of_service("amd-0@n1") == 0, "the class has two devices, and two jobs"
    devices.free(other)
    inventory.release(other)
    assert not devices.shared(parked)
    assert placed(devices, 3, place).devices == (1,)
    assert devices.out_of_service("amd-0@n1") == 0
    parked.alive = False
    devices.free(parked)
    assert devices.out_of_service("amd-0@n1") == 0
    assert devices.place(parked, place)[0] == (0,)
