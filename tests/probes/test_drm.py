"""GPUs of AMD and Intel, and their processes, read from trees like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.gpus import DrmWatch
from probes.drm import Client, address, clients, gpus

AMD = """\
pos:	0
flags:	02100002
drm-driver:	amdgpu
drm-client-id:	7
drm-pdev:	0000:c1:00.0
pasid:	32770
drm-total-vram:	2097152 KiB
drm-shared-vram:	0
drm-resident-vram:	1048576 KiB
drm-memory-vram:	1048576 KiB
drm-memory-gtt: 	14 KiB
drm-engine-gfx:	1500000000 ns
drm-engine-compute:	3000000000 ns
drm-engine-capacity-compute:	2
"""
OLD_AMD = "drm-pdev:\t0000:c1:00.0\ndrm-client-id:\t8\ndrm-memory-vram:\t512 KiB\ndrm-engine-gfx:\t0 ns\n"
I915 = """\
drm-driver: i915
drm-pdev:   0000:03:00.0
drm-client-id: 21
drm-total-system0: 129 MiB
drm-total-local0: 64 MiB
drm-resident-local0: 48 MiB
drm-engine-render: 25662044495 ns
drm-engine-video: 0 ns
drm-engine-capacity-video: 2
"""
XE = """\
drm-driver:	xe
drm-client-id:	3
drm-pdev:	0000:04:00.0
drm-total-vram0:	23992 KiB
drm-resident-vram0:	22216 KiB
drm-cycles-rcs:	28257900
drm-total-cycles-rcs:	7655183225
drm-cycles-ccs:	4000
drm-total-cycles-ccs:	7655183225
"""


def write(folder: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


def card(root: Path, number: int, bus: str, **files: object) -> Path:
    device = root / "sys/devices/pci0000:00" / bus
    write(device, files)
    (device / f"drm/renderD{128 + number}").mkdir(parents=True)
    folder = root / f"sys/class/drm/card{number}"
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(device)
    return folder


def opens(root: Path, pid: int, text: str, *, descriptor: int, render: int) -> None:
    process = root / f"proc/{pid}"
    write(process, {f"fdinfo/{descriptor}": text})
    (process / "fd").mkdir(exist_ok=True)
    (process / f"fd/{descriptor}").symlink_to(root / f"dev/dri/renderD{render}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a machine with two GPUs of AMD, two of Intel, the parts of two processors, and others' cards."""
    mi210 = {"product_name": "AMD Instinct MI210", "unique_id": "b6f3d1a2c4e5f678", "numa_node": 1}
    mi210 |= {"mem_info_vram_total": 64 << 30, "mem_info_vram_used": 2 << 30, "gpu_busy_percent": 37}
    folder = card(tmp_path, 0, "0000:c1:00.0", vendor="0x1002", device="0x740f", **mi210)
    write(folder / "device", {"hwmon/hwmon4/power1_average": 90_000_000})
    older = {"vendor": "0x1002", "device": "0x731f", "product_name": "", "numa_node": -1}
    card(tmp_path, 1, "0000:c4:00.0", **older, mem_info_vram_total=8 << 30)
    card(tmp_path, 2, "0000:c0:00.0", vendor="0x1002", device="0x164e", mem_info_vram_total=512 << 20)
    card(tmp_path, 3, "0000:00:02.0", vendor="0x8086", device="0xa780")
    write(card(tmp_path, 4, "0000:03:00.0", vendor="0x8086", device="0x56c0"), {"lmem_total_bytes": 16 << 30})
    region = "0x000000000000 0x000000000000 0x000000000000\n" * 2 + "0x380000000000 0x3803ffffffff 0x14220c"
    card(tmp_path, 5, "0000:04:00.0", vendor="0x8086", device="0xe20b", resource=region)
    card(tmp_path, 6, "0000:05:00.0", vendor="0x1a03")
    card(tmp_path, 7, "0000:06:00.0", vendor="0x10de")
    (tmp_path / "sys/class/drm/card0-DP-1").mkdir()
    return tmp_path


def test_gpus_that_are_no_part_of_a_processor(root: Path) -> None:
    listed = [(gpu.bus, gpu.name, gpu.memory_bytes >> 30, gpu.index, gpu.numa_node) for gpu in gpus(root)]
    assert listed == [
        ("0000:03:00.0", "Intel 0x56c0", 16, 1, None),
        ("0000:04:00.0", "Intel 0xe20b", 16, 2, None),
        ("0000:c1:00.0", "AMD Instinct MI210", 64, 1, 1),
        ("0000:c4:00.0", "AMD 0x731f", 8, 2, None),
    ]
    assert gpus(root)[2].file == f"{root}/dev/dri/renderD128"
    assert gpus(root / "nothing") == []


def test_what_the_kernel_tells_of_their_processes(root: Path) -> None:
    opens(root, 100, AMD, descriptor=5, render=128)
    opens(root, 100, AMD, descriptor=6, render=128)  # the same, copied
    opens(root, 100, I915, descriptor=7, render=132)
    opens(root, 101, OLD_AMD, descriptor=3, render=128)
    opens(root, 102, XE, descriptor=9, render=133)
    write(root / "proc/103", {"fdinfo/1": "pos:\t0"})
    users = clients(root)
    assert {bus: sorted(pids) for bus, pids in users.items()} == {
        "0000:c1:00.0": [100, 101],
        "0000:03:00.0": [100],
        "0000:04:00.0": [102],
    }
    amd, xe = users["0000:c1:00.0"][100], users["0000:04:00.0"][102]
    assert amd == Client(1 << 30, {"gfx": 1_500_000_000, "compute": 3_000_000_000})
    assert users["0000:c1:00.0"][101].memory_bytes == 512 << 10
    assert users["0000:03:00.0"][100] == Client(48 << 20, {"render": 25662044495, "video": 0})
    assert xe == Client(22216 << 10, {"rcs": 28257900, "ccs": 4000}, {"rcs": 7655183225, "ccs": 7655183225})


def test_shares_of_the_time_between_two_looks() -> None:
    before, now = Client(1, {"gfx": 100, "compute": 0}), Client(1, {"gfx": 150, "compute": 300, "new": 9})
    assert now.share(before, 1000.0) == 0.3 and now.share(None, 1000.0) == 0.0
    assert now.share(before, 100.0) == 1.0 and now.share(before, 0.0) == 0.0
    cycles = Client(1, {"rcs": 40}, {"rcs": 400})
    assert cycles.share(Client(1, {"rcs": 30}, {"rcs": 380}), 1e9) == 0.5


def test_use_and_holders(root: Path, tmp_path: Path) -> None:
    """Who has opened a GPU alone does not hold it: AMD's library opens all."""
    opens(root, 100, AMD, descriptor=5, render=128)
    opens(root, 101, OLD_AMD, descriptor=3, render=128)
    opens(root, 102, XE, descriptor=9, render=133)
    watch = DrmWatch(root, tmp_path / "proc")
    watch.look()
    (root / "proc/102/fdinfo/9").write_text(
        XE.replace("28257900", "28258900").replace("7655183225", "7655185225")
    )
    _, battlemage, instinct, older = watch.look()
    assert (instinct.uuid, instinct.seen_as) == ("GPU-b6f3d1a2c4e5f678",) * 2
    assert (older.uuid, older.seen_as) == ("PCI-0000:c4:00.0", "2")
    assert (instinct.utilisation, instinct.power_w, instinct.used_mb) == (0.37, 90.0, (2 << 30) / 1e6)
    assert [holder.pid for holder in instinct.holders] == [100] and older.holders == ()
    (holder,) = battlemage.holders
    assert (holder.pid, holder.utilisation, battlemage.utilisation) == (102, 0.5, 0.5)
    assert battlemage.used_mb == (22216 << 10) / 1e6


def test_the_domain_of_a_gpu_is_that_of_sysfs(tmp_path: Path) -> None:
    assert address(tmp_path, "c1:00.0") == "0000:c1:00.0"  # nothing is known
    card(tmp_path, 0, "0000:03:00.0")
    card(tmp_path, 1, "0002:c1:00.0")
    assert address(tmp_path, "c1:00.0") == "0002:c1:00.0"
    assert address(tmp_path, "03:00.0") == "0000:03:00.0"
    card(tmp_path, 2, "0001:c1:00.0")
    assert address(tmp_path, "c1:00.0") == ""  # which of both it is cannot be known
