"""``tenbin job predict``: what a job will need, from the runs before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from tenbin.commands.options import HomeOption, JsonOption, StoreOption
from tenbin.terminal import SafeConsole, table
from tenbin.text import duration, number, print_json

if TYPE_CHECKING:
    from scheduler.prediction.run_times import PastRun

LOOKED_AT = 20_000  # jobs of the journal
QUANTITIES = {
    "run_s": ("run time", "s"),
    "memory_mb": ("peak memory", "MB"),
    "registered_mb": ("in a checkpoint", "MB"),
    "compile_s": ("kernels (K)", "s"),
}


def complete_program(incomplete: str) -> list[str]:
    """Programs that have run, and names of job profiles."""
    from profiles.errors import UserError
    from tenbin.client.connection import default_home

    try:
        names = {run.signature.program for run in _runs(default_home(), None, "")}
    except UserError:
        names = set()
    return sorted(name for name in names if name.startswith(incomplete))


def predict(
    name: Annotated[
        str,
        typer.Argument(
            help="A job profile, a job's --name, or the file name of its program.",
            autocompletion=complete_program,
            metavar="NAME",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments of the program, after --. (default: those of its last run)",
            metavar="[-- ARGS...]",
        ),
    ] = None,
    *,
    cores: Annotated[
        int | None,
        typer.Option("--cores", "-n", min=1, help="Cores of the job in all. (default: as in its last run)"),
    ] = None,
    user: Annotated[str, typer.Option(help="Owner of the job, for names that are new. (default: you)")] = "",
    home: HomeOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Predict what a job will need: run time, memory, and of OpenCL jobs what a checkpoint holds and K.

    From the jobs that ended with success under the coordinator, and from job profiles: those of the same
    program with the same arguments; else scaled by the numbers among the arguments, if these explain the
    times; else all of the program; else the mean of your last two jobs. The range holds in 8 of 10 cases.
    The coordinator uses the same where a job has neither --time nor --expect; of your last two jobs only
    where that has proved right.

    [bold]Examples[/bold]

      tenbin job predict stencil

      tenbin job predict simulate.py -- --steps 5000
    """
    from agent.users import user_name
    from profiles.errors import BadInput
    from scheduler.prediction.run_times import History, JobSignature
    from tenbin.client.connection import default_home

    folder = (home or default_home()).absolute()
    runs = _runs(folder, store, name)
    history, mine = History(runs), [run for run in runs if run.signature.program == name]
    size = (cores, 0) if cores else mine[-1].signature.size if mine else (1, 0)
    words = tuple(arguments) if arguments else mine[-1].signature.arguments if mine else ()
    asked = JobSignature(name, words, user or user_name(), size)
    told = _told(history, asked, [run.signature.pool for run in mine])
    if not told:
        raise BadInput(
            f"nothing is known of {name}: no such job ended with success, none of {asked.user}'s at all",
            f"run it once (tenbin submit --name {name} -- CMD...), or measure it: tenbin job profile",
        )
    if json:
        print_json({**asked._asdict(), "predictions": told})
    else:
        _print(asked.program, asked.arguments, told)


def _runs(folder: Path, store: Path | None, name: str) -> list[PastRun]:
    """List all jobs that ended under that coordinator, after the runs in the job profile of that name."""
    from agent.users import user_name
    from scheduler.coordinator.journal.journal import ended_jobs
    from scheduler.prediction.run_times import run_of

    runs = []
    if name:
        from agent.node_profile.identity import node_kind
        from profiles.files.store import JobStore
        from scheduler.prediction.profiles import ProfiledJobs

        runs += ProfiledJobs(JobStore(store), node_kind()).runs(name)
    user = user_name()
    has_run = (folder / "journal.sqlite").exists()
    found = (run_of(entry, user) for entry in (ended_jobs(folder, LOOKED_AT) if has_run else ()))
    return runs + [run for run in found if run is not None]


def _told(history: Any, asked: Any, pools: list[str]) -> list[dict[str, Any]]:
    """List the predictions, a row each; run times by the class of device that it ran on."""
    from dataclasses import asdict

    rows = []
    for pool in dict.fromkeys(pools or [""]):
        for quantity, (_, unit) in QUANTITIES.items():
            found = history.predict(asked._replace(pool=pool), quantity)
            if found is not None:
                rows.append({"quantity": quantity, "unit": unit, "device": pool, **asdict(found)})
    return rows


def _print(name: str, arguments: tuple[str, ...], told: list[dict[str, Any]]) -> None:
    import shlex

    console = SafeConsole()
    console.print(shlex.join((name, *arguments)), style="bold", markup=False)
    columns = ("", "device", "10 %", "50 %", "90 %", "n", "rests on")
    listed = table(*columns, left=("", "device", "rests on"))
    for row in told:
        words, unit = QUANTITIES[row["quantity"]]
        values = (row[at] for at in ("low", "middle", "high"))
        cells = [duration(v) if unit == "s" else f"{number(v)} {unit}" for v in values]
        listed.add_row(words, escape(row["device"]), *cells, str(row["n"]), escape(row["rule"]))
    console.print(listed)
