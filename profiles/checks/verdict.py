"""Verdict of a check: its figures and facts beside those of the reference.

A verdict sends somebody to a machine, or takes the machine from its jobs. A false alarm once a month, and
nobody looks any more; so the rate of false alarms is promised (at most 1 % of the checks of an unchanged
machine), and what the promise costs is told with each figure: the least loss that a check would find.

What is normal is not a number that anybody could write down. It is how checks of this very machine came out
since its last profile. Their spread between checks decides, because it has all that varies from one hour to
the next. The first ones that passed are the reference, and not the latest ones: a window that moves with a
machine that wears out would call each day like the day before. The last few are left out even so, because
they may already show what is to be found. Checks that others disturbed are no reference and get no verdict
on their figures: a machine in use is not a broken one.

The rules of ``_verdict`` are tried in order, and the order is the argument. Disturbed comes first, because
then no figure means anything. Facts come before figures: a module of memory that is gone needs no statistics,
and a limit of processor time makes all figures true and useless. Then the figures that are worse. Only where
none is, does it matter that there are too few references, or that something was not measured this time: both
say "unknown", because a check that cannot tell must not pass. A machine that is better passes.

Siblings are a reference without a history: there the spread between nodes decides, and a change has no
time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np

from profiles.card import BUSY, STOLEN
from profiles.checks.causes import LEAST_SHARE, explain
from profiles.checks.check import (
    LEAST_LOSS,
    Cause,
    Change,
    Check,
    CheckConditions,
    CheckedDevice,
    Figure,
    Key,
    State,
    Verdict,
    usable,
)
from profiles.checks.figures import (
    DEVICE_FALSE_ALARM_RATIO,
    DEVICE_POWER,
    FALSE_ALARM_RATIO,
    LEAST_REFERENCES,
    MOST_REFERENCES,
    POWER,
    WINDOW,
    Judged,
    Observed,
    Series,
    judge,
    relative,
    sign,
    significant,
)
from profiles.quantities import Difference, compare_facts

IQR_TO_SD = 0.7413  # of a normal distribution
BEST_TENTH_ERROR = (
    1.71  # standard error of its quantile, in standard deviations over the root of their number
)
BUSY_PROCESSORS = 0.3  # of a machine with many; of one with few the share of a quiet machine


@dataclass(frozen=True)
class Reference:
    """The reference of a check.

    Attributes:
        checks: earlier ones of the same node, oldest first; or ``siblings``.
        siblings: the checks of each other node of the kind.
        facts: what decided the machine's speed then. amounts: how much there was, of facts that are amounts.
    """

    name: str
    checks: Sequence[Check] = ()
    siblings: Sequence[Sequence[Check]] = ()
    facts: dict[str, str] = field(default_factory=dict)
    amounts: dict[str, float] = field(default_factory=dict)


def give_verdict(check: Check, reference: Reference, alpha: float = FALSE_ALARM_RATIO) -> Check:
    """Fill in the verdict of a check, the changes, and their causes."""
    past = [_Past(earlier, values_of(earlier.figures)) for earlier in usable(reference.checks)]
    siblings = [_means(several) for several in reference.siblings]
    families: dict[str, list[Figure]] = {}  # of the node, and of each device
    for figure in check.figures:
        families.setdefault(figure.labels.get("device", ""), []).append(figure)
    changes, rate = [], 0.0
    for device, family in families.items():
        series = [
            _among_siblings(figure, check, siblings) if siblings else _series(figure, check, past)
            for figure in family
        ]
        level, power = (DEVICE_FALSE_ALARM_RATIO, DEVICE_POWER) if device else (alpha, POWER)
        judged = _judge_together([history for history, _ in series], level, power)
        rate += level if any(result is not None for result, _ in judged) else 0.0
        changes += [
            _change(figure, result, (len(history.reference), times), state)
            for figure, (history, times), (result, state) in zip(family, series, judged, strict=True)
        ]
    differences = compare_facts(reference.facts, check.facts, reference.amounts, check.amounts)
    causes = explain(changes, differences, check.conditions, disturbed=is_disturbed(check.conditions))
    causes += [_wrong(device) for device in check.devices if device.failure]
    verdict, reason, only_devices = _verdict(check, changes, differences, _missing(check, past))
    return check.model_copy(
        update={
            "against": reference.name,
            "verdict": verdict,
            "reason": reason,
            "only_devices": only_devices,
            "false_alarm_ratio": rate or None,
            "changes": tuple(changes),
            "differences": tuple(map(str, differences)),
            "causes": tuple(causes),
        }
    )


def _judge_together(
    family: Sequence[Series], alpha: float, power: float
) -> list[tuple[Judged | None, State]]:
    """Judge figures of which any is called changed by chance with probability ``alpha`` at most."""
    tests = sum(len(history.reference) >= LEAST_REFERENCES for history in family) or 1
    judged = [judge(history, tests, alpha, power) for history in family]
    known = {place: result for place, result in enumerate(judged) if result is not None}
    states: dict[int, State] = {}
    ways: tuple[tuple[State, str, int], ...] = (("better", "p_better", -1), ("worse", "p_worse", 1))
    for state, p, direction in ways:
        for place in significant({place: getattr(result, p) for place, result in known.items()}, alpha):
            if direction * known[place].loss > LEAST_LOSS:
                states[place] = state
    return [(result, states.get(place, "same")) for place, result in enumerate(judged)]


def _wrong(device: CheckedDevice) -> Cause:
    return Cause(
        name="wrong-results",
        sentence=f"{device.name} computes wrongly: {device.failure}",
        remedy="give it to no job; see the driver's messages (dmesg), and have it replaced if it stays",
    )


def together(first: Check, again: Check) -> Check:
    """Join two looks at a machine to one check: their rounds together, and the worse conditions."""
    also = {figure.key: figure for figure in again.figures}
    joined = []
    for figure in first.figures:
        other = also.get(figure.key)
        rounds = (*figure.rounds, *(other.rounds if other else ()))
        update = {
            "rounds": rounds,
            "value": sum(rounds) / len(rounds),
            "slices": figure.slices + (other.slices if other else 0),
        }
        joined.append(figure.model_copy(update=update))
    before, after = first.conditions, again.conditions
    worse = max(before, after, key=lambda c: (is_disturbed(c), c.others_processors, c.steal_ratio))
    shares = [c.cpu_share_ratio for c in (before, after) if c.cpu_share_ratio is not None]
    conditions = {
        "duration_s": round(before.duration_s + after.duration_s, 3),
        "cpu_share_ratio": max(shares, default=None),
    }
    wrong = {device.device: device.failure for device in again.devices}
    devices = tuple(
        device.model_copy(update={"failure": device.failure or wrong.get(device.device, "")})
        for device in first.devices
    )
    update = {
        "figures": tuple(joined),
        "devices": devices,
        "conditions": worse.model_copy(update=conditions),
    }
    return first.model_copy(update=update)


def is_disturbed(conditions: CheckConditions) -> bool:
    """Tell whether others used the processors more than on a quiet machine."""
    most = min(BUSY * conditions.processors, BUSY_PROCESSORS)
    return conditions.others_processors > most or conditions.steal_ratio > STOLEN


def is_limited(conditions: CheckConditions) -> bool:
    """Tell whether the slices waited for processors that nobody else used."""
    share = conditions.cpu_share_ratio
    return share is not None and share < LEAST_SHARE and not is_disturbed(conditions)


def _verdict(
    check: Check, changes: Sequence[Change], differences: Sequence[Difference], missing: Sequence[str]
) -> tuple[Verdict, str, bool]:
    """Return the verdict, its reason, and whether it is of single devices alone."""
    worse = sum(change.state == "worse" for change in changes)
    of_node = sum(change.state == "worse" and "device" not in change.labels for change in changes)
    wrong = [device.name for device in check.devices if device.failure]
    lost = [str(difference) for difference in differences if difference.is_loss]
    had = max((change.references for change in changes), default=0)
    figures_worse = f"{worse} of {len(changes)} figures are worse"
    wrong_results = f"results were wrong: {', '.join(wrong)}"
    disturbed = is_disturbed(check.conditions)
    rules = (
        (bool(wrong) and disturbed, Verdict.CHANGED, wrong_results, True),
        (disturbed, Verdict.DISTURBED, "others used the processors meanwhile", False),
        (not check.figures and not wrong, Verdict.UNKNOWN, "nothing could be measured", False),
        (bool(lost), Verdict.CHANGED, f"something is gone: {'; '.join(lost)}", False),
        (is_limited(check.conditions), Verdict.CHANGED, "processor time is limited", False),
        (of_node > 0, Verdict.CHANGED, figures_worse, False),
        (bool(wrong), Verdict.CHANGED, wrong_results, True),
        (worse > 0, Verdict.CHANGED, figures_worse, True),
        (
            all(change.p is None for change in changes),
            Verdict.UNKNOWN,
            f"{had} earlier checks; {LEAST_REFERENCES} are needed to tell a change",
            False,
        ),
        (bool(missing), Verdict.UNKNOWN, f"not measured this time: {', '.join(missing)}", False),
    )
    return next((rule[1:] for rule in rules if rule[0]), (Verdict.PASS, "as it was", False))


def _missing(check: Check, past: Sequence[_Past]) -> list[str]:
    """Name the quantities that all of the last checks had and this one lacks."""
    last = [earlier.values.keys() for earlier in past[-WINDOW:]]
    usual = set.intersection(*map(set, last)) if last else set()
    return sorted({key[0] for key in usual - {figure.key for figure in check.figures}})


class _Past(NamedTuple):
    """An earlier check, and its values by figure."""

    check: Check
    values: dict[Key, Observed]


def values_of(figures: Sequence[Figure]) -> dict[Key, Observed]:
    """Take figures as observations for the tests."""
    return {figure.key: _observed(figure) for figure in figures}


def _observed(figure: Figure) -> Observed:
    error = BEST_TENTH_ERROR * figure.spread_ratio * IQR_TO_SD / math.sqrt(figure.slices)
    return Observed(figure.value, figure.rounds, error)


def _series(figure: Figure, check: Check, past: Sequence[_Past]) -> tuple[Series, list[datetime]]:
    """Collect a figure over time, and the times of its recent values.

    The references are the first checks that passed; the last ones are left out, because they may already show
    a small change.
    """
    key = figure.key
    known = [earlier for earlier in past if key in earlier.values]
    passing = [earlier for earlier in known if _passed(earlier.check, figure.labels.get("device"))]
    count = min(MOST_REFERENCES, max(LEAST_REFERENCES, len(passing) - WINDOW + 1))
    old = passing[:count]
    recent: list[_Past] = []
    if len(old) == count:
        since = [earlier for earlier in known if earlier.check.created > old[-1].check.created]
        recent = since[-(WINDOW - 1) :]
    reference = [earlier.values[key] for earlier in old]
    values = [*(earlier.values[key] for earlier in recent), _observed(figure)]
    times = [*(earlier.check.created for earlier in recent), check.created]
    return Series(reference, values, sign(figure.quantity)), times


def _passed(check: Check, device: str | None) -> bool:
    """Tell whether a check found nothing worse at the node, or at this device of it."""
    if check.verdict is not Verdict.CHANGED:
        return True
    worse = {change.labels.get("device") for change in check.changes if change.state == "worse"}
    wrong = {checked.device for checked in check.devices if checked.failure}
    return check.only_devices and device not in worse | wrong


def _among_siblings(
    figure: Figure, check: Check, siblings: Sequence[dict[Key, Observed]]
) -> tuple[Series, list[datetime]]:
    """Collect a figure of the other nodes: the spread between nodes decides."""
    others = [means[figure.key] for means in siblings if figure.key in means]
    return Series(others, [_observed(figure)], sign(figure.quantity)), [check.created]


def _means(checks: Sequence[Check]) -> dict[Key, Observed]:
    """Average each figure of a sibling over its last checks."""
    last = [values_of(check.figures) for check in usable(checks)[-WINDOW:]]
    means = {}
    for key in {key: None for values in last for key in values}:
        several = [values[key].value for values in last if key in values]
        mean = float(np.exp(np.mean(np.log(several))))
        means[key] = Observed(mean, (mean,))
    return means


def _change(figure: Figure, judged: Judged | None, about: tuple[int, list[datetime]], state: State) -> Change:
    references, times = about
    change = Change(
        quantity=figure.quantity,
        labels=figure.labels,
        unit=figure.unit,
        references=references,
        note=figure.note,
        was=figure.value,
        now=figure.value,
        loss_ratio=0.0,
    )
    if judged is None:
        return change
    way = sign(figure.quantity)
    low, middle, high = (relative(judged.loss + part, way) for part in (-judged.half, 0.0, judged.half))
    update = {
        "was": judged.was,
        "now": judged.now,
        "loss_ratio": middle,
        "low": low,
        "high": high,
        "p": min(judged.p_worse, judged.p_better),
        "tells_ratio": relative(judged.tells, way),
        "tells_in_window_ratio": relative(judged.tells_in_window, way),
        "checks": judged.window,
        "since": times[-judged.window],
        "state": state,
    }
    return change.model_copy(update=update)
