"""The ``tenbin`` command."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from profiles.errors import INTERRUPTED, BadInput, UserError
from tenbin.errors import TenbinError
from tenbin.text import say

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MEASURE, TRY, RUN = "Measure this node", "Try policies in virtual time", "Run jobs on this machine"
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)

COMMANDS = {  # in the order of --help: where the function, or the app of a group, lies; the panel
    "doctor": ("measure.doctor:doctor", MEASURE),
    "profile": ("measure.profile:profile", MEASURE),
    "show": ("measure.stored:show", MEASURE),
    "list": ("measure.stored:list_profiles", MEASURE),
    "label": ("measure.stored:label", MEASURE),
    "delete": ("measure.stored:delete", MEASURE),
    "check": ("measure.check:check", MEASURE),
    "drift": ("measure.compare:drift", MEASURE),
    "compare": ("measure.compare:compare", MEASURE),
    "export": ("measure.stored:export", MEASURE),
    "report": ("measure.stored:report", MEASURE),
    "pairs": ("measure.pairs:pairs", MEASURE),
    "slurm-config": ("measure.cluster:slurm_config", MEASURE),
    "restore": ("measure.doctor:restore", MEASURE),
    "simulate": ("simulate:simulate", TRY),
    "reproduce": ("reproduce:reproduce", TRY),
    "up": ("up:up", RUN),
    "down": ("status:down", RUN),
    "status": ("status:status", RUN),
    "nodes": ("status:nodes", RUN),
    "page": ("page:page", RUN),
    "run": ("jobs.run:run", RUN),
    "submit": ("jobs.submit:submit", RUN),
    "map": ("jobs.map:map_", RUN),
    "jobs": ("jobs.jobs:jobs", RUN),
    "top": ("top:top", RUN),
    "history": ("jobs.history:history", RUN),
    "efficiency": ("jobs.history:efficiency", RUN),
    "info": ("jobs.jobs:info", RUN),
    "logs": ("jobs.jobs:logs", RUN),
    "attach": ("jobs.jobs:attach", RUN),
    "wait": ("jobs.jobs:wait", RUN),
    "cancel": ("jobs.jobs:cancel", RUN),
    "suspend": ("jobs.jobs:suspend", RUN),
    "resume": ("jobs.jobs:resume", RUN),
    "retry": ("jobs.jobs:retry", RUN),
    "migrate": ("jobs.jobs:migrate", RUN),
    "priority": ("jobs.jobs:priority", RUN),
    "calibration": ("jobs.calibration:calibration", RUN),
    "opencl": ("opencl:app", RUN),
    "job": ("job:app", MEASURE),
    "agent": ("agent:app", None),
}


class Commands(Mapping[str, Any]):
    """The commands, each imported when it is needed, because to import all takes longer than most run.

    Attributes:
        brief: make them without their parameters, which a list of commands does not show.
    """

    brief = False

    def __getitem__(self, name: str) -> Any:
        place, panel = COMMANDS[name]
        module, attribute = place.split(":")
        imported = import_module(f"tenbin.commands.{module}")
        target, of_its_own = getattr(imported, attribute), getattr(imported, "CommandClass", None)
        group = typer.Typer(rich_markup_mode="rich")
        if isinstance(target, typer.Typer):
            group.add_typer(target, name=name, rich_help_panel=panel, hidden=panel is None)
        else:
            group.command(name, cls=of_its_own, rich_help_panel=panel, help=target.__doc__)(
                _nothing if self.brief else target
            )
        return typer.main.get_group(group).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _nothing() -> None:
    """Stand in for a command of which only name and help are needed."""


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    """Make a BadInput of an error in the use of a command; a group without a command prints its help."""
    try:
        yield
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        what = getattr(error, "format_message", error.__str__)()
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tenbin"
        raise BadInput(what.rstrip("."), f"see: {command} --help") from error


class Group(TyperGroup):
    """The command ``tenbin`` with its ``Commands``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]  # nobody adds to them

    def make_context(self, *arguments: Any, **settings: Any) -> typer.Context:
        with _usage_in_one_line():
            return super().make_context(*arguments, **settings)  # type: ignore[return-value]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        with _usage_in_one_line():
            return super().invoke(ctx)

    def format_help(self, *arguments: Any) -> None:
        self.commands.brief = True  # type: ignore[attr-defined]
        super().format_help(*arguments)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


app = typer.Typer(
    name="tenbin",
    cls=Group,
    help="Weighs machines: measures what a node can do, with honest intervals; then balances jobs on it.\n\n"
    "Start with [bold]tenbin doctor[/bold] (what can be measured here?), "
    "then [bold]tenbin profile[/bold], then [bold]tenbin report[/bold]. "
    "Jobs: [bold]tenbin up --daemon[/bold], then [bold]tenbin submit -- COMMAND[/bold].",
    epilog="Exit codes: 0 done, 1 a part failed, 2 bad input, 3 another profile is running, "
    "4 this machine lacks what was asked for, 130 interrupted (what was measured is kept).",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"tenbin {installed('tenbin')}")
        raise typer.Exit()


def main() -> None:
    """Run the command line; an error that the user can act on is one line, not a traceback."""
    if isinstance(sys.stdout, TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks are no traceback
    os.environ.setdefault("PATH", SYSTEM_PATH)  # slurmd gives its health check none, and gcc finds no linker
    try:
        _run()
    except (UserError, TenbinError) as error:
        say(f"tenbin: {error}", error=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(128 + signal.SIGPIPE)
    except FileNotFoundError:
        if _has_working_folder():
            raise
        print("tenbin: the working directory does not exist any more; cd to one that does", file=sys.stderr)
        sys.exit(BadInput.exit_code)
    except OSError as error:
        if error.errno not in REFUSED or error.filename is None:
            raise

        remedy = "give yourself access, or name another folder: HOME, --home, --store"
        say(f"tenbin: {os.fsdecode(error.filename)}: {error.strerror}; {remedy}", error=True)
        sys.exit(BadInput.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (Path is not imported yet)
    except FileNotFoundError:
        return False
    return True


def _run() -> None:
    """Run the command line, all output written.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes a 1 of it
            raise ended.__context__ from None
        raise
    finally:
        print(end="", flush=True)
