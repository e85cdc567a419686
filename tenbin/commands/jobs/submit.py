"""``tenbin submit``: hand a job to the coordinator."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, NamedTuple

import typer

from profiles.errors import BadInput
from tenbin.commands.jobs.order import order_fields
from tenbin.commands.jobs.scripts.command import ScriptBatch, SubmitCommand, batch_of
from tenbin.commands.options import HomeOption, JsonOption, complete_device, complete_job_profile
from tenbin.commands.quantities import (
    account_and_share,
    array_and_limit,
    count_range,
    duration_s,
    expected,
    size_mb,
    speedups,
    variables,
)

OF_A_FILE = {"file", "dry_run", "wait", "home", "json"}  # options that go with a job file
OPTION = {"folder": "chdir"}


CommandClass = SubmitCommand  # of ``tenbin.cli``


class _Submission(NamedTuple):
    """The options that are not of the jobs."""

    dry_run: bool
    wait: bool
    home: Path | None
    json: bool


def submit(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A script and its arguments; or any program, after --.", metavar="SCRIPT | -- CMD..."
        ),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="Submit all jobs of a job file (TOML), see docs/job-files.md."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the job, for people.")] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", "-n", help="How many tasks: 4, or 1-4, from which the policy chooses.")
    ] = "1",
    cores: Annotated[int, typer.Option("--cores", "-c", min=1, help="Cores of each task.")] = 1,
    mpi: Annotated[bool, typer.Option("--mpi", help="Start the tasks as ranks, by mpiexec.")] = False,
    nodes: Annotated[
        str | None, typer.Option(help="Whole nodes in place of tasks, which fill them: 2, or 1-4.")
    ] = None,
    speedup: Annotated[
        str | None, typer.Option(help="How fast so many tasks (or nodes) are: 1=1,2=1.9,4=3.5.")
    ] = None,
    load: Annotated[
        str,
        typer.Option(
            help="What limits the job, compute or memory: chooses the measured curves for its size."
        ),
    ] = "compute",
    memory: Annotated[str | None, typer.Option(help="Memory of each task: 500M, 2G.")] = None,
    time: Annotated[str | None, typer.Option(help="Limit of the run time: 90s, 10m, 1.5h, 1:30:00.")] = None,
    device: Annotated[
        str,
        typer.Option(
            help="Where devices are scheduled: any, a kind (gpu, cpu), or a name.",
            autocompletion=complete_device,
        ),
    ] = "any",
    expect: Annotated[
        str | None, typer.Option(help="Expected run time: 10m, or on each device: gpu=1m,cpu=10m.")
    ] = None,
    job_profile: Annotated[
        str,
        typer.Option(
            help="Where jobs share nodes: its job profile, by name (tenbin job list).",
            autocompletion=complete_job_profile,
        ),
    ] = "",
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="The job uses tenbin.Checkpoint, and can be stopped and moved."),
    ] = False,
    move: Annotated[
        bool,
        typer.Option(
            "--move/--no-move",
            help="Where devices are scheduled: an unmodified OpenCL program can be parked and moved.",
        ),
    ] = True,
    priority: Annotated[
        int, typer.Option(help="Jobs of a higher priority come before those that wait already.")
    ] = 0,
    user_share: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME=WEIGHT: account of the job, and its weight until the job has ended, "
            "for policies that share between users (las-drf).",
            metavar="NAME[=WEIGHT]",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            help="Start only after this job, or all of this array, has succeeded: 7, 7[3], last; repeatable.",
            metavar="JOB",
        ),
    ] = None,
    after_any: Annotated[
        list[str] | None,
        typer.Option(help="Start only after this job has ended, however; repeatable.", metavar="JOB"),
    ] = None,
    after_not_ok: Annotated[
        list[str] | None,
        typer.Option(help="Start only after this job has ended without success; repeatable.", metavar="JOB"),
    ] = None,
    after_corr: Annotated[
        list[str] | None,
        typer.Option(
            help="Of arrays: each member after that of the same index there; repeatable.", metavar="ARRAY"
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(help="Do not start before: 16:00, now+1h, 2026-12-24T08:00.", metavar="TIME"),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="End it at this time if it has not ended, or cancel it.", metavar="TIME"),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, max=1000, help="Try it again so often if it fails by itself.")
    ] = 0,
    retry_on: Annotated[
        str | None,
        typer.Option(help="Only on these exit codes (128 + signal): 1,137.", metavar="CODES"),
    ] = None,
    retry_pause: Annotated[
        str | None,
        typer.Option(
            help="First pause before that; each is twice the one before, an hour at most. (default: 10s)",
            metavar="TIME",
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            help="One job for each number: 1-10, 0-20:5, 1-99%8 (at most 8 at once); see TENBIN_ARRAY_INDEX."
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="A variable of its environment; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--chdir", help="Working directory. (default: this one)")
    ] = None,
    output: Annotated[str, typer.Option(help="File for standard output.")] = "",
    error: Annotated[str, typer.Option(help="File for standard error.")] = "",
    requeue: Annotated[
        bool, typer.Option(help="Run the job again if it is lost with its supervisor.")
    ] = True,
    ignore_sbatch: Annotated[
        list[str] | None,
        typer.Option(help="Options of #SBATCH lines to leave out: exclusive,constraint.", metavar="NAMES"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and print what would be submitted.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the job; exit with its code.")
    ] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Submit a job. When its number is printed it is safe: no crash loses it.

    A script's lines [bold]#TENBIN -c 4 --time 10m[/bold] are options; its #SBATCH lines are Slurm's
    (docs/scripts.md).

    [bold]Examples[/bold]

      tenbin submit job.sh

      tenbin submit -c 4 --time 10m -- ./simulate --steps 1000

      tenbin submit -n 4 --mpi -- python cg.py

      tenbin submit --array 1-20 -- sh -c 'python fit.py $TENBIN_ARRAY_INDEX'

      tenbin submit --file jobs.toml --dry-run
    """
    how = _Submission(dry_run, wait, home, json)
    if file is not None or not command:
        _submit_file(context, file, how)
        return
    spec = spec_of(context.params, command)
    indices, limit = (None, None) if array is None else array_and_limit(array)
    if limit is not None:
        spec["array_limit"] = limit
    batch = batch_of(context, spec, indices, ignore_sbatch or [])
    if batch is not None:
        spec, indices = batch.spec, batch.array
        how = how._replace(dry_run=dry_run or batch.dry_run, wait=wait or batch.wait)
    _hand_over([spec], how, arrays={} if indices is None else {0: indices}, batch=batch)


def spec_of(options: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Make the JobSpec that options ask for.

    Args:
        options: of ``tenbin submit``, by the names of its parameters, as ``typer.Context.params`` has them.

    Raises:
        BadInput: a value cannot be read.
    """
    asked = SimpleNamespace(**options)
    folder = str((Path(asked.folder) if asked.folder else Path.cwd()).absolute())
    env = variables(list(asked.env or ()))
    _check_encoding("working directory", [folder], "rename it, or name another with --chdir")
    _check_encoding("--output and --error", [asked.output, asked.error], "name others")
    _check_encoding("--name", [asked.name], "name it otherwise")
    _check_encoding("--env", [*env, *env.values()], "have the command set it")
    _check_encoding("command", command, "write it in UTF-8, or read it from a file")
    account, share = account_and_share(asked.user_share) if asked.user_share is not None else ("", None)
    (least_tasks, most_tasks), (least_nodes, most_nodes) = (
        count_range("--tasks", asked.tasks),
        count_range("--nodes", asked.nodes),
    )
    return {
        "command": command,
        "name": asked.name,
        "tasks": least_tasks,
        "max_tasks": most_tasks,
        "nodes": least_nodes,
        "max_nodes": most_nodes,
        "speedup": speedups(asked.speedup),
        "load": asked.load,
        "cores": asked.cores,
        "mpi": asked.mpi,
        "memory_mb": size_mb(asked.memory) if asked.memory else None,
        "time_s": duration_s(asked.time) if asked.time else None,
        "device": asked.device,
        "expect_s": expected(asked.expect),
        "job_profile": asked.job_profile,
        "checkpoint_signal": int(signal.SIGURG) if asked.checkpoint else None,
        "move": asked.move,
        "priority": asked.priority,
        "account": account,
        "share": share,
        **order_fields(options),
        "env": env,
        "folder": folder,
        "stdout": asked.output,
        "stderr": asked.error,
        "requeue": asked.requeue,
    }


def _check_encoding(what: str, texts: Iterable[str], remedy: str) -> None:
    """Refuse bytes that are not UTF-8, in which jobs are kept.

    Raises:
        BadInput: there are such.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"{what}: {os.fsencode(text)[:200]!r} is not UTF-8", remedy) from error


def _submit_file(context: typer.Context, file: Path | None, how: _Submission) -> None:
    """Submit all jobs of a file, if the command line says nothing else about the jobs."""
    from tenbin.commands.jobs.job_file import read
    from tenbin.errors import TenbinError

    if file is None:
        raise BadInput("nothing to run", "tenbin submit -- CMD..., or tenbin submit --file JOBS.toml")
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in OF_A_FILE and source is not None and source.name == "COMMANDLINE":
            said = "a command" if name == "command" else f"--{OPTION.get(name, name).replace('_', '-')}"
            raise BadInput(f"{said} with --file: the file says what is run and how", "write it there")
    batch = read(file)
    try:
        _hand_over(batch.specs, how, arrays=batch.arrays, waits_for=batch.waits_for)
    except TenbinError as error:
        raise TenbinError(batch.explain(error), error.exit_code) from error


def _hand_over(
    specs: list[dict[str, Any]],
    how: _Submission,
    *,
    arrays: Mapping[int, Sequence[int]],
    waits_for: Mapping[int, Mapping[Any, Sequence[int]]] = MappingProxyType({}),
    batch: ScriptBatch | None = None,
) -> None:
    """Submit, or only show, and wait if asked to."""
    import json as json_

    from tenbin.client.client import Client
    from tenbin.commands.jobs.jobs import wait_for

    if how.dry_run:
        from scheduler.jobs.files.commands import check_commands
        from scheduler.jobs.specs import JobSpec
        from tenbin.commands.jobs.job_file import show

        shown = show(specs, waits_for, arrays)  # checks them as well
        check_commands(list(map(JobSpec.model_validate, specs)), os.environ, script=batch is not None)
        body = {"specs": specs, "waits_for": dict(waits_for), "arrays": dict(arrays)}
        print(json_.dumps(body, indent=1) if how.json else shown)
        return
    client = Client(how.home)
    script, environment = (None, None) if batch is None else (batch.content, batch.environment)
    told = client.hand_over(specs, environment, waits_for=waits_for, arrays=arrays, script=script)
    if how.json:
        print(json_.dumps(told))
    else:
        left, array = iter(told["ids"]), iter(told["arrays"])
        for place in range(len(specs)):
            members = [next(left) for _ in arrays.get(place, "-")]
            print(next(array) if place in arrays else members[0])
    if how.wait:
        raise typer.Exit(wait_for(client, told["ids"], quiet=how.json))
