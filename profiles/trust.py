"""Trust in a profile: whether its machine was quiet, and the meaning of the words for quality."""

from __future__ import annotations

from typing import Literal, NamedTuple

from profiles.records import Condition, Profile

BUSY = 0.05  # share of all CPU time that others may use on a quiet machine
STOLEN = 0.01  # share of all CPU time that a hypervisor may give to other guests
FASTER = 1.3  # slowest over fastest reading of the CPU loop: beyond, the processor did not keep its speed
LEAST_VISIT_S = 1.0  # shorter ones are too few clock ticks for a share
ROUNDS_DIFFER = "rounds differ"

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
    found, rounds = [*_shares(profile.conditions), *_speed(profile.conditions)], _rounds(profile)
    if not found:
        others = _percent(mean(profile, "others_ratio"))
        return Trust("quiet", f"Measured on a quiet machine: others took {others} of its processors.{rounds}")
    remedy = (
        "The numbers are those of a machine so disturbed. Measure again when it is quiet: "
        "'tenbin doctor' says whether it is, 'top' who uses it."
    )
    return Trust("disturbed", f"DISTURBED while it was measured: {'; '.join(found)}.{rounds}", remedy)


def mean(profile: Profile, field: str) -> float:
    """Mean of a field of the conditions, over the time that they lasted; 0 where there are none."""
    return _mean(profile.conditions, field)


def _mean(conditions: tuple[Condition, ...], field: str) -> float:
    total = sum(c.duration_s for c in conditions)
    return sum(float(getattr(c, field)) * c.duration_s for c in conditions) / total if total else 0.0


def _shares(conditions: tuple[Condition, ...]) -> list[str]:
    """Name the other users of the processors, where they took more than on a quiet machine."""
    found = []
    for field, limit, words in (
        ("others_ratio", BUSY, "other processes took {} of the processors"),
        ("steal_ratio", STOLEN, "the hypervisor gave {} of the processors to other guests"),
    ):
        whole = _mean(conditions, field)
        visits = [(getattr(c, field), c.probe) for c in conditions if c.duration_s >= LEAST_VISIT_S]
        most, probe = max(visits, default=(0.0, ""))
        if whole > limit or most > 2 * limit:
            where = f" ({_percent(most)} while {probe} was measured)" if most > whole else ""
            found.append(words.format(_percent(whole)) + where)
    return found


def _speed(conditions: tuple[Condition, ...]) -> list[str]:
    readings = [c.reference_s for c in conditions if c.reference_s > 0]
    ratio = max(readings) / min(readings) if readings else 1.0
    return [f"a fixed CPU loop took up to {ratio:.1f} times its shortest time"] if ratio > FASTER else []


def _rounds(profile: Profile) -> str:
    """Count numbers whose rounds differ; this is no disturbance by itself, because it is often chance."""
    every = [c for model in profile.models for c in model.coefficients]
    differing = sum(ROUNDS_DIFFER in c.note for c in every)
    return f" The rounds of {differing} of {len(every)} numbers differ." if differing else ""


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
