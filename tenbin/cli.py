"""The ``tenbin`` command."""

from __future__ import annotations

import os
import sys

import typer

from profiles.errors import INTERRUPTED, TenbinError
from tenbin.commands import (
    agent,
    compare,
    doctor,
    export,
    job,
    jobs,
    pairs,
    profile,
    reproduce,
    show,
    simulate,
    submit,
    up,
)
from tenbin.errors import TenbinError as ClientError

app = typer.Typer(
    name="tenbin",
    help="Weighs machines: measures what a node can do, with honest intervals.\n\n"
    "Start with [bold]tenbin doctor[/bold] (what can be measured here?), "
    "then [bold]tenbin profile[/bold], then [bold]tenbin report[/bold].",
    epilog="Exit codes: 0 done, 1 a part failed, 2 bad input, 3 another profile is running, "
    "4 this machine lacks what was asked for, 130 interrupted (what was measured is kept).",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("doctor")(doctor.doctor)
app.command("profile")(profile.profile)
app.command("show")(show.show)
app.command("list")(show.list_profiles)
app.command("compare")(compare.compare)
app.command("export")(export.export)
app.command("report")(export.report)
app.add_typer(job.app, name="job")
app.command("pairs")(pairs.pairs)
app.command("simulate")(simulate.simulate)
app.command("reproduce")(reproduce.reproduce)
app.command("up")(up.up)
app.command("down")(up.down)
app.command("status")(up.status)
app.command("nodes")(up.nodes)
app.command("submit")(submit.submit)
app.command("jobs")(jobs.jobs)
app.command("info")(jobs.info)
app.command("logs")(jobs.logs)
app.command("wait")(jobs.wait)
app.command("cancel")(jobs.cancel)
app.command("suspend")(jobs.suspend)
app.command("resume")(jobs.resume)
app.command("migrate")(jobs.migrate)
app.command("restore")(doctor.restore)
app.add_typer(agent.app, name="agent", hidden=True)


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
    try:
        app()
    except (TenbinError, ClientError) as error:
        print(f"tenbin: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
