"""The first lines of a profile: whether its machine was quiet, its main figures, and what is unusual."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from profiles.models import predict_time
from profiles.records import Coefficient, Condition, Model, Profile, Quality

# -- trust: whether the machine was quiet, and the words for quality ---------------------------------------


BUSY = 0.05  # share of all CPU time that others may use on a quiet machine
STOLEN = 0.01  # share of all CPU time that a hypervisor may give to other guests
FASTER = 1.3  # slowest over fastest reading of the CPU loop: beyond, the processor did not keep its speed
LEAST_VISIT_S = 1.0  # shorter ones are too few clock ticks for a share

MEANINGS = {
    "good": "the 95 % interval is within 10 % of the value, and the samples have the model's form",
    "noisy": "within 30 %: usable, with that uncertainty",
    "poor": "wider, or the samples do not support the model: do not rely on the number",
}
ROUNDS_MEANING = (
    "the rounds of the profile spread further than the interval of all samples, which was widened to hold "
    "them; with few rounds that is often chance"
)


class Trust(NamedTuple):
    """A verdict in a sentence: quiet, or disturbed, with cause and remedy."""

    state: Literal["quiet", "disturbed", "unknown"]
    sentence: str
    remedy: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.sentence, self.remedy)))


def trust(profile: Profile) -> Trust:
    """Judge a profile by the conditions that it records, and count the numbers in which its rounds differ."""
    if not profile.conditions:
        return Trust("unknown", "Whether the machine was quiet while it was measured is not recorded.")
    disturbances, rounds = [*_shares(profile.conditions), *_speed(profile.conditions)], _rounds(profile)
    if not disturbances:
        others = _percent(mean_condition(profile.conditions, "others_ratio"))
        return Trust("quiet", f"Measured on a quiet machine: others took {others} of its processors.{rounds}")
    remedy = (
        "The numbers are those of a machine so disturbed. Measure again when it is quiet: "
        "'tenbin doctor' says whether it is, 'top' who uses it."
    )
    return Trust("disturbed", f"DISTURBED while it was measured: {'; '.join(disturbances)}.{rounds}", remedy)


def mean_condition(conditions: Sequence[Condition], name: str) -> float:
    """Mean of a field of the conditions, over the time that they lasted; 0 where there are none."""
    total = sum(c.duration_s for c in conditions)
    return sum(float(getattr(c, name)) * c.duration_s for c in conditions) / total if total else 0.0


def _shares(conditions: tuple[Condition, ...]) -> list[str]:
    """Name the other users of the processors, where they took more than on a quiet machine."""
    sentences = []
    for name, limit, words in (
        ("others_ratio", BUSY, "other processes took {} of the processors"),
        ("steal_ratio", STOLEN, "the hypervisor gave {} of the processors to other guests"),
    ):
        whole = mean_condition(conditions, name)
        visits = [(getattr(c, name), c.probe) for c in conditions if c.duration_s >= LEAST_VISIT_S]
        most, probe = max(visits, default=(0.0, ""))
        if whole > limit or most > 2 * limit:
            where = f" ({_percent(most)} while {probe} was measured)" if most > whole else ""
            sentences.append(words.format(_percent(whole)) + where)
    return sentences


def _speed(conditions: tuple[Condition, ...]) -> list[str]:
    readings = [c.reference_s for c in conditions if c.reference_s > 0]
    ratio = max(readings) / min(readings) if readings else 1.0
    return [f"a fixed CPU loop took up to {ratio:.1f} times its shortest time"] if ratio > FASTER else []


def _rounds(profile: Profile) -> str:
    """Count numbers whose rounds differ; this is no disturbance by itself, because it is often chance."""
    every = [c for model in profile.models for c in model.coefficients]
    differing = sum(c.rounds_differ for c in every)
    return f" The rounds of {differing} of {len(every)} numbers differ." if differing else ""


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


# -- the card ----------------------------------------------------------------------------------------------


MOST_FIGURES, MOST_STEPS = 10, 4
CHECKPOINT_MB = 1000.0
# Beyond these a figure is unusual; rules of thumb, not models.
ONE_CORE_FILLS, CORES_FOR_THAT = 0.8, 4
CLOCK_DROPS, WAITS_FOR_NEIGHBOUR, SLOW_FSYNC_S, UNEVEN_DISK = 0.85, 1.2, 0.01, 20.0
NOTHING: Mapping[str, str] = MappingProxyType({})


class CardFigure(NamedTuple):
    """A figure as people read it.

    Attributes:
        value, low, high: in ``unit``; the limits of the 95 % interval, None where that is open or unknown.
        quality: of the coefficient; "" where the figure is a prediction.
        emulated: it comes from emulated hardware.
        quantity, coefficient: of the model that it is from.
        subject: what it was measured on, as far as the name does not say it ("cores=16").
        cores: that took part; None where the model does not say it.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    quality: str
    meaning: str
    emulated: bool
    quantity: str
    coefficient: str
    subject: str
    cores: int | None = None


@dataclass(frozen=True)
class Card:
    """The figures, then sentences: what is unusual, and what to do next."""

    figures: tuple[CardFigure, ...]
    unusual: tuple[str, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True)
class _Choice:
    """A figure that a profile may have: a coefficient, of the model on most cores where there are several."""

    name: str
    quantity: str
    meaning: str
    unit: str = ""
    scale: float = 1.0
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    coefficient: str = ""  # the first
    cores: str = "most"
    apart: bool = False  # of an OpenCL device that is not the processor


_CHOICES = (
    _Choice(
        "memory bandwidth",
        "stream_bandwidth_gbs",
        "STREAM's triad, all cores together: the limit of programs that go through large arrays",
        labels={"kernel": "triad", "numa": "local"},
    ),
    _Choice(
        "arithmetic",
        "compute_gflops",
        "matrix products in double precision, all cores together",
        labels={"kind": "blas", "precision": "double"},
    ),
    _Choice(
        "clock",
        "compute_clock_ghz",
        "of the cores while all of them compute",
        labels={"load": "vector"},
    ),
    _Choice(
        "memory latency",
        "access_latency_ns",
        "one access after the other beyond all caches: what a chase of pointers costs",
        labels={"level": "memory"},
    ),
    _Choice(
        "neighbour slow-down",
        "memory_slowdown_ratio",
        "as long for a program that fills memory, while another does so on the next core",
        labels={"clock": "wall"},
    ),
    _Choice(
        "device memory",
        "device_bandwidth_gbs",
        "read and written by a copy within the OpenCL device",
        labels={"kernel": "copy"},
        apart=True,
    ),
    _Choice(
        "device arithmetic",
        "device_gflops",
        "multiply-adds of the OpenCL device in single precision",
        labels={"precision": "single"},
        apart=True,
    ),
    _Choice("storage read", "storage_read_mbs", "large blocks past the page cache", unit="GB/s", scale=1e-3),
    _Choice(
        "storage random read",
        "storage_random_read_p99_s",
        "99 of 100 reads of 4 KiB are quicker",
        unit="us",
        scale=1e6,
    ),
    _Choice(
        "message latency",
        "message_latency_s",
        "from one rank of MPI to another on this node; between hosts see the network",
        unit="us",
        scale=1e6,
        labels={"scope": "node"},
    ),
    _Choice(
        "cap of full speed",
        "power_speed_ratio",
        "a lower power cap slows programs down",
        coefficient="knee_w",
    ),
    _Choice("all-to-all", "network_bandwidth_gbs", "sent by each rank to all others, as much received"),
    _Choice(
        "useful cores",
        "run_s",
        "that many speed up conjugate gradients (CG); more of them gain little",
        labels={"load": "cg"},
        coefficient="A",
    ),
    _Choice(
        "store bandwidth", "memory_bandwidth_gbs", "lines written; each is read first, so twice as much moves"
    ),
)


def card(profile: Profile) -> Card:
    """Choose the main figures of a profile, and say what is unusual and what to do next."""
    steps = tuple(_next_steps(profile))[:MOST_STEPS]
    return Card(main_figures(profile)[:MOST_FIGURES], tuple(_unusual(profile)), steps)


def main_figures(profile: Profile) -> tuple[CardFigure, ...]:
    """List all figures that a card may have, most important first."""
    present = [figure for choice in _CHOICES if (figure := _figure(profile, choice)) is not None]
    return (*present[: MOST_FIGURES - 1], *_checkpoint(profile), *present[MOST_FIGURES - 1 :])


def _model(profile: Profile, quantity: str, labels: Mapping[str, str], cores: str = "most") -> Model | None:
    """Find the model of a quantity on most cores, or on ``cores`` of them."""
    models = [m for m in profile.models if m.quantity == quantity and labels.items() <= m.labels.items()]
    if cores != "most":
        return next((model for model in models if model.labels.get("cores") == cores), None)
    return max(models, key=lambda model: int(model.labels.get("cores", 0)), default=None)


def _figure(profile: Profile, choice: _Choice) -> CardFigure | None:
    device = _apart(profile) if choice.apart else {}
    if device is None:
        return None
    model = _model(profile, choice.quantity, {**choice.labels, **device}, choice.cores)
    names = [c.name for c in model.coefficients] if model else []
    if model is None or choice.coefficient not in ("", *names):
        return None
    chosen: Coefficient = model[choice.coefficient or names[0]]
    if chosen.quality is Quality.POOR:
        return None
    low, high = (None if limit is None else choice.scale * limit for limit in (chosen.low, chosen.high))
    unit = choice.unit or ("times" if chosen.unit in ("", "1", "ratio") else chosen.unit)
    subject = {key: label for key, label in model.labels.items() if key not in choice.labels}
    return CardFigure(
        name=choice.name,
        value=choice.scale * chosen.value,
        low=low,
        high=high,
        unit=unit,
        quality=str(chosen.quality),
        meaning=choice.meaning,
        emulated=model.emulated,
        quantity=model.quantity,
        coefficient=chosen.name,
        subject=" ".join(f"{key}={label}" for key, label in subject.items()),
        cores=int(model.labels["cores"]) if "cores" in model.labels else None,
    )


def _apart(profile: Profile) -> dict[str, str] | None:
    """Return the label of the first OpenCL device that is not the processor; None where there is none."""
    return next(({"device": d.key} for d in profile.inventory.opencl if d.kind != "cpu"), None)


def _checkpoint(profile: Profile) -> Iterator[CardFigure]:
    """Predict the time of a checkpoint of 1 GB, of the first device and folder."""
    model = _model(profile, "checkpoint_s", NOTHING)
    prediction = predict_time(model, CHECKPOINT_MB) if model is not None else None
    if model is not None and prediction is not None:
        where = " to ".join(model.labels.values())
        yield CardFigure(
            name="checkpoint of 1 GB",
            value=prediction.value,
            low=prediction.low,
            high=prediction.high,
            unit="s",
            quality="",
            meaning=f"predicted, {where}",
            emulated=model.emulated,
            quantity=model.quantity,
            coefficient="",
            subject=where,
        )


def _unusual(profile: Profile) -> Iterator[str]:
    """Say what a reader would not expect of such a machine, by rules of thumb."""

    def value(quantity: str, cores: str = "most", **labels: str) -> float | None:
        model = _model(profile, quantity, labels, cores)
        if model is None or model.coefficients[0].quality is Quality.POOR:
            return None
        return model.coefficients[0].value

    alone, most = (
        value("stream_bandwidth_gbs", cores, kernel="triad", numa="local") for cores in ("1", "most")
    )
    if alone and most and profile.inventory.cpu.cores >= CORES_FOR_THAT and alone > ONE_CORE_FILLS * most:
        yield f"One core alone reaches {100 * alone / most:.0f} % of the memory bandwidth of all."
    clock = value("compute_clock_ratio", load="vector")
    if clock is not None and clock < CLOCK_DROPS:
        yield f"The clock falls to {100 * clock:.0f} % while all cores compute."
    beside = value("memory_slowdown_ratio", clock="wall")
    if beside is not None and beside > WAITS_FOR_NEIGHBOUR:
        slower = f"A neighbour that fills memory makes a program {beside:.2f} times as long"
        yield f"{slower}: see tenbin program pairs."
    fsync = value("storage_fsync_p50_s")
    if fsync is not None and fsync > SLOW_FSYNC_S:
        yield f"Storage takes {1e3 * fsync:.0f} ms to make 4 KiB durable."
    usual, slow = (value(f"storage_random_read_{part}_s") for part in ("p50", "p99"))
    if usual and slow and slow > UNEVEN_DISK * usual:
        yield f"One of 100 random reads takes {slow / usual:.0f} times as long as half of them."
    line = _model(profile, "checkpoint_s", NOTHING)
    if line is not None and predict_time(line, CHECKPOINT_MB) is None:
        why = f" ({line.note})" if line.note else ""
        yield f"The time of a checkpoint of 1 GB is not known: the fitted line does not exclude 0 s{why}."
    if profile.inventory.virtualisation not in ("none", ""):
        kind = profile.inventory.virtualisation
        yield f"It is a virtual machine ({kind}): neighbours on its host are not seen."


def _next_steps(profile: Profile) -> Iterator[str]:
    """Say what to do next, most useful first."""
    said = trust(profile)
    if said.state == "disturbed":
        yield "Measure again when the machine is quiet; tenbin doctor names who is busy."
    if profile.settings.quick:
        yield "tenbin profile without --quick: narrower intervals."
    poor = {m.probe for m in profile.models for c in m.coefficients if c.quality is Quality.POOR}
    if poor and not profile.settings.quick:
        yield f"Do not rely on the figures marked poor ({', '.join(sorted(poor))})."
    remedies = dict.fromkeys(f"{a.what}: {a.remedy}" for a in profile.absent if a.remedy)
    yield from remedies
    if not remedies:
        yield "tenbin profile report: pictures of all samples and fits."
    yield "tenbin profile check --quick --baseline 8: learn how it varies; later checks then tell a change."
