"""The outcome of a trial in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenbin.text import duration, number

if TYPE_CHECKING:
    from agent.opencl_layer.trials import KernelTrial, Ratio, Trial


def lines(trial: Trial, pid: int) -> Iterator[str]:
    """Write what a trial has shown, the sum first."""
    whole, kernels = trial.program_ratio, trial.ratio
    if whole is None or kernels is None:
        yield f"{pid}: no kernel could be tried on {trial.on}"
    else:
        yield f"{pid}: on {trial.on} it would be {_speed(whole)} as on {trial.device}; {_results(trial)}"
        yield f"its kernels: {_speed(kernels)}; they run {100 * trial.busy_share:.0f} % of the time"
    for one in trial.kernels:
        yield f"  {_kernel(one)}"
    if trial.not_kept:
        yield f"  {trial.not_kept} launches of further kernels were not tried"
    yield (
        f"watched for {duration(trial.watched_s)}; "
        f"stood still for {duration(trial.stopped_s)} in all, {duration(trial.longest_stop_s)} at once"
    )


def _speed(ratio: Ratio) -> str:
    return f"{number(ratio.value)} times ({number(ratio.low)} .. {number(ratio.high)}) as fast"


def _results(trial: Trial) -> str:
    if trial.agrees is False:
        return "RESULTS DIFFER"
    same = all(not one.differing_bytes for one in trial.kernels)
    return "results are bit-identical" if same else "results agree but for rounding"


def _kernel(one: KernelTrial) -> str:
    sizes = " x ".join(map(str, one.global_size))
    local = f" by {' x '.join(map(str, one.local_size))}" if one.local_size else ""
    name = f"{one.name} ({sizes}{local}), {one.launches} launch{'es' * (one.launches != 1)}"
    if one.here is None or one.there is None:
        return f"{name}: not tried: {one.trouble}"
    times = f"{duration(one.here.median_s)} here, {duration(one.there.median_s)} there"
    return f"{name}: {times} (n = {one.here.n}, {one.there.n}); {_comparison(one)}"


def _comparison(one: KernelTrial) -> str:
    if not one.compared_bytes:
        return "writes nothing"
    if not one.differing_bytes:
        return f"{one.compared_bytes} bytes written are identical"
    share = f"{one.differing_bytes} of {one.compared_bytes} bytes written differ"
    if one.relative_difference is None:
        return share
    return f"{share}, numbers by at most {one.relative_difference:.2g} of themselves"
