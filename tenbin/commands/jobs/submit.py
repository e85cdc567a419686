"""``tenbin submit``: hand a command, a script or a file of jobs to the coordinator."""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from profiles.errors import BadInput, plain
from tenbin.commands.jobs.scripts import SBATCH, TENBIN, Directive, Script, is_script, read_script
from tenbin.commands.options import (
    Command,
    HomeOption,
    JsonOption,
    client_of,
    complete_device,
    complete_job_profile,
    given,
    option_parameter,
    with_parameters,
)
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.fields import OPTIONS, Option
from tenbin.option_values import BadOption
from tenbin.text import print_json, ranges, remark

# -- a script: its lines joined with the command line, which goes before them ------------------------------


KEPT = "tenbin.script"  # in the context's meta
NOT_IN_SCRIPTS = {"file": "--file", "home": "--home", "json": "--json"}


@dataclass
class ScriptBatch:
    """A script to submit.

    Attributes:
        spec: of the API. array: its indices, if it is an array. environment: None: of this process.
        wait, dry_run: whether a line asks for it.
    """

    content: bytes
    spec: dict[str, Any]
    array: list[int] | None
    environment: dict[str, str] | None = None
    wait: bool = False
    dry_run: bool = False


@contextmanager
def options_of_sbatch_explained(words: Sequence[str] = ()) -> Iterator[None]:
    """Name tenbin's own option where one of sbatch is given that tenbin does not have.

    Raises:
        BadInput: in place of typer's error.
    """
    try:
        yield
    except typer.TyperException as error:
        if type(error).__name__ != "NoSuchOption":
            raise
        from tenbin.commands.jobs.sbatch import of_tenbin

        explained = of_tenbin(error.option_name, words)  # type: ignore[attr-defined]
        if explained is None:
            raise
        raise explained from error


class CommandWithFields(Command):
    """A command with the options of a job's fields; ``--help-all`` shows the rare ones too."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        with options_of_sbatch_explained(list(args)):
            return self.parse(ctx, args)

    def parse(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Read the command line; commands may do so in ways of their own."""
        return super().parse_args(ctx, args)

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        for parameter in self.params:
            if str(parameter.name).replace("_", "-") in RARE.split():
                parameter.hidden = ALL not in ctx.meta  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


class SubmitCommand(CommandWithFields):
    """The command ``submit``: words after a script are the script's own, and its lines are options."""

    def parse(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Read the command line, and the lines of a script that it names."""
        place = None if ctx.resilient_parsing else self._place_of_script(ctx, args)
        if place is None:
            return super().parse(ctx, args)
        script = read_script(args[place])
        words = [word for directive in script.of(TENBIN) for word in self._checked(script, directive)]
        ctx.meta[KEPT] = script
        return super().parse(ctx, [*words, *args[:place], "--", *args[place:]])

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command; name the line of a script whose value cannot be read."""
        try:
            return super().invoke(ctx)
        except BadOption as error:
            script = ctx.meta.get(KEPT)
            line = self._line_of(script, error.option) if script is not None else None
            if script is None or line is None:
                raise
            raise BadInput(f"{script.at(line)}: {TENBIN} {error.what}", error.remedy) from error

    def _place_of_script(self, ctx: typer.Context, args: list[str]) -> int | None:
        """Find the first word that is no option, if it names a script and does not follow ``--``."""
        interspersed, ctx.allow_interspersed_args = ctx.allow_interspersed_args, False
        try:
            parsed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        finally:
            ctx.allow_interspersed_args = interspersed
        words = parsed.get("command") or ()
        place = len(args) - len(words)
        after_dashes = place > 0 and args[place - 1] == "--"
        if not words or after_dashes or "file" in parsed:
            return None
        try:
            return place if is_script(words[0]) else None
        except BadInput:
            if "chdir" in parsed:  # there, another file may have that name
                return None
            raise

    def _checked(self, script: Script, directive: Directive) -> tuple[str, ...]:
        """Return the words of a line if they are options of this command that may stand in a script."""
        where = f"{script.at(directive.line)}: {TENBIN}"
        try:
            if {"--help", "--help-all"} & set(directive.words):
                raise BadInput("--help is no option of a job", "remove it")
            context = self.make_context("submit", list(directive.words))
        except BadInput as error:
            raise BadInput(f"{where}: {error.what}", error.remedy) from error
        except typer.TyperException as error:
            what = getattr(error, "format_message", error.__str__)()
            raise BadInput(f"{where}: {plain(what).rstrip('.')}", "see: tenbin submit --help") from error
        if context.params["command"]:
            raise BadInput(
                f"{where}: {context.params['command'][0]!r} is no option", "see: tenbin submit --help"
            )
        for name in given(context) & NOT_IN_SCRIPTS.keys():
            raise BadInput(
                f"{where}: {NOT_IN_SCRIPTS[name]} is not of the job", "give it on the command line"
            )
        return directive.words

    def _line_of(self, script: Script, option: str) -> int | None:
        """Return the last line with the option."""
        lines = [
            directive.line
            for directive in script.of(TENBIN)
            if any(
                option in (*param.opts, *param.secondary_opts)
                for param in self.params
                if param.name in given(self.make_context("submit", list(directive.words)))
            )
        ]
        return lines[-1] if lines else None


def batch_of(
    context: typer.Context, spec: dict[str, Any], array: list[int] | None, ignored: list[str]
) -> ScriptBatch | None:
    """Join what the options ask for with the ``#SBATCH`` lines of the script; None: there is no script.

    Args:
        spec: as the options of ``tenbin submit`` make it.
        ignored: options of sbatch to leave out.

    Raises:
        BadInput: names the line that tenbin cannot take.
    """
    script: Script | None = context.meta.get(KEPT)
    if script is None:
        if ignored:
            raise BadInput("--ignore-sbatch without a script", "tenbin submit --ignore-sbatch NAME SCRIPT")
        return None
    batch = ScriptBatch(script.content, {**spec, "name": spec["name"] or Path(script.path).name}, array)
    if script.of(SBATCH):
        _add_needs(batch, script, given(context), ignored)
    return batch


def _add_needs(batch: ScriptBatch, script: Script, overruled: set[str], ignored: list[str]) -> None:
    """Add what the ``#SBATCH`` lines ask for and no option of tenbin's own says."""
    from tenbin.commands.jobs.sbatch import array_variables, needs_of

    if overruled & {"nodes", "mpi"}:
        overruled = overruled | {"tasks"}
    if any(name.startswith("after") for name in overruled):
        overruled = overruled | {"after"}
    names = {name.removeprefix("--") for text in ignored for name in text.split(",")}
    needs = needs_of(script, overruled=overruled, ignored=names)
    size = needs.sized(batch.spec)
    variables = needs.variables(batch.spec)
    if needs.array is not None:
        batch.array = needs.array.indices
    if batch.array is not None:
        variables |= array_variables(batch.array)
    env = {**variables, **needs.fields.pop("env", {}), **batch.spec["env"]}
    batch.spec = {**batch.spec, **needs.fields, **size, "env": env, "slurm_variables": True}
    batch.environment, batch.wait, batch.dry_run = needs.environment, needs.wait, needs.dry_run
    for line in needs.left_out:
        remark(line)


# -- the command -------------------------------------------------------------------------------------------


OF_A_FILE = {"file", "dry_run", "wait", "home", "json"}  # options that go with a job file
# Groups of options in the help; the rare ones stand there with --help-all only.
GROUPS = {
    "Size": "tasks cores mpi nodes memory or speedup load cap-curve",
    "Order": "after after-any after-not-ok after-corr priority begin array user-share",
    "Times": "time expect grace deadline",
    "Devices, moves": "device gpus gpus-memory checkpoint checkpoint-signal checkpoint-code move job-profile",
    "Files, environment": "chdir output error env notify slurm-variables",
    "If it fails": "retries retry-on retry-pause requeue",
}
RARE = (
    "speedup load cap-curve after-not-ok after-corr user-share grace deadline checkpoint-signal "
    "checkpoint-code move job-profile slurm-variables retry-on retry-pause requeue ignore-sbatch"
)
ALL = "tenbin.help-all"  # in the context's meta
COMPLETIONS = {"device": complete_device, "job-profile": complete_job_profile}

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
CommandClass = SubmitCommand  # of ``tenbin.cli``


class _Submission(NamedTuple):
    """The options that are not of the jobs."""

    dry_run: bool
    wait: bool
    home: Path | None
    json: bool


def _help_all(context: typer.Context, is_given: bool) -> None:
    """Print the help with all options."""
    if is_given and not context.resilient_parsing:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit()


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="As --help, with the rare options.",
        is_eager=True,
        expose_value=False,
        callback=_help_all,
    ),
]


def with_fields(after: str, leave_out: Collection[str] = ()) -> Callable[[Decorated], Decorated]:
    """Give a command the options of a job's fields, in place of its ``**fields``.

    Args:
        after: the parameter of the command that they follow. leave_out: names of options.
    """
    in_groups = sorted(OPTIONS.values(), key=lambda option: ["", *GROUPS].index(_group(option)))

    def decorate(command: Decorated) -> Decorated:
        parameters = [_parameter(option) for option in in_groups if option.name not in leave_out]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("help_all", kind, default=False, annotation=HelpAll))
        command.__signature__ = with_parameters(command, after, after=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _group(option: Option) -> str:
    return next((title for title, names in GROUPS.items() if option.name in names.split()), "")


def _parameter(option: Option) -> inspect.Parameter:
    """Make the parameter of an option, as typer reads it."""
    return option_parameter(
        option.parameter,
        option.kind,
        option.default or None if option.kind == list[str] else option.default,
        *option.spelling,
        help=option.text,
        metavar=option.metavar,
        min=option.least,
        max=option.most,
        autocompletion=COMPLETIONS.get(option.name),
        rich_help_panel=_group(option) or None,
    )


@with_fields(after="file")
def submit(
    context: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT | -- CMD...")] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", "-f")] = None,
    ignore_sbatch: Annotated[list[str] | None, typer.Option(metavar="NAMES")] = None,
    dry_run: bool = False,
    wait: bool = False,
    home: HomeOption = None,
    json: JsonOption = False,
    **fields: Any,
) -> None:
    """Submit a job. When its number is printed it is safe: no crash loses it.

    A script's lines [bold]#TENBIN -c 4 --time 10m[/bold] are options; its #SBATCH lines are Slurm's
    (docs/scripts.md). The job reads nothing, not even a pipe; tenbin run does.

    [bold]Examples[/bold]

      tenbin submit job.sh

      tenbin submit -c 4 --time 10m -- ./simulate --steps 1000

      tenbin submit -n 4 --mpi -- python cg.py

      tenbin submit --array 1-20 -- sh -c 'python fit.py $TENBIN_ARRAY_INDEX'

      tenbin submit --file jobs.toml --dry-run

    Args:
        command: A script and its arguments; or any program, after --.
        file: Submit all jobs of a job file (TOML), see docs/job-files.md.
        ignore_sbatch: Options of #SBATCH lines to leave out: exclusive,constraint.
        dry_run: Only check, and print what would be submitted, and when it would start.
        wait: Wait for the end, and exit with its code; of a single job print the output too, without --json.
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
        if value is None or (value == "none" and option.default is None and not option.otherwise):
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
    from scheduler.jobs.job_list import read_selector
    from tenbin.commands.jobs.jobs import select

    numbers: list[int] = []
    for word in words:
        if re.fullmatch(r"\d{1,18}", word):
            numbers.append(int(word))
            continue
        try:
            read_selector(word)
        except BadInput as error:
            raise BadOption(option, error.what, error.remedy) from error
        chosen = select(client_of(home), [word], members=False).ids
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

    if file is None:
        raise BadInput("nothing to run", "tenbin submit -- CMD..., or tenbin submit --file JOBS.toml")
    for name in context.params:
        if name not in OF_A_FILE and name in given(context):
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
    from tenbin.commands.jobs.jobs import Output, wait_for

    if any(re.match(r"mail(:|$)", spec.get("notify", "")) for spec in specs) and not shutil.which("mail"):
        remark("--notify mail: there is no program mail here; install one where jobs run, or give a URL")
    client = client_of(how.home)
    script, environment = (None, None) if batch is None else (batch.content, batch.environment)
    given = partial(client.hand_over, specs, environment, waits_for=waits_for, arrays=arrays, script=script)
    if how.dry_run:
        from scheduler.jobs.files import check_commands
        from tenbin.commands.jobs.job_file import checked, show

        whole = [checked(spec, f"job {place}") for place, spec in enumerate(specs, 1)]
        check_commands(whole, os.environ, script=script is not None)
        try:
            forecast, unknown = given(dry_run=True), ""
        except TenbinError as error:
            if error.exit_code != NO_ANSWER:
                raise
            forecast, unknown = {"jobs": [], "remarks": []}, f"\nwhen it would start is not known: {error}"
        print_remarks(forecast)
        if how.json:
            body = {"specs": [spec.model_dump(mode="json") for spec in whole], "forecast": forecast["jobs"]}
            print_json({**body, "waits_for": {**waits_for}, "arrays": {**arrays}})
        else:
            print(show(whole, waits_for, arrays, forecast["jobs"]) + unknown)
        return
    answer = given()
    print_remarks(answer)
    left, array, numbers = iter(answer["ids"]), iter(answer["arrays"]), list[int]()
    for place in range(len(specs)):
        members = [next(left) for _ in arrays.get(place, "-")]
        numbers.append(next(array) if place in arrays else members[0])
    try:
        print(dumps(answer) if how.json else "\n".join(map(str, numbers)), flush=True)
        if not how.wait:
            return
        if len(answer["ids"]) == 1 and not how.json:
            raise typer.Exit(Output(client, answer["ids"][0]).print_all())
        raise typer.Exit(wait_for(client, answer["ids"], quiet=how.json))
    except KeyboardInterrupt:
        text = ranges(numbers)
        stays = f"job {text} stays" if len(numbers) == 1 else f"jobs {text} stay"
        remark(f"{stays}; to end: tenbin cancel {text.replace(',', '')}")
        raise


def print_remarks(answer: Mapping[str, list[Any]]) -> None:
    """Say what will probably not go as wished."""
    for text in answer.get("remarks", ()):
        remark(text)
