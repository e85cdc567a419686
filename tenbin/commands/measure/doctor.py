"""``tenbin doctor`` examines this node or the cluster; ``profile restore`` undoes what a crash left."""

from __future__ import annotations

import socket
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from profiles.errors import BadInput, Unavailable
from tenbin.commands.options import JsonOption, restore_leftovers, storage_folder, stored_profiles
from tenbin.terminal import SafeConsole
from tenbin.text import print_answer

if TYPE_CHECKING:
    from agent.doctor import Finding


class Subject(StrEnum):
    """The thing to examine."""

    LOCAL = "local"
    SLURM = "slurm"


STATE_STYLE = {"ok": "green", "limited": "yellow", "missing": "red"}


def doctor(
    engine: Annotated[Subject, typer.Option(show_default=False)] = Subject.LOCAL,
    storage: list[Path] | None = None,
    again: bool = False,
    json: JsonOption = False,
) -> None:
    """Say what can be measured here and what not, each with the reason and the remedy.

    With --engine slurm: whether this Slurm can be steered, what your rights allow, which settings help or
    hinder, with the lines to add, and whether nodes have this tenbin and share its folder. Exit code 4: there
    is no Slurm that answers.

    Args:
        engine: local: this node; slurm: the cluster, its settings and your rights.
        storage: Checkpoint folders to look at as well.
        again: Try drivers, MPI and compiler even if they worked within a day and have not changed since.
    """
    if engine is Subject.SLURM:
        if storage or again:
            option = "--storage" if storage else "--again"
            raise BadInput(f"{option} is of one node", "leave it out with --engine slurm")
        from scheduler.engines.slurm.admin.doctor import examine as examine_cluster
        from scheduler.engines.slurm.admin.doctor import usable
        from scheduler.engines.slurm.slurm_commands import Slurm
        from tenbin.client.connection import default_home

        findings = examine_cluster(Slurm(), default_home())
        _print(findings, json)
        if not usable(findings):
            raise typer.Exit(Unavailable.exit_code)
        return
    from agent.doctor import examine
    from agent.kept_answers import KeptAnswers
    from profiles.files.safe_files import default_storage
    from profiles.records import Settings

    folders = tuple(storage_folder(path) for path in storage or []) or (default_storage(),)
    last = stored_profiles(None).newest_whole(socket.gethostname())
    last = None if last and last.emulated else last
    _print(examine(Settings(storage=folders), last=last, answers=KeptAnswers(keeps=True, again=again)), json)


def _print(findings: list[Finding], json: bool) -> None:
    print_answer([finding.model_dump(mode="json") for finding in findings], partial(_show, findings), json)


def _show(findings: list[Finding]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for finding in findings:
        words = ": ".join(part for part in (finding.what, finding.reason) if part)
        said = Text.assemble((finding.topic, "bold"), ": ", words)
        table.add_row(Text(finding.state, STATE_STYLE[finding.state]), said)
        if finding.remedy:
            table.add_row("", Text(f"-> {finding.remedy}"))
    SafeConsole().print(table)


def restore(json: JsonOption = False) -> None:
    """Put back what a crashed profile left changed (power caps); every profile does this first by itself."""
    restored = restore_leftovers(tell=False)
    text = "\n".join(restored) or "Nothing to restore: no profile left anything changed."
    print_answer(restored, text, json)
