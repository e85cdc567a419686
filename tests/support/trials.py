"""Trials of programs, as the layer tells them."""

from __future__ import annotations

from typing import Any

from agent.opencl_layer.trials import Trial, trial_from


def trial_of(
    *kernels: tuple[int, float, float], busy_s: float, running_s: float = -1, ended: int = 0, **more: Any
) -> Trial:
    """Make a trial of kernels of (launches, time here, time there), measured exactly, or as ``more`` tells.

    The program was watched for 10 s. The driver tells what runs, where ``running_s`` says nothing else.
    """
    told = [
        {
            **dict.fromkeys(
                ("source_call_s", "target_call_s", "compared_bytes", "differing_bytes", "bytes"), 0
            ),
            **{"name": "k", "global_size": [1], "local_size": [], "types": "float", "trouble": ""},
            **{"launches": n, "source_s": [here] * 9, "target_s": [there] * 9, "relative_difference": None},
            **{"ended": ended, **more},
        }
        for n, here, there in kernels
    ]
    seen = {"watched_s": 10.0, "busy_s": busy_s, "running_s": busy_s if running_s < 0 else running_s}
    stops = dict.fromkeys(("stopped_s", "longest_stop_s", "not_kept"), 0)
    answer = {"device": "a", "on": "b", "kernels": told, "looks": 1e18, **seen, **stops}
    return trial_from(answer, 5.0)
