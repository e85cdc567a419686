"""``tenbin agent exec``: one attempt of a job, as an engine starts it on a node."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import BadInput, Busy
from tenbin.commands.jobs.account import exit_code
from tenbin.commands.options import JsonOption
from tenbin.text import remark


def execute(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    json: JsonOption = False,
) -> None:
    """Run one attempt of a job in the foreground, under its supervisor, and end with the job's exit code.

    Engines use it if a batch system starts their jobs. An attempt runs at most once: a second call returns
    the exit code of the first. SIGTERM and Ctrl-C end the job in order.

    Exit codes: the job's own, 128 + signal, 125 without either, 3 if the attempt runs already.

    Args:
        folder: Folder of the attempt, with its order.json.
    """
    from agent.attempts.folder import Attempt
    from agent.supervisor.supervisor import run_in_foreground

    attempt = Attempt(folder.absolute())
    if attempt.result() is None:
        try:
            attempt.order()
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{folder}: no order.json that can be read", "see docs/guarantees.md") from error
    result = run_in_foreground(attempt)
    if result is None:
        raise Busy(f"{folder}: this attempt runs, or was given up", "look into its state.json")
    if json:
        print(dumps(asdict(result), indent=1))
    elif result.trouble:
        remark(result.trouble)
    stage = "done" if result.how == "exited" and not result.code else "failed"
    raise typer.Exit(exit_code({"code": result.code, "signal": result.signal, "stage": stage}))
