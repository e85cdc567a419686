"""``tenbin label``, ``delete``, ``export`` and ``report``: the profiles that are kept."""

from __future__ import annotations

import sys
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import BadInput
from tenbin.commands.options import (
    ClusterOption,
    JsonOption,
    Selector,
    StoreOption,
    complete_selector,
    stored_profiles,
    write_output,
)
from tenbin.text import as_json, printable, printable_lines, say


def label(
    which: Selector,
    text: Annotated[str, typer.Argument(help="What to call it; '' to call it nothing.")],
    store: StoreOption = None,
) -> None:
    """Call a profile something, so that every command finds it by that.

    [bold]Examples[/bold]

      tenbin label last before-bios-update
      tenbin compare before-bios-update last
    """
    from profiles.files.store import set_label

    set_label(stored_profiles(store).find(which), text)


def delete(
    which: Annotated[
        list[str],
        typer.Argument(
            help="Profiles: ids, labels, 'previous' or 'last'.",
            autocompletion=complete_selector,
            metavar="PROFILE...",
        ),
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Delete profiles with their samples: all that are named, or none. A terminal is asked first."""
    kept = stored_profiles(store)
    paths = list(dict.fromkeys(kept.find(selector) for selector in which))
    names = ", ".join(f"{path.parent.parent.name} {path.parent.name}" for path in paths)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {printable(names)}?", abort=True)
    for path in paths:
        kept.delete(path)
    say(f"deleted {names}")


# -- ``tenbin export`` and ``report``: for other programs, and for people ----------------------------------


class Format(StrEnum):
    """The forms of export."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    PROMETHEUS = "prometheus"
    SCHEMA = "schema"


def export(
    which: Selector = "last",
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="json: the profile; csv: a line for each coefficient; parquet: raw samples; "
            "prometheus: text for a node exporter's textfile folder; schema: of the JSON.",
        ),
    ] = Format.JSON,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File (parquet: folder) to write; default: the terminal.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Write a profile in a form that other programs read.

    [bold]Examples[/bold]

      tenbin export --format prometheus -o /var/lib/node_exporter/tenbin.prom
      tenbin export node1 --format parquet -o samples/
    """
    from profiles import export as forms

    if form is Format.SCHEMA:
        _write(forms.json_schema(), output)
        return
    path = stored_profiles(store).find(which)
    profile = stored_profiles(store).load(str(path))
    if form is Format.PARQUET:
        _copy_samples(path, output)
    elif form is Format.PROMETHEUS:
        _write(forms.prometheus(profile), output)
    elif form is Format.CSV:
        _write(forms.csv(profile), output)
    else:
        _write(as_json(profile) + "\n", output)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        return
    write_output("--output", output, text)


def _copy_samples(path: Path, output: Path | None) -> None:
    if output is None:
        raise BadInput("--format parquet writes a file for each probe", "name a folder with --output")
    from profiles.files.safe_files import read_regular, write_whole

    files = sorted(path.parent.glob("samples/*.parquet"))
    if not files:
        raise BadInput(f"{path}: no samples are stored beside it", "export from the store that measured it")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for file in files:
            write_whole(output / file.name, read_regular(file))
            say(str(output / file.name))
    except OSError as error:
        what = f"{error.filename or output}: {error.strerror}"
        raise BadInput(what, "see that it can be read, and choose a folder you may write") from error


def report(
    which: Selector = "last",
    *,
    cluster: ClusterOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The HTML file; default: <node>-<id>.html here.", show_default=False
        ),
    ] = None,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", help="Pictures that can be enlarged and zoomed: 2 MB more."),
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write a profile as one self-contained HTML page, with pictures of samples and fits.

    The page needs no network and no script. With --cluster: heat maps of a cluster's nodes and of the pairs
    of them (tenbin profile --nodes).
    """
    if cluster:
        from tenbin.commands.measure.cluster import known, write_cluster_report

        survey, profiles = known("" if which == "last" else which, store)
        output = output or Path(_file_name(f"{survey.cluster}-{survey.id}.html"))
        write_cluster_report(survey, profiles, output, interactive=interactive)
        _name_report(output, survey.id, json)
        return
    from tenbin.report.page import write_report

    path = stored_profiles(store).find(which)
    profile = stored_profiles(store).load(str(path))
    output = output or Path(_file_name(f"{profile.node}-{profile.id}.html"))
    write_report(path, output, interactive=interactive)
    _name_report(output, profile.id, json)


def _file_name(text: str) -> str:
    """Make the name of a file in this folder from any text in a profile."""
    return "".join(c if c.isprintable() and c != "/" else "_" for c in text)


def _name_report(output: Path, number: str, json: bool) -> None:
    if json:
        print(dumps({"report": str(output), "profile": number}))
    else:
        say(str(output))
