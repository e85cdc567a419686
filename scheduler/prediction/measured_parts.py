"""The parts of checkpoints and restarts, as the phases that programs note tell them."""

from __future__ import annotations

from collections.abc import Sequence

from agent.attempts.checked import Phase


def stop_parts(phases: Sequence[Phase], asked: float, left: float) -> dict[str, float]:
    """Divide a checkpoint into parts, by when it was requested and left; whole if no phases are noted."""
    saves = [phase for phase in phases if phase.phase == "save" and phase.at_s >= asked]
    if not saves:
        return {} if phases else {"leave": max(0.0, left - asked)}
    save = saves[-1]
    drains = [p.time_s for p in phases if p.phase == "drain" and asked <= p.at_s <= save.at_s]
    drain = drains[-1] if drains else 0.0
    reach = save.at_s - save.time_s - drain - asked
    parts = {"reach": reach, "drain": drain, "save": save.time_s, "leave": left - save.at_s}
    return {part: max(0.0, seconds) for part, seconds in parts.items()}


def restart_parts(phases: Sequence[Phase], decided: float, began: float, ready: float) -> dict[str, float]:
    """Divide a restart into parts, by when it was decided, the process began and it computes."""
    parts = dict.fromkeys(("context", "compile", "restore"), 0.0)
    for phase in phases:
        if phase.phase in parts and phase.at_s <= ready:
            parts[phase.phase] += phase.time_s
    whole = {"launch": began - decided, "start": ready - began - sum(parts.values()), **parts}
    return {part: max(0.0, seconds) for part, seconds in whole.items()}
