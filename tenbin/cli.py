"""The ``tenbin`` command."""

from __future__ import annotations

import os
import sys

import typer

from profiles.errors import INTERRUPTED, TenbinError
from tenbin.commands import (
    agent,
    calibration,
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
    slurm_config,
    submit,
    up,
)
from tenbin.errors import TenbinError as ClientError

app = typer.Typer(
    name="tenbin",
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
MEASURE, TRY, RUN = "Measure this node", "Try policies in virtual time", "Run jobs on this machine"
app.command("doctor", rich_help_panel=MEASURE)(doctor.doctor)
app.command("profile", rich_help_panel=MEASURE)(profile.profile)
app.command("show", rich_help_panel=MEASURE)(show.show)
app.command("list", rich_help_panel=MEASURE)(show.list_profiles)
app.command("compare", rich_help_panel=MEASURE)(compare.compare)
app.command("export", rich_help_panel=MEASURE)(export.export)
app.command("report", rich_help_panel=MEASURE)(export.report)
app.add_typer(job.app, name="job", rich_help_panel=MEASURE)
app.command("pairs", rich_help_panel=MEASURE)(pairs.pairs)
app.command("slurm-config", rich_help_panel=MEASURE)(slurm_config.slurm_config)
app.command("restore", rich_help_panel=MEASURE)(doctor.restore)
app.command("simulate", rich_help_panel=TRY)(simulate.simulate)
app.command("reproduce", rich_help_panel=TRY)(reproduce.reproduce)
app.command("up", rich_help_panel=RUN)(up.up)
app.command("down", rich_help_panel=RUN)(up.down)
app.command("status", rich_help_panel=RUN)(up.status)
app.command("nodes", rich_help_panel=RUN)(up.nodes)
app.command("submit", rich_help_panel=RUN)(submit.submit)
app.command("jobs", rich_help_panel=RUN)(jobs.jobs)
app.command("info", rich_help_panel=RUN)(jobs.info)
app.command("logs", rich_help_panel=RUN)(jobs.logs)
app.command("wait", rich_help_panel=RUN)(jobs.wait)
app.command("cancel", rich_help_panel=RUN)(jobs.cancel)
app.command("suspend", rich_help_panel=RUN)(jobs.suspend)
app.command("resume", rich_help_panel=RUN)(jobs.resume)
app.command("migrate", rich_help_panel=RUN)(jobs.migrate)
app.command("calibration", rich_help_panel=RUN)(calibration.calibration)
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
