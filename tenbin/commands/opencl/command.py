"""``tenbin opencl``: run, status, estimate, park, resume, move, try."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import BadInput, Unavailable
from profiles.instants import clock
from tenbin.commands.options import JsonOption
from tenbin.text import duration, number, print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.opencl_layer.requests import LayerStatus
    from profiles.inventory import OpenCLDevice

BELOW = " tenbin"  # last word of a driver's version, as the layer tells it

app = typer.Typer(
    help="Unmodified OpenCL programs that are parked, resumed and moved to other devices while they run.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PidArgument = Annotated[int, typer.Argument(help="Process ID of the program.", min=1)]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", min=0, help="Seconds to wait for a user event to be set, or a build to end."),
]


@app.command("run")
def run(
    command: Annotated[
        list[str], typer.Argument(help="Program and arguments, after --.", metavar="-- CMD...")
    ],
    *,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="Key of a device that the program may use, the one to start on first; repeat it. "
            "(default: all devices)",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run an OpenCL program so that it can be parked and moved.

    The program sees one device, whose limits all devices admit that it may use. It starts on the first one.
    """
    import os
    import shutil

    from agent.opencl_layer import build, loader, requests

    known = {one.key: one for one in _devices({})}
    for key in device or ():
        if key not in known:
            raise BadInput(f"no OpenCL device {key!r}", f"choose from {', '.join(known)}")
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"{command[0]}: no such program", "name a program after --")
    folder = requests.own_folder(requests.default_folder())
    variables = requests.environment(build.build(), folder, device or ())
    if loader.linked_into(program):
        say(f"tenbin: {program} cannot be moved: the OpenCL loader in it knows no layers", error=True)
    else:
        _tell_what_it_sees(device or list(known), variables)
    if why := loader.trouble():
        say(f"tenbin: most OpenCL programs cannot be moved here: {why}; {loader.remedy()}", error=True)
    os.execvpe(program, command, {**os.environ, **variables})


def _tell_what_it_sees(keys: Sequence[str], variables: dict[str, str]) -> None:
    for seen in _devices(variables):
        if seen.driver.endswith(BELOW):
            limits = f"limits of {', '.join(keys)}{_lacking(keys)}; starts on {keys[0]}"
            say(f"tenbin: the program sees one device: {seen.name} ({limits})", error=True)
        else:
            say("tenbin: pyopencl's OpenCL loader does not load the layer", error=True)


@app.command("status")
def status(
    pid: Annotated[
        int | None, typer.Argument(help="Process ID. (default: all)", min=1, show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the programs that can be moved, where each is, or why it cannot."""
    from agent.opencl_layer import requests

    outside = [] if pid else [pair for folder in _folders() for pair in requests.outsiders(folder)]
    found = (
        [requests.status(_folder(pid), pid)]
        if pid
        else [one for folder in _folders() for one in requests.statuses(folder, outside)]
    )
    for other, why in outside:
        say(f"{other}: cannot be moved: {why}", error=json)
    if json:
        print_json([asdict(one) for one in found])
        return
    if not found and not outside:
        say("no OpenCL program runs that was started by: tenbin opencl run -- CMD, or as a job on a device")
    for one in found:
        say(_line(one))


@app.command("park")
def park(
    pid: PidArgument,
    *,
    to: Annotated[
        str,
        typer.Option("--to", help="'memory', or a folder for a file that vanishes with the program."),
    ] = "memory",
    patience: PatienceOption = 30.0,
    json: JsonOption = False,
) -> None:
    """Stop a program at its next OpenCL call and free its device until it is resumed."""
    from agent.opencl_layer import requests

    folder = None if to == "memory" else Path(to)
    if folder is not None and not folder.is_dir():
        raise BadInput(f"--to {to}: no such folder", "name a folder, or 'memory'")
    _tell(requests.park(_folder(pid), pid, folder, patience_s=patience), json)


@app.command("resume")
def resume(
    pid: PidArgument,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="DEVICE", help="Key of another device.", show_default=False)
    ] = "",
    json: JsonOption = False,
) -> None:
    """Let a parked program go on, on its device or on another one."""
    from agent.opencl_layer import requests

    _tell(requests.resume(_folder(pid), pid, to), json)


@app.command("estimate")
def estimate(
    pid: PidArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="DEVICE", help="Key of the device of the move.")],
    json: JsonOption = False,
) -> None:
    """Predict the pause of a move: do all of it while the program runs, and let it go before the pause."""
    from agent.opencl_layer import requests

    found = requests.estimate(_folder(pid), pid, to)
    if json:
        print_json(asdict(found) | {"pause_s": found.pause_s, "total_s": found.total_s})
        return
    amount = f"{number(found.dirty_bytes / 1e6)} of {number(found.bytes / 1e6)} MB are written meanwhile"
    say(f"{pid}: a move takes {duration(found.total_s)} with a pause of {duration(found.pause_s)}; {amount}")


@app.command("move")
def move(
    pid: PidArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="DEVICE", help="Key of the device to move to.")],
    patience: PatienceOption = 30.0,
    json: JsonOption = False,
) -> None:
    """Move a running program to another device; if that fails, it runs on where it is."""
    from agent.opencl_layer import requests

    _tell(requests.move(_folder(pid), pid, to, patience_s=patience), json)


def _folders() -> list[Path]:
    """Return the folders of sockets: of programs that were started by hand, and of jobs."""
    from agent.opencl_layer import requests
    from tenbin.client.connection import default_home, socket_folder

    return [requests.default_folder(), socket_folder(default_home()) / requests.OF_JOBS]


def _folder(pid: int) -> Path:
    """Return the folder that has the program's socket, else that of programs started by hand."""
    own, of_jobs = _folders()
    return of_jobs if (of_jobs / str(pid)).is_socket() else own


@app.command("try")
def try_(
    pid: PidArgument,
    *,
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="Key of the device to try.")],
    watch: Annotated[
        float, typer.Option("--watch", min=0.01, max=60, help="Seconds in which launches are awaited.")
    ] = 2.0,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            min=1,
            help="MiB of copies on each device. (default: an eighth of the smaller device's memory)",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try a running program on another device: how fast it would be there, and if results agree.

    One launch of each kernel is replayed there and here. The program runs on where it is, and nothing of it
    changes; it stands still while launches are timed on its own device.
    """
    from agent.opencl_layer import requests
    from tenbin.commands.opencl.trials import lines

    trial = requests.try_on(
        _folder(pid),
        pid,
        on,
        lambda text: say(f"tenbin: {text}", error=True),
        watch_s=watch,
        memory_mib=memory or 0,
    )
    if json:
        print_json(trial.as_json())
        return
    for line in lines(trial, pid):
        say(line)


def _tell(one: LayerStatus, json: bool) -> None:
    if json:
        print_json(asdict(one) | {"predicted_pause_s": one.estimate.pause_s if one.estimate else None})
    else:
        say(_line(one))


def _line(one: LayerStatus) -> str:
    """Write one line on a program."""
    if one.state == "parked":
        parked = f"{number(one.parked_bytes / 1e6)} MB in {'a file' if one.parked_in == 'file' else 'memory'}"
        return f"{one.pid}: parked, {parked}; was on {one.device}"
    parts = [f"{one.pid}: on {one.device}"]
    if one.hindrances:
        parts.append(f"cannot be moved: uses {_hindrances(one)}")
    elif one.postponed:
        parts.append("a move is postponed")
    else:
        others = [device["key"] for device in one.devices if device["key"] != one.device]
        parts.append(f"can be moved to {', '.join(others)}" if others else "can be parked")
    if one.moves and one.last_pause_s is not None:
        times = f"{one.moves} move{'s' * (one.moves != 1)}"
        predicted = f" (predicted {duration(one.estimate.pause_s)})" if one.estimate else ""
        parts.append(f"{times}, the last with a pause of {duration(one.last_pause_s)}{predicted}")
    if one.last_trouble:
        parts.append(f"last failure: {one.last_trouble}")
    return "; ".join(parts)


def _hindrances(one: LayerStatus) -> str:
    return ", ".join(f"{item['uses']} since {clock(item['since'])}" for item in one.hindrances)


def _devices(variables: dict[str, str]) -> list[OpenCLDevice]:
    """List the devices that a program sees with these variables."""
    from profiles.inventory import OpenCLDevice

    return [OpenCLDevice.model_validate(one) for one in _listed(variables)]


def _lacking(keys: Sequence[str]) -> str:
    """Say which of these devices take double precision away from the others; "" if none does."""
    having = _listed({}, "double")
    lacking = [key for key in keys if key not in having]
    return f"; no double precision, because of {', '.join(lacking)}" if 0 < len(lacking) < len(keys) else ""


def _listed(variables: dict[str, str], *options: str) -> list[Any]:
    """List devices by a process of its own, because drivers crash."""
    import json
    import os
    import subprocess
    import sys

    command = [sys.executable, "-P", "-m", "probes.opencl.devices", *options]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip() or "the OpenCL drivers crash")
    return list(json.loads(done.stdout))
