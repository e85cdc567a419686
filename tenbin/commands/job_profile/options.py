"""Options of the commands on job profiles."""

from __future__ import annotations

from typing import Annotated

import typer

from tenbin.commands.options import complete_job_profile

JobArgument = Annotated[
    str,
    typer.Argument(
        help="NAME, or NAME@ID of an older one.", autocompletion=complete_job_profile, metavar="NAME"
    ),
]
LimitOption = Annotated[str, typer.Option(help="End a run that takes longer: 90s, 10m, 2h.")]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        help="Begin no repetition that would end later: 20m. (default: the time of 34 runs, 3m to 20m)",
        show_default=False,
    ),
]
