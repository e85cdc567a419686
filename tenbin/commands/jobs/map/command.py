"""The command ``tenbin map``: its options are those of ``tenbin submit``, and its own."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts.command import options_of_sbatch_explained
from tenbin.commands.jobs.submit import spec_of, with_fields
from tenbin.commands.options import HomeOption


class MapCommand(TyperCommand):
    """The command ``map``: arguments stand after ``--``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Read the options; what is not of them stands after ``--``."""
        given = list(args)
        with options_of_sbatch_explained():
            left = super().parse_args(ctx, args)
        words = ctx.params.get("words") or ()
        if not ctx.resilient_parsing and ("--" not in given or len(words) >= len(given) - given.index("--")):
            what = f"{words[0]!r} stands before --" if words and "--" in given else "no -- before the command"
            raise BadInput(what, "tenbin map [OPTIONS] -- CMD {} ::: a b c")
        return left


CommandClass = MapCommand  # of ``tenbin.cli``


@with_fields(after="home", leave_out={"array"})
def map_(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="After -- a command with {} for an argument, and the arguments: ::: WORDS, "
            ":::: FILES of lines, or the lines of standard input.",
            metavar="-- CMD... ::: ARGUMENT...",
        ),
    ] = None,
    *,
    most: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Run at most so many at once.", metavar="N"),
    ] = None,
    keep_order: Annotated[
        bool,
        typer.Option("--keep-order", "-k", help="Print the outputs in the order of the arguments."),
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Print the number of the array, and wait for nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and print the commands.")] = False,
    home: HomeOption = None,
    **fields: Any,
) -> None:
    """Run a command with many arguments, each as a job of one array, in the style of GNU parallel.

    Waits for all and prints the output of each when it has ended. The exit code is the number of jobs that
    failed, 101 for more than 100. Ctrl-C cancels the array. No shell reads the command (docs/other-tools.md).

    [bold]Examples[/bold]

      tenbin map -- gzip -9 ::: *.csv

      tenbin map -c 4 --time 1h -- ./fit --in {} --out {/.}.json :::: files.txt

      tenbin map -k -- ./simulate --seed {1} --size {2} ::: 1 2 3 ::: 10 100
    """
    from scheduler.jobs.files import check_program
    from tenbin.commands.jobs.job_file import show
    from tenbin.commands.jobs.map import runner, sources, template
    from tenbin.text import printable

    command, of_arguments = sources.split(words or [])
    if not command:
        template.check(command, 0)
    found = sources.combinations(of_arguments)
    template.check(command, len(found[0]))
    commands = [template.expand(command, arguments, number) for number, arguments in enumerate(found, 1)]
    script = runner.script_of(commands)
    spec = spec_of(fields, ["map", *command], home)  # the script leaves these words alone; people see them
    for program in dict.fromkeys(words[0] for words in commands):
        check_program(program, spec["folder"], spec["env"].get("PATH"))
    spec["name"] = spec["name"] or Path(command[0]).name
    spec["array_limit"] = most
    if dry_run:
        show([spec], {}, {})  # checks it
        for each in commands:
            print(printable(shlex.join(each)))
        return
    code = _run(home, spec, commands, script=script, ordered=keep_order, wait=not no_wait)
    raise typer.Exit(code)


def _run(
    home: Path | None,
    spec: dict[str, Any],
    commands: list[list[str]],
    *,
    script: bytes,
    ordered: bool,
    wait: bool,
) -> int:
    """Submit the array, and print its output or only its number; return the exit code."""
    from tenbin.client.client import Client
    from tenbin.commands.jobs.map.outputs import MOST_FAILURES, Outputs

    client = Client(home)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the numbers of the jobs are known
    told = client.hand_over([spec], arrays={0: range(1, len(commands) + 1)}, script=script)
    if not wait:
        print(told["arrays"][0])
        return 0
    streams = [stream for stream in ("stdout", "stderr") if not spec[stream]]
    outputs = Outputs(client, told["ids"], commands, ordered, streams)
    with outputs.cancelled_by_interrupt():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return min(outputs.print_all(), MOST_FAILURES)
