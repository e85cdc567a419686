"""``tenbin submit``: hand a job to the coordinator."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts.command import ScriptBatch, SubmitCommand, batch_of
from tenbin.commands.options import HomeOption, JsonOption, complete_device, complete_job_profile
from tenbin.fields import OPTIONS, Option
from tenbin.option_values import BadOption

OF_A_FILE = {"file", "dry_run", "wait", "home", "json"}  # options that go with a job file
NEVER_EMPTY = {"nodes", "user-share", "array"}  # of others an empty text, as of an unset variable, is none
COMPLETIONS = {"device": complete_device, "job-profile": complete_job_profile}

Command = TypeVar("Command", bound=Callable[..., Any])
CommandClass = SubmitCommand  # of ``tenbin.cli``


class _Submission(NamedTuple):
    """The options that are not of the jobs."""

    dry_run: bool
    wait: bool
    home: Path | None
    json: bool


def with_fields(after: str, leave_out: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command the options of a job's fields, in place of its ``**fields``.

    Args:
        after: the parameter of the command that they follow. leave_out: names of options.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [own.parameters[name] for name in own.parameters if name != "fields"]
        place = 1 + [parameter.name for parameter in parameters].index(after)
        parameters[place:place] = [
            _parameter(option) for option in OPTIONS.values() if option.name not in leave_out
        ]
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    """Make the parameter of an option, as typer reads it."""
    declaration = typer.Option(
        *option.spelling,
        help=option.text,
        metavar=option.metavar,
        min=option.least,
        max=option.most,
        autocompletion=COMPLETIONS.get(option.name),
    )
    default = option.default or None if option.kind == list[str] else option.default
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[option.kind | None, declaration],
    )


@with_fields(after="file")
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
    **fields: Any,
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
    spec = spec_of(fields, command, home)
    indices = spec.pop("array", None)
    batch = batch_of(context, spec, indices, ignore_sbatch or [])
    if batch is not None:
        spec, indices = batch.spec, batch.array
        how = how._replace(dry_run=dry_run or batch.dry_run, wait=wait or batch.wait)
    _hand_over([spec], how, arrays={} if indices is None else {0: indices}, batch=batch)


def spec_of(options: Mapping[str, Any], command: Sequence[str], home: Path | None) -> dict[str, Any]:
    """Make the JobSpec that options ask for; of an array also its indices (``array``).

    Args:
        options: by the names of their parameters.
        home: of the coordinator that knows the jobs to wait for.

    Raises:
        BadInput: a value cannot be read.
    """
    spec: dict[str, Any] = {"command": command}
    for option in OPTIONS.values():
        value = options.get(option.parameter)
        if option.read == "job_numbers":
            value = _numbers(f"--{option.name}", value or (), home)
        elif option.name == "chdir":
            value = (value or Path.cwd()).absolute()
        elif value is None:
            value = option.default
        if value is None or (value == "" and option.default is None and option.name not in NEVER_EMPTY):
            continue
        if option.name.startswith("retry-") and not options.get("retries"):
            raise BadOption(f"--{option.name}", "without --retries", "say how often: --retries 3")
        spec |= option.values(value)
    _check_encoding("working directory", [spec["folder"]], "rename it, or name another with --chdir")
    _check_encoding("--output and --error", [spec["stdout"], spec["stderr"]], "name others")
    _check_encoding("--name", [spec["name"]], "name it otherwise")
    _check_encoding("--env", [*spec["env"], *spec["env"].values()], "have the command set it")
    _check_encoding("command", command, "write it in UTF-8, or read it from a file")
    return spec


def _numbers(option: str, words: Sequence[str], home: Path | None) -> list[int]:
    """Read jobs to wait for; the coordinator knows what all but plain numbers mean.

    Raises:
        BadOption: there are none.
        TenbinError: the coordinator does not answer, or a word is no job to it.
    """
    from scheduler.jobs.selectors import read_selector
    from tenbin.client.client import Client
    from tenbin.commands.jobs.selection import select

    numbers: list[int] = []
    for word in words:
        if re.fullmatch(r"\d{1,18}", word):
            numbers.append(int(word))
            continue
        try:
            read_selector(word)
        except BadInput as error:
            raise BadOption(option, error.what, error.remedy) from error
        chosen = select(Client(home), [word], members=False).ids
        if not chosen:
            raise BadOption(option, f"{word}: there is no such job", "see: tenbin jobs --all")
        numbers += chosen
    return list(dict.fromkeys(numbers))


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
            said = "a command" if name == "command" else f"--{name.replace('_', '-')}"
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
        from scheduler.jobs.files import check_commands
        from scheduler.jobs.specs import JobSpec
        from tenbin.commands.jobs.job_file import show

        shown = show(specs, waits_for, arrays)  # checks them as well
        checked = list(map(JobSpec.model_validate, specs))
        check_commands(checked, os.environ, script=batch is not None)
        whole = [spec.model_dump(mode="json") for spec in checked]
        body = {"specs": whole, "waits_for": dict(waits_for), "arrays": dict(arrays)}
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
