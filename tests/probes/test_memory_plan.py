"""The plan of memprobe on machines as sysfs shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.memory_plan import choose_area, plan_writings
from probes.topology import Topology, core_counts, cpu_list, free_memory_mb, kernel_bytes, read_topology
from tests.support.labs.components import require


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(
    root: Path, *, sockets: int = 1, caches: int = 1, cores: int = 2, threads: int = 1, llc: str = "32768K"
) -> Path:
    """Make a tree: ``sockets`` (a NUMA node each) x ``caches`` x ``cores`` x ``threads`` (numbered apart)."""
    system = root / "devices/system"
    n_cores = sockets * caches * cores
    put(system / "cpu/online", f"0-{n_cores * threads - 1}")
    put(system / "node/has_memory", ",".join(map(str, range(sockets))))
    for core in range(n_cores):
        siblings = [core + n_cores * t for t in range(threads)]
        first = core - core % cores
        sharing = [c + n_cores * t for c in range(first, first + cores) for t in range(threads)]
        for cpu in siblings:
            folder = system / f"cpu/cpu{cpu}"
            put(folder / "topology/thread_siblings_list", ",".join(map(str, siblings)))
            put(folder / "topology/physical_package_id", core // (cores * caches))
            for index, (level, kind, size, shared) in enumerate(
                [
                    (1, "Data", "32K", siblings),
                    (1, "Instruction", "64K", siblings),
                    (3, "Unified", llc, sharing),
                ]
            ):
                cache = folder / f"cache/index{index}"
                put(cache / "level", level)
                put(cache / "type", kind)
                put(cache / "size", size)
                put(cache / "coherency_line_size", 64)
                put(cache / "shared_cpu_list", ",".join(map(str, shared)))
    for node in range(sockets):
        mine = [
            c + n_cores * t for c in range(n_cores) if c // (cores * caches) == node for t in range(threads)
        ]
        put(system / f"node/node{node}/cpulist", ",".join(map(str, mine)))
    return root


def titles(topology: Topology, areas: int = 10_000) -> list[str]:
    return [point.title for point in plan_writings(topology, areas)[0]]


ALL = set(range(1024))


@pytest.mark.parametrize("text", ["", None, "\n", "none"])
def test_no_list_holds_nothing(text: str | None) -> None:
    assert cpu_list(text) == ()


@pytest.mark.parametrize(
    ("text", "size"),
    [("32K", 32768), ("4M", 4 * 2**20), ("1G", 2**30), ("65536k", 2**26), ("512", 512), ("", 0), (None, 0)],
)
def test_sizes_are_powers_of_1024(text: str | None, size: int) -> None:
    assert kernel_bytes(text) == size


def test_this_machine_as_lscpu_sees_it() -> None:
    require(shutil.which("lscpu"), "lscpu (util-linux)")
    allowed = os.sched_getaffinity(0)
    topology = read_topology(Path("/sys"), allowed)
    out = subprocess.run(
        ["lscpu", "-p=CPU,CORE,SOCKET,NODE"], capture_output=True, text=True, check=True
    ).stdout
    rows = [
        tuple(int(field or 0) for field in line.split(",")) for line in out.splitlines() if line[0] != "#"
    ]
    rows = [row for row in rows if row[0] in allowed]
    assert {cpu.index for cpu in topology.cpus} == {row[0] for row in rows}
    assert len(topology.cores) == len({row[1] for row in rows})
    assert len({cpu.package for cpu in topology.cpus}) == len({row[2] for row in rows})
    assert {cpu.index: cpu.node for cpu in topology.cpus} == {row[0]: row[3] for row in rows}


def test_two_sockets_with_smt_and_split_caches(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, caches=2, cores=4, threads=2), ALL)
    assert [cpu.index for cpu in topology.cores] == list(range(16))
    assert [cpu.index for cpu in topology.cores_of(1)] == list(range(8, 16))
    assert (topology.llc_mb, topology.line_bytes, topology.memory_nodes) == (32, 64, (0, 1))
    points, missing = plan_writings(topology, 10_000)
    assert missing == []
    local = [p.labels["cores"] for p in points if p.labels.get("numa") == "local"]
    assert local == [1, 2, 4, 8, 16]
    pairs = {p.labels["pair_kind"]: p.labels["cpus"] for p in points if p.labels["kind"] == "pair"}
    assert pairs == {"smt": "0,16", "same-cache": "0,1", "other-cache": "0,4", "other-socket": "0,8"}
    between = [(p.labels["numa"], p.labels["cores"]) for p in points if "->" in p.labels.get("numa", "")]
    assert sorted(between) == sorted((f"{a}->{b}", n) for a in (0, 1) for b in (0, 1) for n in (1, 8))


def test_remote_memory_is_touched_on_its_node_and_checked(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, cores=2), ALL)
    [remote] = [
        p
        for p in plan_writings(topology, 100)[0]
        if p.labels.get("numa") == "0->1" and p.labels["cores"] == 2
    ]
    assert [(s.core, s.node, s.touch_core, s.check) for s in remote.windows[0].spots] == [
        (0, 1, 2, True),
        (1, 1, 2, True),
    ]
    [local] = [
        p
        for p in plan_writings(topology, 100)[0]
        if p.labels.get("numa") == "local" and p.labels["cores"] == 4
    ]
    assert [(s.core, s.node, s.touch_core) for s in local.windows[0].spots] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 2),
        (3, 1, 3),
    ]


def test_a_pair_is_measured_alone_and_then_beside(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path), ALL)
    [pair] = [p for p in plan_writings(topology, 10)[0] if p.labels["kind"] == "pair"]
    alone, beside = pair.windows
    assert alone.labels == {"condition": "alone"} and alone.beside is None
    assert beside.labels == {"condition": "beside"} and beside.beside is not None and beside.beside.core == 1
    assert alone.spots == beside.spots


def test_a_single_core_has_no_pairs(tmp_path: Path) -> None:
    points, missing = plan_writings(read_topology(machine(tmp_path, cores=1), ALL), 10)
    assert [p.title for p in points] == ["bandwidth of 1 core, local memory"]
    assert [m.what for m in missing] == ["memory interference between cores", "remote memory bandwidth"]


def test_only_the_allowed_cpus_are_used(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, cores=4), {1, 2, 5})
    assert [cpu.index for cpu in topology.cpus] == [1, 2, 5]
    assert read_topology(tmp_path, {99}).cpus == ()


def test_a_node_none_of_whose_cpus_we_may_use(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, cores=2), {0, 1})
    points, missing = plan_writings(topology, 100)
    assert not any("->" in p.labels.get("numa", "") for p in points)
    assert [m.what for m in missing] == ["memory bandwidth to NUMA node 1"]


def test_a_sysfs_that_shows_next_to_nothing(tmp_path: Path) -> None:
    put(tmp_path / "devices/system/cpu/online", "0-3")
    topology = read_topology(tmp_path, ALL)
    assert len(topology.cores) == 4 and topology.llc_mb is None and topology.memory_nodes == (0,)
    area_mb, missing = choose_area(topology, 8000)
    assert area_mb == 256 and "64 MB assumed" in missing[0].reason
    assert titles(topology)[-1] == "CPU 0 beside CPU 1 (same-socket)"


@pytest.mark.parametrize(
    ("free_mb", "area_mb", "says"),
    [(1000, 128, []), (128, 128, []), (100, 100, ["memory beyond the cache"]), (60, 0, ["memory bandwidth"])],
)
def test_the_area_is_four_caches_or_what_memory_allows(
    tmp_path: Path, free_mb: float, area_mb: float, says: list[str]
) -> None:
    topology = read_topology(machine(tmp_path), ALL)
    chosen, missing = choose_area(topology, free_mb)
    assert chosen == area_mb
    assert [m.what[: len(s)] for m, s in zip(missing, says, strict=True)] == says


def test_points_beyond_the_memory_are_named(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, cores=4), ALL)
    points, missing = plan_writings(topology, 4)
    assert len(set().union(*(p.spots for p in points))) <= 4
    assert [p.labels["cores"] for p in points if p.labels.get("numa") == "local"] == [1, 2, 4]
    assert "bandwidth of 8 cores, local memory" in missing[-1].what and "4 areas" in missing[-1].reason


@given(st.integers(1, 5000))
def test_core_counts_span_one_to_all(n: int) -> None:
    counts = core_counts(n)
    assert counts[0] == 1 and counts[-1] == n and len(counts) <= 8
    assert counts == sorted(set(counts))


def test_free_memory_without_limits_is_what_psutil_says(tmp_path: Path) -> None:
    put(tmp_path / "meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable: 2048000 kB")
    assert free_memory_mb(tmp_path, tmp_path) == 2000


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_limits_memory_also_from_above(tmp_path: Path, version: int) -> None:
    put(tmp_path / "meminfo", "MemAvailable: 20480000 kB")
    if version == 2:
        base, limit, usage, cache = tmp_path / "fs/cgroup", "memory.max", "memory.current", "inactive_file"
        put(tmp_path / "self/cgroup", "0::/slurm/job_1")
    else:
        base, limit, usage = tmp_path / "fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        cache = "total_inactive_file"
        put(tmp_path / "self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/slurm/job_1\n1:cpu:/")
    put(base / "slurm/job_1" / limit, "max" if version == 2 else 9223372036854771712)
    put(base / "slurm" / limit, 1000 * 2**20)
    put(base / "slurm" / usage, 300 * 2**20)
    put(base / "slurm/memory.stat", f"anon 5\n{cache} {100 * 2**20}")
    assert free_memory_mb(tmp_path, tmp_path) == 800
