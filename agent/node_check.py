"""Checks of a node: short slices of the probes, and what of the machine differs from its profile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from agent.inventory import Roots, fields, gather, link_name, number, read
from agent.measured_node import Watch, node_lock, with_storage
from agent.node_profile.identity import amounts_of, deciding_facts, node_kind
from agent.node_profile.probe_process import run_child
from probes.registry import BATTERY, CHECKS, DEVICES
from probes.run import Event
from profiles.checks.check import Check, CheckConditions, CheckedDevice, Consumer, stamp
from profiles.checks.figures import cpu_share, figures
from profiles.records import Absent, Inventory, Settings

# -- the check, without its verdict, which ``profiles.checks.verdict`` gives -------------------------------


LATEST_S = {BATTERY: 28.0, DEVICES: 120.0}  # after which they are stopped, however long they prepare

Tell = Callable[[str], None]


def make_check(
    settings: Settings, profile: str | None, tell: Tell = lambda doing: None, quiet: str = ""
) -> Check:
    """Check this node: without verdict yet.

    Args:
        settings: quick or not, storage folders (the first is measured), hosts, seed; ``only`` some parts
            (``CHECKS``), and of devices only some, by their labels.
        profile: id of the node's last profile.
        quiet: who was asked for a quiet moment, and the answer.

    Raises:
        Busy: another check or profile is measuring this node.
    """
    events, settings = _ProbeEvents(), with_storage(settings)
    with node_lock():
        created = datetime.now(UTC)
        tell("what the machine is")
        inventory = gather(settings)
        facts, amounts = facts_of(inventory, settings)
        tell("how fast it is")
        watch = CheckWatch.begin(settings.sysfs)
        for probe, entry in CHECKS.items():
            if settings.only and probe not in settings.only:
                continue
            update = {"budget_s": entry.quick_s if settings.quick else entry.full_s}
            ended = run_child(probe, settings.model_copy(update=update), events.take, LATEST_S[probe])
            if ended.interrupted:
                raise KeyboardInterrupt
            if ended.trouble:
                reason = f"the slices {ended.trouble} while at: {events.doing}"
                events.absent.append(
                    Absent(probe=probe, what="part of the check", reason=reason, failed=True)
                )
        conditions = watch.ended(quiet)
    share, names = cpu_share(events.rows), {device.device: device.name for device in events.devices}
    return Check(
        id=stamp(created),
        node=inventory.hostname,
        created=created,
        tenbin_version=version("tenbin"),
        quick=settings.quick,
        profile=profile,
        kind=node_kind(inventory).key,
        figures=tuple(
            figure.model_copy(update={"note": names.get(figure.labels.get("device", ""), figure.note)})
            for figure in figures(events.rows)
        ),
        devices=tuple(events.devices),
        facts=facts,
        amounts=amounts,
        conditions=conditions.model_copy(
            update={"cpu_share_ratio": None if share is None else round(share, 4)}
        ),
        absent=(*events.absent, *_not_reached(inventory)),
    )


def _not_reached(inventory: Inventory) -> Iterator[Absent]:
    """Say that no GPU is measured where only CUDA reaches them, and what helps."""
    if inventory.gpus and not any(device.kind == "gpu" for device in inventory.opencl):
        known = (missing.remedy for missing in inventory.missing if missing.what.startswith("opencl"))
        remedy = next(filter(None, known), "install the OpenCL library of the GPU's driver")
        yield Absent(
            probe=DEVICES, what="speed of GPUs", reason="no OpenCL driver reaches them", remedy=remedy
        )


@dataclass
class _ProbeEvents:
    """The events of the processes that measure, so far."""

    rows: list[dict[str, object]] = field(default_factory=list)
    devices: list[CheckedDevice] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)
    doing: str = "starting"

    def take(self, event: Event) -> None:
        if event["event"] == "sample" and event["row"]["quantity"] == "device":
            self.devices.append(
                CheckedDevice(**{name: event["row"][name] for name in CheckedDevice.model_fields})
            )
        elif event["event"] == "sample":
            self.rows.append(event["row"])
        elif event["event"] == "absent":
            self.absent.append(Absent(**event["absent"]))
        else:
            self.doing = event["doing"]


# -- facts that decide the machine's speed: of the fingerprint, and others ---------------------------------


PCI_CLASSES = {"0x01": "storage", "0x02": "network", "0x03": "GPU", "0x12": "accelerator"}
PLAIN_QUEUES = {"noqueue", "mq", "fq", "fq_codel", "pfifo_fast", "pfifo"}
TOOL_S = 2.0


def facts_of(inventory: Inventory, settings: Settings) -> tuple[dict[str, str], dict[str, float]]:
    """List the facts by name, and how much there is of those that are amounts.

    What this machine does not tell is left out.
    """
    roots = Roots.of(settings)
    links = list(_links(roots))
    facts: dict[str, str | None] = {
        **deciding_facts(inventory),
        **{f"cap of {zone.name}": f"{zone.cap_w:g} W" for zone in inventory.power if zone.cap_w is not None},
        **{f"cap of GPU {g.index}": f"{g.power_limit_w:g} W" for g in inventory.gpus if g.power_limit_w},
        **_firmware(roots),
        **{name: f"x{width} ({what})" for name, width, what in links},
        **dict(_queues()),
    }
    limits = inventory.limits
    facts |= {
        "clock source": inventory.tuning.clock_source,
        "CPU quota": None if limits.quota_cores is None else f"{limits.quota_cores:g} processors",
        "memory limit": None if limits.memory_mb is None else f"{limits.memory_mb:.0f} MB",
        "CPUs allowed": None if limits.threads is None else str(limits.threads),
    }
    amounts = amounts_of(inventory) | {name: float(width) for name, width, _ in links}
    return {name: value for name, value in facts.items() if value}, amounts


def _firmware(roots: Roots) -> dict[str, str | None]:
    dmi = roots.sysfs / "class/dmi/id"
    words = [read(dmi / name) for name in ("bios_vendor", "bios_version", "bios_date")]
    return {
        "BIOS": " ".join(filter(None, words)) or None,
        "microcode": fields(read(roots.procfs / "cpuinfo")).get("microcode"),
    }


def _links(roots: Roots) -> Iterator[tuple[str, int, str]]:
    """Yield name, width and device of each PCIe link; not its speed, which falls while a device rests."""
    for device in sorted((roots.sysfs / "bus/pci/devices").glob("*")):
        kind = PCI_CLASSES.get((read(device / "class") or "")[:4])
        width = number(device / "current_link_width")
        if kind and width:
            driver = link_name(device / "driver") or "no driver"
            yield f"PCIe link {device.name}", width, f"{kind}, {driver}"


def _queues() -> Iterator[tuple[str, str]]:
    """Yield each interface whose packets are shaped (``tc``)."""
    tool = shutil.which("tc")
    if tool is None:
        return
    try:
        said = subprocess.run(
            [tool, "-j", "qdisc", "show"], capture_output=True, text=True, timeout=TOOL_S, check=False
        )
        for queue in json.loads(said.stdout or "[]"):
            if queue.get("root") and queue["kind"] not in PLAIN_QUEUES and queue.get("dev") != "lo":
                options = queue.get("options", {})
                rate = f", {options['rate'] * 8 / 1e6:g} Mbit/s" if options.get("rate") else ""
                yield f"queue of {queue['dev']}", f"{queue['kind']}{rate}"
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return


# -- who else used the machine, heat, throttling -----------------------------------------------------------


WORTH_NAMING = 0.03  # processors
MOST_NAMED = 3
SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")

Processes = dict[tuple[int, float], tuple[str, str, float]]  # pid and start -> name, user, CPU seconds


@dataclass(frozen=True)
class CheckWatch:
    """A reading of the machine at the start of a check; ``ended`` compares with the end."""

    watch: Watch
    began: float
    processes: Processes
    throttled: int | None
    sysfs: Path

    @classmethod
    def begin(cls, sysfs: Path = Path("/sys")) -> CheckWatch:
        return cls(Watch.begin("check", 0), time.monotonic(), _processes(), throttle_events(sysfs), sysfs)

    def ended(self, quiet: str = "") -> CheckConditions:
        """Return what happened since; to be called when the battery's process has been waited for."""
        condition, processes = self.watch.ended(), _processes()
        seconds, throttled = time.monotonic() - self.began, throttle_events(self.sysfs)
        count = psutil.cpu_count() or 1
        rise = None if throttled is None or self.throttled is None else throttled - self.throttled
        return CheckConditions(
            duration_s=condition.duration_s,
            steal_ratio=condition.steal_ratio,
            others_processors=round(condition.others_ratio * count, 3),
            processors=count,
            consumers=tuple(self._consumers(processes, seconds)),
            temperature_c=temperature_c(),
            throttled=rise,
            quiet=quiet,
        )

    def _consumers(self, now: Processes, seconds: float) -> list[Consumer]:
        """Find the processes that used most, also those that began meanwhile."""
        consumers = []
        for key, (name, user, cpu_s) in now.items():
            before = self.processes.get(key, ("", "", 0.0))[2]
            processors = (cpu_s - before) / seconds
            if processors >= WORTH_NAMING:
                consumers.append(Consumer(name=name, pid=key[0], user=user, processors=round(processors, 3)))
        return sorted(consumers, key=lambda consumer: -consumer.processors)[:MOST_NAMED]


def _processes() -> Processes:
    """Read the CPU time of every process but this one; those of the battery do not live so long."""
    own = os.getpid()
    processes: Processes = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != own:
                times = process.cpu_times()
                processes[process.pid, process.create_time()] = (
                    process.name(),
                    process.username(),
                    times.user + times.system,
                )
    return processes


def temperature_c() -> float | None:
    """Read the hottest sensor of the processors; None where there is none."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):
        return None
    temperatures = [
        sensor.current for name in SENSORS for sensor in sensors.get(name, ()) if sensor.current > 0
    ]
    return max(temperatures, default=None)


def throttle_events(sysfs: Path) -> int | None:
    """Count the events of thermal throttling since boot; None where the processor does not tell."""
    counters = sysfs.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = [count for path in counters if (count := number(path)) is not None]
    return sum(counts) if counts else None
