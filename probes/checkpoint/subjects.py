"""Devices that a checkpoint probe measures: found, started, told apart from their twins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psutil

from probes.checkpoint.device_process import START_S, DeviceProcess, Failure, ForkServer
from probes.opencl.devices import may_have_twin
from probes.run import Run
from profiles.inventory import OpenCLDevice
from profiles.records import MB


@dataclass
class CheckpointSubject:
    """A device, and the process that holds data on the device."""

    record: OpenCLDevice
    costs_of: str  # the device whose costs it shares: itself, or its identical twin
    process: DeviceProcess
    room_mb: float
    digests: dict[int, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def measured(self) -> bool:
        """True if the device is measured by itself, and not only as the end of a migration."""
        return self.costs_of == self.key

    def close(self) -> None:
        self.process.close()


def find_devices(run: Run, fork_server: ForkServer) -> list[OpenCLDevice]:
    """List the devices to measure; a lone PoCL device gets a logical twin, so that migration has two ends.

    Raises:
        Unavailable: there is no device.
    """
    with fork_server.fork() as process:
        answer = process.call("devices", timeout_s=START_S)
    for text in answer["overlooked"]:
        library, _, how = text.partition(": ")
        run.absent(f"devices of {library.split()[0]}", library, how)
    for platform, keys in answer["duplicates"].items():
        text = f"the platform '{platform}' is there twice ({', '.join(keys)}): one driver installed twice"
        run.absent(f"{keys[-1]} by itself", text, "remove one of the two drivers")
    found: list[OpenCLDevice] = answer["devices"]
    if not may_have_twin(found):
        return found
    driver = found[0].name.split("-")[0]  # "pthread" up to PoCL 3, "cpu" later
    fork_server.environment["POCL_DEVICES"] = f"{driver} {driver}"
    with fork_server.fork() as process:
        try:
            pair: list[OpenCLDevice] = process.call("devices", timeout_s=START_S)["devices"]
        except Failure:  # this PoCL does not take the setting
            pair = []
    if [device.name for device in pair] == [found[0].name] * 2:
        return pair
    del fork_server.environment["POCL_DEVICES"]
    return found


def cache_environment(folder: Path) -> dict[str, str]:
    """Set variables that keep the compiler caches in ``folder`` (created): PoCL, NVIDIA, Mesa, Intel."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "NEO_CACHE_DIR")
    return dict.fromkeys(names, str(folder))


def start(
    run: Run, fork_server: ForkServer, record: OpenCLDevice, earlier: list[CheckpointSubject]
) -> CheckpointSubject | None:
    """Open a session with a device; None, and the reason reported, where driver or compiler fail."""
    key = record.key
    twins = (s.costs_of for s in earlier if s.record.is_like(record))
    costs_of = next(twins, key)
    process = fork_server.fork(key)
    try:
        opened = process.call("open", key, timeout_s=START_S)
    except Failure as failure:
        process.close()
        remedy = "another driver may work: 'tenbin doctor' lists those found"
        run.absent(key, f"{record.name} cannot be used ({failure})", remedy)
        return None
    if costs_of == key:
        run.sample(kind="phase", phase="context", device=key, seconds=opened["context_s"], repetition=0)
        run.sample(kind="compile", cache="cold", device=key, seconds=opened["compile_s"], repetition=0)
    elif "POCL_DEVICES" not in fork_server.environment:
        run.absent(f"costs of {key} by itself", f"it is identical to {costs_of}, whose costs stand for both")
    return CheckpointSubject(record, costs_of, process, _room_mb(record))


def _room_mb(record: OpenCLDevice) -> float:
    """Choose the data on a device so that a second process can restart there, with some left for others."""
    room = record.global_memory_mb / 2.5
    if record.kind == "cpu":
        room = min(room, psutil.virtual_memory().available / MB / 5)
    return room
