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

from profiles.errors import INTERRUPTED, BadInput, UserError, plain
from tenbin.commands.options import Command, flags_alone
from tenbin.errors import TenbinError
from tenbin.text import described, remark

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUN, JOBS, LOOK = "Run jobs", "Jobs that are submitted", "Look at all of it"
MEASURE, TRY = "Measure machines and programs", "Compare policies"
STORED, AGAIN, PREDICT, BELOW = "What is stored", "Whether it still holds", "Predict", "Commands"
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)

# In the order of --help: where the function lies, with words that come before those of the user; the panel
# (None: hidden). What has others below it is a noun; one with a function does that where no command follows.
COMMANDS: dict[str, tuple[str, str | None]] = {
    "up": ("up:up", RUN),
    "down": ("status:down", RUN),
    "run": ("jobs.run:run", RUN),
    "submit": ("jobs.submit:submit", RUN),
    "map": ("jobs.map:map_", RUN),
    "opencl": ("", RUN),
    "opencl run": ("opencl:run", BELOW),
    "opencl status": ("opencl:status", BELOW),
    "opencl park": ("opencl:park", BELOW),
    "opencl resume": ("opencl:resume", BELOW),
    "opencl estimate": ("opencl:estimate", BELOW),
    "opencl move": ("opencl:move", BELOW),
    "opencl try": ("opencl:try_", BELOW),
    "jobs": ("jobs.jobs:jobs", JOBS),
    "info": ("jobs.jobs:info", JOBS),
    "logs": ("jobs.jobs:logs", JOBS),
    "attach": ("jobs.jobs:attach", JOBS),
    "wait": ("jobs.jobs:wait", JOBS),
    "cancel": ("jobs.jobs:cancel", JOBS),
    "suspend": ("jobs.jobs:suspend", JOBS),
    "resume": ("jobs.jobs:resume", JOBS),
    "retry": ("jobs.jobs:retry", JOBS),
    "migrate": ("jobs.jobs:migrate", JOBS),
    "update": ("jobs.jobs:update", JOBS),
    "priority": ("jobs.jobs:priority", JOBS),
    "history": ("jobs.history:history", JOBS),
    "status": ("status:status", LOOK),
    "nodes": ("status:nodes", LOOK),
    "top": ("top:top", LOOK),
    "page": ("page:page", LOOK),
    "doctor": ("measure.doctor:doctor", MEASURE),
    "profile": ("measure.profile:profile", MEASURE),
    "profile list": ("measure.stored:list_profiles", STORED),
    "profile show": ("measure.stored:show", STORED),
    "profile report": ("measure.stored:report", STORED),
    "profile compare": ("measure.compare:compare", STORED),
    "profile label": ("measure.stored:label", STORED),
    "profile export": ("measure.stored:export", STORED),
    "profile delete": ("measure.stored:delete", STORED),
    "profile check": ("measure.check:check", AGAIN),
    "profile drift": ("measure.compare:drift", AGAIN),
    "profile restore": ("measure.doctor:restore", AGAIN),
    "program": ("", MEASURE),
    "program profile": ("job:profile", "Measure"),
    "program again": ("job:again", "Measure"),
    "program examples": ("job:examples", "Measure"),
    "program list": ("job:list_jobs", STORED),
    "program show": ("job:show", STORED),
    "program schema": ("job:schema", STORED),
    "program predict": ("job:predict", PREDICT),
    "program pairs": ("measure.pairs:pairs", PREDICT),
    "program calibration": ("jobs.calibration:calibration", PREDICT),
    "slurm": ("", MEASURE),
    "slurm doctor": ("measure.doctor:doctor --engine slurm", BELOW),
    "slurm profile": ("measure.profile:profile --nodes all", BELOW),
    "slurm config": ("measure.cluster:slurm_config", BELOW),
    "policies": ("policies:policies", TRY),
    "simulate": ("simulate:simulate", TRY),
    "reproduce": ("reproduce:reproduce", TRY),
    "agent": ("", None),
    "agent exec": ("agent:execute", BELOW),
}
HELP = {  # where it is not that of the function
    "opencl": "Unmodified OpenCL programs that are parked, resumed and moved to other devices.",
    "agent": "Commands that engines start on a node; not for people.",
    "program": "Measure a program alone and beside others, and predict by it: time, memory, good neighbours.",
    "slurm": "A Slurm cluster: see whether tenbin can steer it, measure its nodes, write its configuration.",
    "slurm doctor": "Examine the cluster, its settings and your rights (tenbin doctor --engine slurm).",
    "slurm profile": "Measure all nodes of the cluster, or --nodes LIST (tenbin profile --nodes all).",
}
ALIASES = {"ps": "jobs", "queue": "jobs", "kill": "cancel", "output": "logs"}
# Words of other programs, which are no commands here: what to do is another one.
GUESSES = {
    **{"start": "up", "stop": "down", "quit": "down", "shutdown": "down", "rm": "cancel", "why": "info"},
    **{"hold": "suspend", "pause": "suspend", "release": "resume", "continue": "resume", "move": "migrate"},
    **{"requeue": "retry", "rerun": "retry", "restart": "retry", "log": "logs", "tail": "logs"},
    **{"sbatch": "submit", "squeue": "jobs", "scancel": "cancel", "sinfo": "nodes", "sacct": "history"},
}
OF_PROFILES = (
    *("show", "list", "label", "delete", "check"),
    *("drift", "compare", "export", "report", "restore"),
)
OLD_NAMES = {
    **{name: f"profile {name}" for name in OF_PROFILES},
    **{"job": "program", "pairs": "program pairs", "calibration": "program calibration"},
    **{"slurm-config": "slurm config", "efficiency": "history --efficiency"},
}


class Commands(Mapping[str, Any]):
    """The commands below a noun, each imported when it is needed: to import all takes longer than most run.

    The help of an option or argument is what the docstring of its function says of it below ``Args:``; where
    several commands share it, or its text is made, it stands in the annotation.

    Attributes:
        brief: make them without their parameters, which a list of commands does not show.
    """

    brief = False

    def __init__(self, noun: str) -> None:
        self._noun = noun
        below = (name.removeprefix(noun) for name in COMMANDS if name.startswith(noun))
        self._names = [name for name in below if " " not in name]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        whole = self._noun + name
        place, panel = COMMANDS[whole]
        function, kind = _nothing, Command
        if place:
            module, attribute = place.split()[0].split(":")
            imported = import_module(f"tenbin.commands.{module}")
            function, kind = getattr(imported, attribute), getattr(imported, "CommandClass", Command)
        settings: dict[str, Any] = {"rich_help_panel": panel, "hidden": panel is None}
        text, parameters = described(function.__doc__)
        settings["help"] = HELP.get(whole) or text
        shown, group = _nothing if self.brief else function, typer.Typer(rich_markup_mode="rich")
        if Commands(f"{whole} "):
            noun = typer.Typer(cls=Group, rich_markup_mode="rich")
            noun.callback()(shown)
            group.add_typer(
                noun, name=name, invoke_without_command=bool(place), no_args_is_help=not place, **settings
            )
        else:
            group.command(name, cls=kind, **settings)(shown)
        command = typer.main.get_group(group).commands[name]
        for parameter in command.params:
            parameter.help = getattr(parameter, "help", None) or parameters.get(str(parameter.name))  # type: ignore[attr-defined]
            if parameter.default is False:
                parameter.secondary_opts.clear()  # what is off by itself needs no --no-...
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _nothing() -> None:
    """Stand in for the function of a command of which only name and help are needed, or that has none."""


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
        raise BadInput(plain(what).rstrip("."), f"see: {command} --help") from error


class Group(TyperGroup):
    """The command ``tenbin``, or a noun of it, with its ``Commands``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._noun = "" if settings["name"] == app.info.name else f"{settings['name']} "
        self.commands = Commands(self._noun)  # type: ignore[assignment]  # nobody adds to them

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if not self._noun:
            args = _with_current_name(args, hint=not ctx.resilient_parsing)
        first = args[:1]
        super().parse_args(ctx, args)
        if self._noun and ctx._protected_args:
            if first != ctx._protected_args:
                command = f"{ctx.command_path} {ctx._protected_args[0]}"
                raise BadInput(f"{first[0]} is not of that command", f"see: {command} --help")
            self.callback = None
        return ctx.args

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        if not self._noun and args[0] in GUESSES:
            guess = GUESSES[args[0]]
            raise BadInput(
                f"No such command {args[0]!r}. Did you mean {guess!r}?", f"see: tenbin {guess} --help"
            )
        name, command, rest = super().resolve_command(ctx, args)
        place, _ = COMMANDS[f"{self._noun}{name}"] if command else ("", None)
        return name, command, [*place.split()[1:], *rest]

    def make_context(self, *arguments: Any, **settings: Any) -> typer.Context:
        with _usage_in_one_line():
            return super().make_context(*arguments, **settings)  # type: ignore[return-value]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        with _usage_in_one_line():
            return super().invoke(ctx)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return flags_alone(super().get_params(ctx))

    def format_help(self, *arguments: Any) -> None:
        self.commands.brief = True  # type: ignore[attr-defined]
        super().format_help(*arguments)


def _with_current_name(words: list[str], *, hint: bool) -> list[str]:
    """Replace an alias, an old name, or the word ``help`` at the beginning of a command line."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    name = words[0] if words else ""
    if hint and name in OLD_NAMES and "--json" not in words and sys.stdout.isatty() and sys.stderr.isatty():
        _hint(name)
    new = ALIASES.get(name) or OLD_NAMES.get(name)
    return [*new.split(), *words[1:]] if new else words


def _hint(name: str) -> None:
    """Say once to each user what an old name is now; nothing where that cannot be noted."""
    from profiles.files.safe_files import state_dir

    try:
        (state_dir() / "hints").mkdir(parents=True, exist_ok=True)
        (state_dir() / "hints" / name).open("x").close()
    except OSError:
        return
    remark(f"{name} is now: tenbin {OLD_NAMES[name]}")


app = typer.Typer(
    name="tenbin",
    cls=Group,
    help="Weighs machines: measures what a node can do, with honest intervals; then balances jobs on it.\n\n"
    "Measure: [bold]tenbin doctor[/bold] (what can be measured here?), then [bold]tenbin profile[/bold], "
    "then [bold]tenbin profile report[/bold]. "
    "Jobs: [bold]tenbin up --daemon[/bold], then [bold]tenbin submit -- COMMAND[/bold]. "
    "More of a command: [bold]tenbin help COMMAND[/bold]. "
    f"Also understood: {', '.join(ALIASES)}.",
    epilog="Exit codes: 0 done, 1 a part failed, 2 bad input, 3 another profile is running, "
    "4 this machine lacks what was asked for, 130 interrupted (what was measured is kept).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
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
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks are no traceback
    os.environ.setdefault("PATH", SYSTEM_PATH)  # slurmd gives its health check none, and gcc finds no linker
    try:
        _run()
    except (UserError, TenbinError) as error:
        remark(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _write_no_more()
        sys.exit(128 + signal.SIGPIPE)
    except FileNotFoundError:
        if _has_working_folder():
            raise
        print("tenbin: the working directory does not exist any more; cd to one that does", file=sys.stderr)
        sys.exit(BadInput.exit_code)
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            _write_no_more()
            remark(f"{error.strerror}; make room, or write the output elsewhere")
            sys.exit(1)
        if error.errno not in REFUSED or error.filename is None:
            raise
        remedy = "give yourself access, or name another folder: HOME, --home, --store"
        remark(f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}")
        sys.exit(BadInput.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _open_closed_streams() -> None:
    """Have a closed standard stream (``>&-``) read and write nothing; no other file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def _write_no_more() -> None:
    """Let what is left of the output go nowhere when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
