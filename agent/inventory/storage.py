"""The storage under a checkpoint folder: file system, device and its kind, room, direct I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agent.inventory.files import Roots, number, read
from probes.folders import inspect_folder
from profiles.errors import Unavailable
from profiles.inventory import Storage
from profiles.records import MB

_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.daos", "fuse.glusterfs", "fuse.juicefs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2",
    "smb3", "wekafs",
}  # fmt: skip
_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_VIRTUAL = {"virtiofs", "vboxsf", "fuse.vmhgfs-fuse"}

# Block devices by the name the kernel gives them.
_NAMES = (
    ("nvme", "nvme"),
    ("zram", "memory"),
    ("ram", "memory"),
    ("pmem", "memory"),
    ("vd", "virtual"),
    ("xvd", "virtual"),
    ("nbd", "network"),
    ("rbd", "network"),
    ("drbd", "network"),
    ("mmcblk", "ssd"),
)

# Disks that say a real interface and are something else.
_MODELS = (
    ("Elastic Block Store", "network"),
    ("nvme_card-pd", "network"),
    ("PersistentDisk", "network"),
    ("QEMU", "virtual"),
    ("VMware", "virtual"),
    ("Virtual", "virtual"),
    ("VBOX", "virtual"),
)


@dataclass(frozen=True)
class Mount:
    """A line of ``mountinfo``."""

    point: Path
    filesystem: str
    source: str
    number: str  # the device's major:minor
    options: str


def read_mounts(roots: Roots) -> list[Mount]:
    """Read the mounts that this process sees, in their order."""
    mounts = []
    for line in (read(roots.procfs / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        parts, rest = left.split(" "), right.split(" ")
        if len(parts) > 4 and len(rest) > 1:
            options = rest[2] if len(rest) > 2 else ""
            mounts.append(Mount(Path(_plain(parts[4])), rest[0], _plain(rest[1]), parts[2], options))
    return mounts


def _plain(text: str) -> str:
    r"""Replace the octal escapes of ``mountinfo``: ``\040`` is a blank."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(folder: Path, mounts: list[Mount]) -> Mount | None:
    """Find the mount of a folder: the longest path; of two on one path the later covers the earlier."""
    found = None
    for mount in mounts:
        deeper = found is None or len(mount.point.parts) >= len(found.point.parts)
        if folder.is_relative_to(mount.point) and deeper:
            found = mount
    return found


def read_storage(roots: Roots, folder: Path) -> Storage:
    """Inspect the storage under ``folder``, or under its nearest parent if the folder does not exist.

    Raises:
        Unavailable: its file system does not answer (a lost server).
    """
    try:
        seen = inspect_folder(folder)
    except Unavailable as error:
        mount = mount_of(folder.absolute(), read_mounts(roots))
        what = f"{error.what} ({mount.filesystem} from {mount.source})" if mount else error.what
        raise Unavailable(what, error.remedy) from error
    mount = mount_of(Path(seen.there), read_mounts(roots))
    block = _block(roots, mount)
    model = _model(block)
    return Storage(
        folder=str(folder),
        device=mount.source if mount else "unknown",
        filesystem=mount.filesystem if mount else "unknown",
        kind=_kind(mount, block, model),
        model=model,
        size_mb=None if seen.size_bytes is None else round(seen.size_bytes / MB, 1),
        free_mb=round(seen.free_bytes / MB, 1),
        writable=seen.writable,
        direct_io=seen.direct_io,
    )


def _block(roots: Roots, mount: Mount | None) -> Path | None:
    """Find the disk's folder in sysfs: the disk of a partition, the first disk under a stacked device."""
    if mount is None:
        return None
    # btrfs and the like show a made-up number; the name of the source still leads to the disk.
    links = [roots.sysfs / "dev/block" / mount.number]
    if mount.source.startswith("/dev/"):
        links.append(roots.sysfs / "class/block" / Path(mount.source).name)
    block = next((link.resolve() for link in links if link.exists()), None)
    for _ in range(8):  # encryption on a volume on a RAID on a partition
        if block is None:
            break
        if (block / "partition").exists():
            block = block.parent
        below = sorted((block / "slaves").glob("*"))
        if not below:
            break
        block = below[0].resolve()
    return block


def _model(block: Path | None) -> str | None:
    return None if block is None else read(block / "device/model")


def _kind(mount: Mount | None, block: Path | None, model: str | None) -> str:
    if mount is None:
        return "unknown"
    for kind, names in (("network", _NETWORK), ("memory", _MEMORY), ("virtual", _VIRTUAL)):
        if mount.filesystem in names:
            return kind
    return "unknown" if block is None else _kind_of_disk(block, model)


def _kind_of_disk(block: Path, model: str | None) -> str:
    if (read(block / "device/transport") or "pcie") not in ("pcie", "apple-nvme"):
        return "network"  # NVMe over fabrics
    for word, kind in _MODELS:
        if model and word in model:
            return kind
    for prefix, kind in _NAMES:
        if re.match(rf"{prefix}[a-z0-9]", block.name):
            return kind
    rotational = number(block / "queue/rotational")
    return {0: "ssd", 1: "hdd"}.get(-1 if rotational is None else rotational, "unknown")
