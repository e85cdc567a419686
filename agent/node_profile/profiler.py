"""The making of a profile: inventory, rounds of every probe, fits. A failure costs its own part only."""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pandas as pd

from agent.emulation.machines import emulated_node
from agent.inventory import gather
from agent.journal import restore_leftovers
from agent.measured_node import Watch, node_lock, with_storage
from agent.node_profile.identity import fingerprint
from agent.node_profile.probe_process import ProbeExit, run_child
from probes.registry import PROBES
from probes.run import Event
from profiles.errors import BadInput, UserError
from profiles.files.safe_files import node_states, state_dir
from profiles.files.store import id_at
from profiles.fits import fit_samples
from profiles.records import Absent, Condition, Inventory, Model, Profile, Settings

FULL_ROUNDS = 4


@dataclass(frozen=True)
class Step:
    """A visit to a probe."""

    probe: str
    round: int
    budget_s: float

    @property
    def limit_s(self) -> float:
        """The time after which a step counts as hung; long, because a slow disk is not a hang."""
        return 3 * self.budget_s + 60


@dataclass(frozen=True)
class Progress:
    """The progress of a profile: the step, its present work, the share done, and the time left."""

    step: Step
    doing: str
    fraction: float
    left_s: float


Listener = Callable[[Progress], None]


def plan(settings: Settings) -> list[Step]:
    """Plan the steps: one round if quick, else several, so that each probe sees several minutes.

    Raises:
        BadInput: a probe in ``settings.only`` does not exist.
    """
    names = settings.only or tuple(PROBES)
    for name in names:
        if name not in PROBES:
            raise BadInput(f"--only: no probe '{name}'", f"choose from {', '.join(PROBES)}")
    if settings.quick:
        return [Step(name, 0, PROBES[name].quick_s) for name in PROBES if name in names]
    return [
        Step(name, number, PROBES[name].full_s / FULL_ROUNDS)
        for number in range(FULL_ROUNDS)
        for name in PROBES
        if name in names
    ]


def make_profile(
    settings: Settings, listener: Listener = lambda progress: None
) -> tuple[Profile, dict[str, pd.DataFrame]]:
    """Measure this node; Ctrl-C ends it early with what was measured so far (``profile.interrupted``).

    Returns:
        The profile and the raw samples of each probe.

    Raises:
        Busy: another profile is measuring this node.
        BadInput: ``settings`` name a probe that does not exist.
    """
    steps = plan(settings)
    created, began = datetime.now(UTC), time.monotonic()
    settings = with_storage(settings)
    with node_lock():
        inventory = gather(settings)
        session = _Session(settings, listener)
        session.run(steps)
    samples = {probe: pd.DataFrame(rows) for probe, rows in session.rows.items() if rows}
    models = session.fit(samples)
    profile = Profile(
        id=id_at(created),
        node=_node_name(inventory, settings),
        created=created,
        duration_s=round(time.monotonic() - began, 1),
        tenbin_version=version("tenbin"),
        settings=settings,
        fingerprint=fingerprint(inventory),
        inventory=inventory,
        models=tuple(models),
        absent=tuple(session.absent),
        conditions=tuple(session.conditions),
        samples={probe: len(table) for probe, table in samples.items()},
        interrupted=session.interrupted,
        emulated=bool(settings.emulated),
    )
    return profile, samples


def _node_name(inventory: Inventory, settings: Settings) -> str:
    # Emulated hardware is another node, so that its numbers are never taken for those of this node.
    return inventory.hostname + (f"+emulated-{settings.emulated}" if settings.emulated else "")


@dataclass
class _Session:
    """The samples and troubles so far."""

    settings: Settings
    listener: Listener
    rows: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    absent: list[Absent] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    interrupted: bool = False

    def run(self, steps: Iterable[Step]) -> None:
        left = list(steps)
        while left and not self.interrupted:
            step = left.pop(0)
            try:
                again = self._visit(step, sum(s.budget_s for s in left))
            except KeyboardInterrupt:  # between two probes
                self.interrupted = True
                left.insert(0, step)
                break
            if not again:
                left = [s for s in left if s.probe != step.probe]
        for probe in dict.fromkeys(step.probe for step in left if not self.rows.get(step.probe)):
            remedy = f"tenbin profile --only {probe}"
            reason = "the profile was interrupted before its turn"
            self._add_absent(Absent(probe=probe, what="all of it", reason=reason, remedy=remedy))

    def _visit(self, step: Step, after_s: float) -> bool:
        """Run one round of one probe; return whether a further round makes sense."""
        rows = self.rows.setdefault(step.probe, [])
        before, doing = len(rows), "starting"
        self.listener(Progress(step, doing, 0.0, step.budget_s + after_s))

        def hear(event: Event) -> None:
            nonlocal doing
            if event["event"] == "sample":
                rows.append(event["row"])
            elif event["event"] == "absent":
                self._add_absent(Absent(**event["absent"]))
            else:
                doing, fraction = event["doing"], event["fraction"]
                self.listener(Progress(step, doing, fraction, (1 - fraction) * step.budget_s + after_s))

        settings = self.settings.model_copy(update={"round": step.round, "budget_s": step.budget_s})
        watch = Watch.begin(step.probe, step.round)
        ended = run_child(step.probe, settings, hear, step.limit_s)
        self.conditions.append(watch.ended())
        self.interrupted = ended.interrupted
        self._note_trouble(step, ended, doing)
        self.listener(Progress(step, "done", 1.0, after_s))
        return len(rows) > before and not ended.timed_out

    def _note_trouble(self, step: Step, ended: ProbeExit, doing: str) -> None:
        if ended.trouble:
            what = f"part of round {step.round + 1}"
            reason = f"the probe {ended.trouble} while at: {doing}"
            remedy = f"see what it says by itself: tenbin profile --only {step.probe}"
            self._add_absent(Absent(probe=step.probe, what=what, reason=reason, remedy=remedy, failed=True))

    def _add_absent(self, absent: Absent) -> None:
        if all((absent.probe, absent.what) != (a.probe, a.what) for a in self.absent):
            self.absent.append(absent)

    def fit(self, samples: dict[str, pd.DataFrame]) -> list[Model]:
        """Fit the models of all probes; a failed fit costs its own models only."""
        models: list[Model] = []
        for probe, table in samples.items():
            try:
                models += fit_samples(probe, table)
            except Exception as error:
                reason = f"the fit failed ({type(error).__name__}: {error})"
                remedy = (
                    "raw samples are kept; please report this with 'tenbin profile export --format parquet'"
                )
                self._add_absent(
                    Absent(probe=probe, what="models", reason=reason, remedy=remedy, failed=True)
                )
        return models


# -- on a node of a cluster, started there by the batch system ---------------------------------------------
#
#     python -P -m agent.node_profile.profiler SETTINGS [MACHINE]
#
# SETTINGS are those of a profile as JSON, MACHINE is emulated. The output are lines of JSON, so that no
# shared folder is needed:
#
#     {"event": "progress", "probe": ..., "doing": ..., "left_s": ...}
#     {"event": "samples", "probe": ..., "parquet": base64}        one for each probe
#     {"event": "profile", "profile": {...}}                       the last
#     {"event": "error", "what": ..., "remedy": ...}               instead, where nothing could be measured
#
# SIGINT and SIGTERM end it early with what was measured, as Ctrl-C does a profile.


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _tell(progress: Progress) -> None:
    _say(event="progress", probe=progress.step.probe, doing=progress.doing, left_s=round(progress.left_s, 1))


def _measure(settings: Settings, machine: str) -> None:
    if machine:
        with emulated_node(machine) as sysfs:
            update = {"sysfs": sysfs, "emulated": machine, "only": ("power",)}
            profile, samples = make_profile(settings.model_copy(update=update), _tell)
    else:
        profile, samples = make_profile(settings, _tell)
    for probe, table in samples.items():
        packed = io.BytesIO()
        table.to_parquet(packed)
        _say(event="samples", probe=probe, parquet=base64.b64encode(packed.getvalue()).decode())
    _say(event="profile", profile=profile.model_dump(mode="json"))


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # MPI launchers must not take the job around us for their list of hosts.
    for name in [name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"]:
        del os.environ[name]
    # Nodes share home folders, so the restore journal needs a folder of this node.
    os.environ["XDG_STATE_HOME"] = str(node_states() / platform.node())
    try:
        settings = Settings.model_validate_json(arguments[0])
        restore_leftovers(state_dir() / "journal")
        _measure(settings, arguments[1] if len(arguments) > 1 else "")
    except UserError as error:
        _say(event="error", what=error.what, remedy=error.remedy)
        return error.exit_code
    except KeyboardInterrupt:
        _say(event="error", what="interrupted before anything was measured", remedy="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
