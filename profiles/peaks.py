"""Judgement of a node: peaks of such a machine, published results, and its place among nodes of its kind.

A peak is worked out from the inventory: channels of memory times their rate, cores times what each computes
in a cycle times the clock, lanes of PCI Express times their rate, the vendor's figure of a known GPU. Where a
part of that is not known, there is no peak, and the reason is said.

Sources of the tables:
- FLOP a cycle: Intel's Optimization Reference Manual; AMD's Software Optimization Guides for families 17h,
  19h, 1Ah; Arm's for Neoverse N1, V1, N2 and V2; Fujitsu's manual of A64FX's microarchitecture; gathered at
  https://stackoverflow.com/a/15657772
- channels and rates: the vendors' data sheets of each family of processors
- GPUs: NVIDIA's data sheets, https://www.nvidia.com/en-us/data-center/h200 and so on
- what was measured: beside each figure
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from profiles.card import CardFigure, main_figures
from profiles.quantities import Better, better, counted
from profiles.records import Absent, Cpu, Gpu, Inventory, Model, OpenCLDevice, Profile

# -- tables ------------------------------------------------------------------------------------------------


CHANNEL_BYTES = 8
COUNTED = "75 % is nearly all, because STREAM counts 24 of the 32 bytes that its triad moves"
UNREADABLE = "the list of modules cannot be read (as root it can, or where udev runs)"

# Vendor, family, models, double precision FLOP a cycle and core, and the vectors that they take.
_X86 = (
    ("GenuineIntel", 6, {0x2A, 0x2D, 0x3A, 0x3E}, 8, "avx"),
    ("GenuineIntel", 6, {0x3C, 0x3D, 0x3F, 0x45, 0x46, 0x47, 0x4F, 0x56}, 16, "fma"),
    ("GenuineIntel", 6, {0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6}, 16, "fma"),
    ("GenuineIntel", 6, {0x7D, 0x7E, 0x8C, 0x8D, 0xA7}, 16, "fma"),  # AVX-512 on one unit
    ("GenuineIntel", 6, {0x6A, 0x6C, 0x8F, 0xCF, 0xAD, 0xAE}, 32, "avx512f"),
    ("AuthenticAMD", 0x17, {0x01, 0x08, 0x11, 0x18, 0x20}, 8, "fma"),
    ("AuthenticAMD", 0x17, {0x31, 0x47, 0x60, 0x68, 0x71, 0x90, 0x98, 0xA0}, 16, "fma"),
    ("AuthenticAMD", 0x19, set(range(0x100)), 16, "fma"),
    ("AuthenticAMD", 0x1A, {*range(0x20), 0x44}, 32, "avx512f"),
)
_SKYLAKE_SERVER = 0x55  # one or two units for AVX-512, by the name
_ARM = {
    "ARM Neoverse-N1": 8,
    "ARM Neoverse-V1": 16,
    "ARM Neoverse-N2": 8,
    "ARM Neoverse-V2": 16,
    "Fujitsu A64FX": 32,
}

# (family, model): words of the name, channels of a socket, the highest rate in MT/s.
_SCALABLE = "Platinum|Gold|Silver|Bronze"
_CHANNELS = {
    (6, 0x6A): (_SCALABLE, 8, 3200),
    (6, 0x8F): (_SCALABLE, 8, 4800),
    (6, 0xCF): (_SCALABLE, 8, 5600),
    (0x17, 0x01): ("EPYC 7", 8, 2666),
    (0x17, 0x31): ("EPYC 7", 8, 3200),
    (0x19, 0x01): ("EPYC 7", 8, 3200),
    (0x19, 0x11): ("EPYC 9", 12, 4800),
    (0x1A, 0x02): ("EPYC 9", 12, 6400),
    (0x1A, 0x11): ("EPYC 9", 12, 6400),
}

# The driver's name of a GPU: memory bandwidth in GB/s, single precision GFLOP/s without tensor cores.
_GPUS = {
    "H200": (4800, 67_000),
    "H200 NVL": (4800, 60_000),
    "H100 80GB HBM3": (3350, 67_000),
    "H100 PCIe": (2000, 51_000),
    "H100 NVL": (3900, 60_000),
    "A100-SXM4-80GB": (2039, 19_500),
    "A100-SXM4-40GB": (1555, 19_500),
    "A100 80GB PCIe": (1935, 19_500),
    "A100-PCIE-40GB": (1555, 19_500),
    "V100-SXM2-16GB": (900, 15_700),
    "V100-SXM2-32GB": (900, 15_700),
    "V100-PCIE-16GB": (900, 14_000),
    "V100-PCIE-32GB": (900, 14_000),
    "P100-SXM2-16GB": (732, 10_600),
    "P100-PCIE-16GB": (732, 9300),
    "A30": (933, 10_300),
    "A40": (696, 37_400),
    "A10": (600, 31_200),
    "L40S": (864, 91_600),
    "L40": (864, 90_500),
    "L4": (300, 30_300),
}


class Published(NamedTuple):
    """A figure that somebody has measured and published: of a processor, with so many cores of the node."""

    processor: str  # a part of its name
    cores: int
    figure: str  # of the card
    value: float
    unit: str
    source: str


_AZURE = "learn.microsoft.com/azure/virtual-machines"
_NOCTUA = "github.com/carstenbauer/julia-dgemm-noctua"
_GRACE = "nvidia.github.io/grace-cpu-benchmarking-guide"
PUBLISHED = (
    Published("EPYC 7V73X", 120, "memory bandwidth", 330, "GB/s", f"{_AZURE}/hbv3-performance"),
    Published("EPYC 9V33X", 176, "memory bandwidth", 750, "GB/s", f"{_AZURE}/hbv4-performance"),
    Published("EPYC 9V64H", 368, "memory bandwidth", 6600, "GB/s", f"{_AZURE}/hbv5-performance"),
    Published("Neoverse-V2", 144, "memory bandwidth", 800, "GB/s", f"{_GRACE}, Grace CPU Superchip"),
    Published("EPYC 7763", 64, "arithmetic", 2033, "GFLOP/s", f"{_NOCTUA}, BLIS 0.9"),
    Published("EPYC 7763", 128, "arithmetic", 3935, "GFLOP/s", f"{_NOCTUA}, BLIS 0.9"),
    Published("Gold 6148", 20, "arithmetic", 1054, "GFLOP/s", f"{_NOCTUA}, MKL 2022"),
    Published("Gold 6148", 40, "arithmetic", 2081, "GFLOP/s", f"{_NOCTUA}, MKL 2022"),
)


# -- peaks -------------------------------------------------------------------------------------------------


class Peak(NamedTuple):
    """The most that a figure can be, and how that is worked out."""

    figure: str  # of the card, or a name of its own
    reached: float
    value: float
    unit: str
    how: str

    @property
    def sentence(self) -> str:
        """Words for people: ``79 % of 307 GB/s (8 channels x 8 B x 4800 MT/s: ...)``."""
        share = self.reached / self.value
        text = f"{100 * share:.0f} % of {float(f'{self.value:.4g}'):g} {self.unit} ({self.how})"
        if share <= MOST:
            return text
        return f"{text}: more than can be, so the peak is not this machine's, or the measurement is wrong"


MOST = 1.02  # share from which on something is wrong; clocks and rates are rounded


def peaks(profile: Profile) -> list[Peak | Absent]:
    """Work out the peak of each figure that has one; an ``Absent`` says why it is not known."""
    figures = {figure.name: figure for figure in main_figures(profile)}
    known: list[Peak | Absent] = []
    for name, work_out in (
        ("memory bandwidth", _memory),
        ("arithmetic", _arithmetic),
        ("clock", _clock),
        ("device memory", _device),
        ("device arithmetic", _device),
    ):
        if (figure := figures.get(name)) is not None and not figure.emulated:
            known.append(work_out(profile, figure))
    return [*known, *_links(profile)]


def _unknown(figure: str, reason: str) -> Absent:
    return Absent(probe="card", what=figure, reason=reason)


def _older(cpu: Cpu) -> str:
    """Say that a profile was made before the inventory had instruction sets; "" of a newer one."""
    older = cpu.architecture in ("x86_64", "aarch64") and not cpu.vectors
    return "the profile is older than what it takes to know it; measure again" if older else ""


def _memory(profile: Profile, figure: CardFigure) -> Peak | Absent:
    inventory = profile.inventory
    cpu, modules = inventory.cpu, inventory.memory_modules
    if inventory.virtualisation not in ("none", ""):
        return _unknown(figure.name, "a virtual machine does not show the memory modules of its host")
    words, of_socket, highest = _CHANNELS.get((cpu.family or 0, cpu.model_number or 0), ("", 0, 0))
    at_most = of_socket * cpu.sockets if re.search(words, cpu.model) else 0
    if modules is None:
        if not at_most:
            return _unknown(figure.name, _older(cpu) or UNREADABLE)
        how = f"at most: {at_most} channels x {CHANNEL_BYTES} B x {highest} MT/s; {UNREADABLE}; {COUNTED}"
        return Peak(figure.name, figure.value, at_most * CHANNEL_BYTES * highest / 1e3, figure.unit, how)
    channels = modules.channels or (min(modules.count, at_most) if at_most else None)
    if not re.fullmatch(r"DDR\d", modules.kind) or modules.mts is None or channels is None:
        rate = f"{modules.mts:g} MT/s" if modules.mts else "a rate that is not told"
        reason = f"{modules.count} modules of {modules.kind} at {rate}, on channels that are not told"
        return _unknown(figure.name, reason)
    how = f"{channels} channels x {CHANNEL_BYTES} B x {modules.mts:g} MT/s: {modules.source}; {COUNTED}"
    return Peak(figure.name, figure.value, channels * CHANNEL_BYTES * modules.mts / 1e3, figure.unit, how)


def _arithmetic(profile: Profile, figure: CardFigure) -> Peak | Absent:
    cpu = profile.inventory.cpu
    flop = flop_a_cycle(cpu)
    if flop is None:
        why = f"how much a core of this processor ({cpu.model}) computes in a cycle is not in the table"
        return _unknown(figure.name, _older(cpu) or why)
    cores = figure.cores or cpu.cores
    clock = profile.find("compute_clock_ghz", load="blas", cores=str(cores))
    if clock is None and cpu.max_mhz is None:
        return _unknown(figure.name, "the clock was not measured, and the kernel does not tell it")
    ghz = clock.coefficients[0].value if clock else (cpu.max_mhz or 0.0) / 1000
    whose = "measured meanwhile" if clock else "its highest clock"
    virtual = "; if each virtual core is a real one" if profile.inventory.virtualisation != "none" else ""
    how = f"{counted(cores, 'core')} x {flop} FLOP a cycle x {ghz:.3g} GHz, {whose}{virtual}"
    return Peak(figure.name, figure.value, cores * flop * ghz, figure.unit, how)


def flop_a_cycle(cpu: Cpu) -> int | None:
    """Look up how many double precision operations a core does in a cycle, with the vectors that it shows."""
    if len(cpu.core_kinds) > 1:
        return None
    if cpu.architecture == "aarch64":
        return _ARM.get(cpu.model)
    if (cpu.vendor, cpu.family, cpu.model_number) == ("GenuineIntel", 6, _SKYLAKE_SERVER):
        units = [
            n for words, n in (("Platinum|Gold 6", 2), ("Silver|Bronze", 1)) if re.search(words, cpu.model)
        ]
        return 16 * units[0] if units and "avx512f" in cpu.vectors else None
    for vendor, family, models, flop, vectors in _X86:
        if (cpu.vendor, cpu.family) == (vendor, family) and cpu.model_number in models:
            if vectors in cpu.vectors:
                return flop
            return 16 if vectors == "avx512f" and "fma" in cpu.vectors else None
    return None


def _clock(profile: Profile, figure: CardFigure) -> Peak | Absent:
    highest = profile.inventory.cpu.max_mhz
    if highest is None:
        where = "a virtual machine" if profile.inventory.virtualisation != "none" else "this kernel"
        return _unknown(figure.name, f"{where} does not tell the highest clock")
    return Peak(figure.name, figure.value, highest / 1000, figure.unit, "the highest clock of a single core")


def _device(profile: Profile, figure: CardFigure) -> Peak | Absent:
    device = _device_apart(profile.inventory)
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device.name) if device else ""
    if name not in _GPUS:
        return _unknown(figure.name, f"the vendor's figures of {name or 'this device'} are not in the table")
    value = _GPUS[name][figure.quantity == "device_gflops"]
    return Peak(figure.name, figure.value, value, figure.unit, f"NVIDIA's data sheet of the {name}")


def _device_apart(inventory: Inventory) -> OpenCLDevice | None:
    """Return the device that the card shows: the first that is not the processor."""
    return next((device for device in inventory.opencl if device.kind != "cpu"), None)


def _links(profile: Profile) -> Iterator[Peak | Absent]:
    """Hold copies to and from the GPU against its link."""
    device = _device_apart(profile.inventory)
    gpus = [gpu for gpu in profile.inventory.gpus if device and gpu.name == device.name]
    for direction in ("to_device", "from_device"):
        words = f"copies {direction.replace('_', ' the ')}"
        copies = device and _pinned(profile, device.key, direction)
        if not copies:
            continue
        if not gpus or gpus[0].link_lanes is None or gpus[0].link_gts is None:
            yield _unknown(words, "the PCI link of the device is not shown")
            continue
        how = f"PCI Express, {gpus[0].link_lanes} lanes x {gpus[0].link_gts:g} GT/s"
        yield Peak(words, copies.coefficients[0].value, link_gbs(gpus[0]), "GB/s", how)


def _pinned(profile: Profile, device: str, direction: str) -> Model | None:
    return profile.find("device_copy_gbs", device=device, direction=direction, memory="pinned")


def link_gbs(gpu: Gpu) -> float:
    """Compute what a link carries each way: of its bits 8 of 10, 128 of 130, or 236 of 256, by its rate."""
    rate = gpu.link_gts or 0.0
    code = 8 / 10 if rate <= 5 else 128 / 130 if rate <= 32 else 236 / 256
    return (gpu.link_lanes or 0) * rate * code / 8


# -- all of it in sentences --------------------------------------------------------------------------------


FEWEST = 3  # nodes of a kind, from which on a place among them says something


def judge(profile: Profile, kin: Sequence[Profile] = ()) -> list[tuple[str, str]]:
    """Say of each figure its peak, what was published, and its place among ``kin``, nodes of its kind."""
    sentences: dict[str, list[str]] = {}
    for peak in peaks(profile):
        if isinstance(peak, Peak):
            sentences.setdefault(peak.figure, []).append(peak.sentence)
        else:
            sentences.setdefault(peak.what, []).append(f"peak not known: {peak.reason}")
    others = [{(f.name, f.subject): f.value for f in main_figures(other)} for other in kin]
    for figure in main_figures(profile):
        for text in (*_published(profile, figure), *_place(figure, others)):
            sentences.setdefault(figure.name, []).append(text)
    return [(name, "; ".join(texts)) for name, texts in sentences.items()]


def _published(profile: Profile, figure: CardFigure) -> Iterator[str]:
    for entry in PUBLISHED:
        same = entry.figure == figure.name and entry.cores == figure.cores
        if same and entry.processor in profile.inventory.cpu.model and not figure.emulated:
            share = 100 * figure.value / entry.value
            yield f"{share:.0f} % of the published {entry.value:g} {entry.unit} ({entry.source})"


def _place(figure: CardFigure, others: Sequence[dict[tuple[str, str], float]]) -> Iterator[str]:
    """Say the place among the nodes of the kind where the same was measured, the best first."""
    same = figure.name, figure.subject
    values = [other[same] for other in others if same in other]
    direction = better(figure.quantity, figure.coefficient)
    if len(values) + 1 < FEWEST or direction is Better.NEITHER or not median(values):
        return
    sign = 1 if direction is Better.HIGHER else -1
    ahead = sum(sign * value > sign * figure.value for value in values)
    off = 100 * (figure.value / median(values) - 1)
    yield f"place {ahead + 1} of {len(values) + 1} nodes of its kind, {off:+.1f} % beside the others' median"
