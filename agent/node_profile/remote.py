"""The profile of a node of a cluster, started there by the batch system.

    python -P -m agent.node_profile.remote SETTINGS [MACHINE]

SETTINGS are those of a profile as JSON, MACHINE is emulated. The output are lines of JSON, so that no shared
folder is needed:

    {"event": "progress", "probe": ..., "doing": ..., "left_s": ...}
    {"event": "samples", "probe": ..., "parquet": base64}        one for each probe
    {"event": "profile", "profile": {...}}                       the last
    {"event": "error", "what": ..., "remedy": ...}               instead, where nothing could be measured

SIGINT and SIGTERM end it early with what was measured, as Ctrl-C does a profile.
"""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import signal
import sys
from typing import Any

from agent.emulation.machines import emulated_node
from agent.journal import restore_leftovers
from agent.node_profile.profiler import Progress, make_profile
from agent.users import node_states, state_dir
from profiles.errors import UserError
from profiles.records import Settings


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
