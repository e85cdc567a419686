"""The inventory of this node. Taking it changes nothing, and no broken part stops it.

Everything under ``/sys`` and ``/proc`` is read from the roots in the settings, so that a captured or made-up
machine can be examined as if it were this one. Drivers that might hang or abort are asked in processes of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.inventory.cpu import read_cpu
from agent.inventory.files import Roots
from agent.inventory.isolated import ask
from agent.inventory.memory import read_limits, read_memory_mb, read_numa
from agent.inventory.network import read_network
from agent.inventory.storage import read_storage
from agent.inventory.system import (
    read_container,
    read_distribution,
    read_hostname,
    read_kernel,
    read_tuning,
    read_virtualisation,
)
from probes.power.powercap import zones
from profiles.errors import Unavailable, UserError
from profiles.inventory import Inventory, Missing, Mpi, PowerZone, Storage
from profiles.records import Settings


def gather(settings: Settings) -> Inventory:
    """Take the inventory of this node; ``missing`` has what could not be found out, with its reason.

    The storage under each folder of ``settings.storage`` is examined. Takes about a second, most of it
    waiting for drivers.
    """
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, "opencl"), pool.submit(ask, "gpu", str(settings.sysfs))]
        looked_for = pool.submit(_mpi)
        machine = read_machine(settings)
        opencl, gpu = (answer.result() for answer in asked)
        mpi, no_mpi = looked_for.result()
    drivers = {
        "opencl": opencl.opencl,
        "gpus": gpu.gpus,
        "mpi": mpi,
        "missing": (*machine.missing, *opencl.missing, *gpu.missing, *no_mpi),
    }
    return machine.model_copy(update=drivers)


def read_machine(settings: Settings) -> Inventory:
    """Read the part of the inventory that files tell: all but OpenCL devices, GPUs and MPI."""
    roots = Roots.of(settings)
    cpu = read_cpu(roots)
    memory_mb = read_memory_mb(roots)
    storage, no_storage = _storage(roots, settings.storage)
    return Inventory(
        hostname=read_hostname(roots),
        kernel=read_kernel(roots),
        distribution=read_distribution(roots),
        virtualisation=read_virtualisation(roots),
        container=read_container(roots),
        cpu=cpu,
        limits=read_limits(roots, cpu.threads, memory_mb),
        tuning=read_tuning(roots),
        numa=read_numa(roots),
        memory_mb=memory_mb,
        storage=storage,
        network=read_network(roots),
        power=_power(roots),
        missing=no_storage,
    )


def _storage(roots: Roots, folders: Sequence[Path]) -> tuple[tuple[Storage, ...], tuple[Missing, ...]]:
    found, missing = [], []
    for folder in folders:
        try:
            found.append(read_storage(roots, folder))
        except Unavailable as error:
            missing.append(Missing(what=f"storage {folder}", reason=error.what, remedy=error.remedy))
    return tuple(found), tuple(missing)


def _mpi() -> tuple[Mpi | None, tuple[Missing, ...]]:
    from probes.mpi.detection import find_mpi  # late, because what files tell needs no start of ranks

    try:
        found = find_mpi()
    except UserError as error:
        return None, (Missing(what="mpi", reason=error.what, remedy=error.remedy),)
    return Mpi(library=found.library, launcher=str(found.launcher)), ()


def _power(roots: Roots) -> tuple[PowerZone, ...]:
    return tuple(
        PowerZone(
            name=zone.key,
            path=str(zone.path),
            cap_w=zone.cap_w,
            cap_max_w=zone.cap_max_w,
            readable=zone.readable,
            writable=zone.writable,
        )
        for zone in zones(roots.sysfs)
    )
