"""``tenbin submit SCRIPT``: the lines of a script joined with the command line, which goes before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts.script import SBATCH, TENBIN, Directive, Script, is_script, read_script
from tenbin.option_values import BadOption

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
def options_of_sbatch_explained() -> Iterator[None]:
    """Name tenbin's own option where one of sbatch is given that tenbin does not have.

    Raises:
        BadInput: in place of typer's error.
    """
    try:
        yield
    except typer.TyperException as error:
        if type(error).__name__ != "NoSuchOption":
            raise
        from tenbin.commands.jobs.scripts.sbatch_options import of_tenbin

        explained = of_tenbin(error.option_name)  # type: ignore[attr-defined]
        if explained is None:
            raise
        raise explained from error


class SubmitCommand(TyperCommand):
    """The command ``submit``: words after a script are the script's own, and its lines are options."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        with options_of_sbatch_explained():
            return self._parse(ctx, args)

    def _parse(self, ctx: typer.Context, args: list[str]) -> list[str]:
        place = None if ctx.resilient_parsing else self._place_of_script(ctx, args)
        if place is None:
            return super().parse_args(ctx, args)
        script = read_script(args[place])
        words = [word for each in script.of(TENBIN) for word in self._checked(script, each)]
        ctx.meta[KEPT] = script
        return super().parse_args(ctx, [*words, *args[:place], "--", *args[place:]])

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
            if {"--help", "-h"} & set(directive.words):
                raise BadInput("--help is no option of a job", "remove it")
            context = self.make_context("submit", list(directive.words))
        except BadInput as error:
            raise BadInput(f"{where}: {error.what}", error.remedy) from error
        except typer.TyperException as error:
            what = getattr(error, "format_message", error.__str__)()
            raise BadInput(f"{where}: {what.rstrip('.')}", "see: tenbin submit --help") from error
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
            each.line
            for each in script.of(TENBIN)
            if any(
                option in (*param.opts, *param.secondary_opts)
                for param in self.params
                if param.name in given(self.make_context("submit", list(each.words)))
            )
        ]
        return lines[-1] if lines else None


def given(context: Any) -> set[str]:
    """Return the parameters that stand on the command line or in a ``#TENBIN`` line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


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
    from tenbin.commands.jobs.scripts.needs import array_variables, needs_of
    from tenbin.text import say

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
        say(f"tenbin: {line}", error=True)
