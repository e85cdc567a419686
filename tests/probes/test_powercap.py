"""The powercap reader, on trees written by hand after real machines, good and bad."""

from __future__ import annotations

from pathlib import Path

from probes.powercap import capped, metered, platform, zones

LIMITS = {
    "constraint_0_name": "long_term",
    "constraint_0_power_limit_uw": "95000000",
    "constraint_0_time_window_us": "999424",
    "constraint_0_max_power_uw": "95000000",
    "constraint_1_name": "short_term",
    "constraint_1_power_limit_uw": "118750000",
    "constraint_1_time_window_us": "2440",
    "constraint_1_max_power_uw": "0",
}


def write_zone(
    sysfs: Path, folder: str, name: str, range_uj: int | None = 262143328850, **files: str
) -> Path:
    """Write a zone folder as the kernel shows it (flat, in class/powercap)."""
    path = sysfs / "class" / "powercap" / folder
    path.mkdir(parents=True)
    content = {"name": name, "energy_uj": "1000000", "enabled": "1"} | files
    if range_uj is not None:
        content["max_energy_range_uj"] = str(range_uj)
    for file, text in content.items():
        (path / file).write_text(text + "\n")
    return path


def test_no_powercap_at_all(tmp_path: Path) -> None:
    assert zones(tmp_path) == []
    (tmp_path / "class" / "powercap").mkdir(parents=True)
    assert zones(tmp_path) == []


def test_client_processor(tmp_path: Path) -> None:
    (tmp_path / "class/powercap/intel-rapl").mkdir(parents=True)  # the control type itself is no zone
    (tmp_path / "class/powercap/dtpm").mkdir()
    write_zone(tmp_path, "intel-rapl:1", "psys")
    write_zone(tmp_path, "intel-rapl:0", "package-0", **LIMITS)
    write_zone(tmp_path, "intel-rapl:0:0", "core")
    write_zone(tmp_path, "intel-rapl:0:1", "uncore")
    write_zone(tmp_path, "intel-rapl:0:2", "dram")
    write_zone(tmp_path, "intel-rapl-mmio:0", "package-0", **LIMITS)
    tree = zones(tmp_path)
    assert [z.key for z in tree] == [
        "package-0",
        "package-0/core",
        "package-0/uncore",
        "package-0/dram",
        "psys",
        "package-0@intel-rapl-mmio",
    ]
    assert [z.key for z in metered(tree)] == ["package-0", "package-0/dram"]
    assert [z.key for z in capped(tree)] == ["package-0"]
    psys = platform(tree)
    assert psys is not None and psys.key == "psys"
    package = tree[0]
    assert (package.cap_w, package.cap_max_w, package.enabled) == (95.0, 95.0, True)
    assert package.energy_range_uj == 262143328850
    long_term, short_term = package.constraints
    assert long_term.window_s == 0.999424
    assert (short_term.limit_w, short_term.max_w) == (118.75, None)  # a firmware's 0 means unknown
    assert tree[3].parent == "package-0" and tree[3].cap_w is None


def test_numbers_do_not_name_zones(tmp_path: Path) -> None:
    """The driver may find package 1 first."""
    write_zone(tmp_path, "intel-rapl:0", "package-1", **LIMITS)
    write_zone(tmp_path, "intel-rapl:0:0", "dram")
    write_zone(tmp_path, "intel-rapl:10", "package-0", **LIMITS)
    write_zone(tmp_path, "intel-rapl:10:0", "dram")
    assert {z.key: z.path.name for z in metered(zones(tmp_path))} == {
        "package-1": "intel-rapl:0",
        "package-1/dram": "intel-rapl:0:0",
        "package-0": "intel-rapl:10",
        "package-0/dram": "intel-rapl:10:0",
    }


def test_two_die_packages(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0-die-0", **LIMITS)
    write_zone(tmp_path, "intel-rapl:1", "package-0-die-1", **LIMITS)
    assert [z.key for z in capped(zones(tmp_path))] == ["package-0-die-0", "package-0-die-1"]


def test_two_zones_of_one_name_stay_apart(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0")
    write_zone(tmp_path, "intel-rapl:1", "package-0")
    assert [z.key for z in metered(zones(tmp_path))] == ["package-0", "package-0#2"]


def test_amd_has_energy_and_no_cap(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl:0", "package-0", range_uj=65532610987)
    write_zone(tmp_path, "intel-rapl:0:0", "core", range_uj=65532610987)
    tree = zones(tmp_path)
    assert [z.key for z in metered(tree)] == ["package-0"]
    assert capped(tree) == []
    assert (tree[0].cap_w, tree[0].writable, tree[0].energy_range_uj) == (None, False, 65532610987)


def test_package_seen_through_mmio_only(tmp_path: Path) -> None:
    write_zone(tmp_path, "intel-rapl-mmio:0", "package-0", **LIMITS)
    assert [z.key for z in metered(zones(tmp_path))] == ["package-0@intel-rapl-mmio"]


def test_bad_files(tmp_path: Path) -> None:
    """Missing range, no number, a folder in place of a file, a zone without a name: nothing is invented."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", range_uj=None, energy_uj="N/A", enabled="")
    path = write_zone(tmp_path, "intel-rapl:1", "package-1", **LIMITS | {"constraint_0_power_limit_uw": "?"})
    (path / "energy_uj").unlink()
    (path / "energy_uj").mkdir()
    (write_zone(tmp_path, "intel-rapl:2", "package-2") / "name").unlink()
    (tmp_path / "class/powercap/intel-rapl:3").write_text("no folder")
    first, second = zones(tmp_path)
    assert (first.energy_range_uj, first.readable, first.enabled) == (None, False, None)
    assert (second.readable, second.cap_w) == (False, None)
    assert capped([first, second]) == []
