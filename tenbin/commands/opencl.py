"""``tenbin opencl``: start unmodified OpenCL programs so that they can be moved, and move them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import BadInput, Unavailable
from profiles.quantities import clock, duration, number
from tenbin.commands.options import JsonOption
from tenbin.text import print_answer, remark, say

if TYPE_CHECKING:
    from agent.opencl_layer.requests import LayerStatus
    from agent.opencl_layer.trials import KernelTrial, Ratio, Trial

BELOW = " tenbin"  # last word of a driver's version, as the layer tells it

PidArgument = Annotated[int, typer.Argument(help="Process ID of the program.", min=1)]
PatienceOption = Annotated[
    float,
    typer.Option("--patience", min=0, help="Seconds to wait for a user event to be set, or a build to end."),
]


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...")],
    *,
    device: list[str] | None = None,
) -> None:
    """Run an OpenCL program so that it can be parked and moved.

    The program sees one device, whose limits all devices admit that it may use. It starts on the first one.

    Args:
        command: Program and arguments, after --.
        device: Key of a device that the program may use, the one to start on first; repeat it. (default: all
            devices)
    """
    from agent.opencl_layer import build, loader, requests

    known = [row["key"] for row in _devices()]
    for key in device or ():
        if key not in known:
            raise BadInput(f"no OpenCL device {key!r}", f"choose from {', '.join(known)}")
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"{command[0]}: no such program", "name a program after --")
    folder = requests.own_folder(requests.default_folder())
    variables = requests.environment(build.build(), folder, device or ())
    if loader.linked_into(program):
        remark(f"{program} cannot be moved: the OpenCL loader in it knows no layers")
    else:
        _tell_what_it_sees(device or known, variables)
    if why := loader.trouble():
        remark(f"most OpenCL programs cannot be moved here: {why}; {loader.remedy()}")
    os.execvpe(program, command, {**os.environ, **variables})


def _tell_what_it_sees(keys: Sequence[str], variables: dict[str, str]) -> None:
    for seen in _devices(environment={**os.environ, **variables}):
        if seen["driver"].endswith(BELOW):
            limits = f"limits of {', '.join(keys)}{_lacking(keys)}; starts on {keys[0]}"
            remark(f"the program sees one device: {seen['name']} ({limits})")
        else:
            remark("pyopencl's OpenCL loader does not load the layer")


def status(pid: Annotated[int | None, typer.Argument(min=1)] = None, json: JsonOption = False) -> None:
    """List the programs that can be moved, where each is, or why it cannot.

    Args:
        pid: Process ID. (default: all)
    """
    from agent.opencl_layer import requests

    outside = [] if pid else [pair for folder in _folders() for pair in requests.outsiders(folder)]
    programs = (
        [requests.status(_folder(pid), pid)]
        if pid
        else [program for folder in _folders() for program in requests.statuses(folder, outside)]
    )
    for other, why in outside:
        say(f"{other}: cannot be moved: {why}", error=json)
    none = "no OpenCL program runs that was started by: tenbin opencl run -- CMD, or as a job on a device"
    shown = list(map(_line, programs)) or [none] * (not outside)
    if json or shown:
        print_answer([asdict(program) for program in programs], "\n".join(shown), json)


def park(
    pid: PidArgument,
    *,
    to: str = "memory",
    patience: PatienceOption = 30.0,
    json: JsonOption = False,
) -> None:
    """Stop a program at its next OpenCL call and free its device until it is resumed.

    Args:
        to: 'memory', or a folder for a file that vanishes with the program.
    """
    from agent.opencl_layer import requests

    folder = None if to == "memory" else Path(to)
    if folder is not None and not folder.is_dir():
        raise BadInput(f"--to {to}: no such folder", "name a folder, or 'memory'")
    _tell(requests.park(_folder(pid), pid, folder, patience_s=patience), json)


def resume(
    pid: PidArgument,
    *,
    to: Annotated[str, typer.Option(metavar="DEVICE", show_default=False)] = "",
    json: JsonOption = False,
) -> None:
    """Let a parked program go on, on its device or on another one.

    Args:
        to: Key of another device.
    """
    from agent.opencl_layer import requests

    _tell(requests.resume(_folder(pid), pid, to), json)


def estimate(
    pid: PidArgument,
    *,
    to: Annotated[str, typer.Option(metavar="DEVICE")],
    json: JsonOption = False,
) -> None:
    """Predict the pause of a move: do all of it while the program runs, and let it go before the pause.

    Args:
        to: Key of the device of the move.
    """
    from agent.opencl_layer import requests

    prediction = requests.estimate(_folder(pid), pid, to)
    written, all_mb = number(prediction.dirty_bytes / 1e6), number(prediction.bytes / 1e6)
    times = f"{duration(prediction.total_s)} with a pause of {duration(prediction.pause_s)}"
    text = f"{pid}: a move takes {times}; {written} of {all_mb} MB are written meanwhile"
    value = asdict(prediction) | {"pause_s": prediction.pause_s, "total_s": prediction.total_s}
    print_answer(value, text, json)


def move(
    pid: PidArgument,
    *,
    to: Annotated[str, typer.Option(metavar="DEVICE")],
    patience: PatienceOption = 30.0,
    json: JsonOption = False,
) -> None:
    """Move a running program to another device; if that fails, it runs on where it is.

    Args:
        to: Key of the device to move to.
    """
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


def try_(
    pid: PidArgument,
    *,
    on: Annotated[str, typer.Option(metavar="DEVICE")],
    watch: Annotated[float, typer.Option(min=0.01, max=60)] = 2.0,
    memory: Annotated[int | None, typer.Option(min=1)] = None,
    json: JsonOption = False,
) -> None:
    """Try a running program on another device: how fast it would be there, and if results agree.

    One launch of each kernel is replayed there and here. The program runs on where it is, and nothing of it
    changes; it stands still while launches are timed on its own device.

    Args:
        on: Key of the device to try.
        watch: Seconds in which launches are awaited.
        memory: MiB of copies on each device. (default: an eighth of the smaller device's memory)
    """
    from agent.opencl_layer import requests

    trial = requests.try_on(_folder(pid), pid, on, remark, watch_s=watch, memory_mib=memory or 0)
    print_answer(trial.as_json(), "\n".join(lines(trial, pid)), json)


def _tell(program: LayerStatus, json: bool) -> None:
    pause_s = program.estimate.pause_s if program.estimate else None
    print_answer(asdict(program) | {"predicted_pause_s": pause_s}, _line(program), json)


def _line(program: LayerStatus) -> str:
    """Write one line on a program."""
    if program.state == "parked":
        where = "a file" if program.parked_in == "file" else "memory"
        parked = f"{number(program.parked_bytes / 1e6)} MB in {where}"
        return f"{program.pid}: parked, {parked}; was on {program.device}"
    parts = [f"{program.pid}: on {program.device}"]
    if program.hindrances:
        parts.append(f"cannot be moved: uses {_hindrances(program)}")
    elif program.postponed:
        parts.append("a move is postponed")
    else:
        others = [device["key"] for device in program.devices if device["key"] != program.device]
        parts.append(f"can be moved to {', '.join(others)}" if others else "can be parked")
    if program.moves and program.last_pause_s is not None:
        times = f"{program.moves} move{'s' * (program.moves != 1)}"
        predicted = f" (predicted {duration(program.estimate.pause_s)})" if program.estimate else ""
        parts.append(f"{times}, the last with a pause of {duration(program.last_pause_s)}{predicted}")
    if program.last_trouble:
        parts.append(f"last failure: {program.last_trouble}")
    return "; ".join(parts)


def _hindrances(program: LayerStatus) -> str:
    return ", ".join(f"{call['uses']} since {clock(call['since'])}" for call in program.hindrances)


def _lacking(keys: Sequence[str]) -> str:
    """Say which of these devices take double precision away from the others; "" if none does."""
    having = _devices("double")
    lacking = [key for key in keys if key not in having]
    return f"; no double precision, because of {', '.join(lacking)}" if 0 < len(lacking) < len(keys) else ""


def _devices(*options: str, environment: Mapping[str, str] | None = None) -> list[Any]:
    """List the devices that a program sees, by a process of its own, because drivers crash."""
    command = [sys.executable, "-P", "-m", "probes.opencl", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(done.stderr.strip() or "the OpenCL drivers crash")
    return list(loads(done.stdout))


# -- the outcome of a trial in words -----------------------------------------------------------------------


def lines(trial: Trial, pid: int) -> Iterator[str]:
    """Write what a trial has shown, the sum first."""
    whole, kernels = trial.program_ratio, trial.ratio
    if whole is None or kernels is None:
        yield f"{pid}: no kernel could be tried on {trial.on}"
    else:
        yield f"{pid}: on {trial.on} it would be {_speed(whole)} as on {trial.device}; {_results(trial)}"
        yield f"its kernels: {_speed(kernels)}; they run {100 * trial.busy_share:.0f} % of the time"
    for kernel in trial.kernels:
        yield f"  {_kernel(kernel)}"
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
    same = all(not kernel.differing_bytes for kernel in trial.kernels)
    return "results are bit-identical" if same else "results agree but for rounding"


def _kernel(kernel: KernelTrial) -> str:
    sizes = " x ".join(map(str, kernel.global_size))
    local = f" by {' x '.join(map(str, kernel.local_size))}" if kernel.local_size else ""
    name = f"{kernel.name} ({sizes}{local}), {kernel.launches} launch{'es' * (kernel.launches != 1)}"
    if kernel.here is None or kernel.there is None:
        return f"{name}: not tried: {kernel.trouble}"
    times = f"{duration(kernel.here.median_s)} here, {duration(kernel.there.median_s)} there"
    return f"{name}: {times} (n = {kernel.here.n}, {kernel.there.n}); {_comparison(kernel)}"


def _comparison(kernel: KernelTrial) -> str:
    if not kernel.compared_bytes:
        return "writes nothing"
    if not kernel.differing_bytes:
        return f"{kernel.compared_bytes} bytes written are identical"
    share = f"{kernel.differing_bytes} of {kernel.compared_bytes} bytes written differ"
    if kernel.relative_difference is None:
        return share
    return f"{share}, numbers by at most {kernel.relative_difference:.2g} of themselves"
