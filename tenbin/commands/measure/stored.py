"""``tenbin profile show``, ``list``, ``label``, ``delete``, ``export``, ``report``: what is kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from probes.registry import PROBES
from profiles.errors import BadInput
from profiles.files.safe_files import read_regular, write_whole
from profiles.quantities import duration
from tenbin.commands.measure.cluster import known, show_cluster, write_cluster_report
from tenbin.commands.options import (
    ClusterOption,
    JsonOption,
    Selector,
    StoreOption,
    client_of,
    complete_selector,
    end_after,
    ensure_page,
    loaded,
    stored_profiles,
    write_output,
)
from tenbin.errors import TenbinError
from tenbin.terminal import QUALITY_STYLE, SafeConsole, table
from tenbin.text import (
    as_json,
    bounded,
    headline,
    interval,
    limits,
    machine_lines,
    print_answer,
    printable,
    printable_lines,
    say,
    subject,
    value_with_unit,
)

if TYPE_CHECKING:
    from profiles.records import Model, Profile

# -- the card ----------------------------------------------------------------------------------------------


def print_card(console: Console, profile: Profile, kin: Sequence[Profile] = ()) -> None:
    """Print the main figures, whether they are good, what is unusual, and what to do next."""
    from profiles.card import card
    from profiles.peaks import judge

    summary = card(profile)
    if summary.figures:
        figures = table("", "", "95 % interval", " ", left=("", " "), collapse_padding=True)
        for figure in summary.figures:
            style = QUALITY_STYLE.get(figure.quality, "")
            value = f"{bounded(figure.value, figure.low, figure.high)} {figure.unit}"
            marks = " [magenta]EMULATED[/]" if figure.emulated else ""
            cells = (figure.name, value, limits(figure.low, figure.high), figure.meaning)
            name, value, interval, meaning = (escape(printable(cell)) for cell in cells)
            indented = Padding(f"{name}{marks}", (0, 0, 0, 2))
            figures.add_row(indented, f"[bold]{value}[/]", interval, f"[{style or 'dim'}]{meaning}[/]")
        console.print(figures)
    if judged := judge(profile, kin):
        console.print("\n[bold]Is it good?[/bold]")
        console.print(_hanging([(name, printable(sentence)) for name, sentence in judged]))
        console.print()
    advice = Table.grid(padding=(0, 1))
    for heading, sentences in (("unusual", summary.unusual), ("next", summary.next_steps)):
        for place, sentence in enumerate(sentences):
            advice.add_row(Text("" if place else f"  {heading}"), Text(printable(sentence)))
    console.print(advice)


# -- ``tenbin profile show`` and ``list``: what is known ---------------------------------------------------


TRUST_STYLE = {"quiet": "green", "disturbed": "yellow", "unknown": "dim"}


def show(
    which: Selector = "last",
    *,
    cluster: ClusterOption = False,
    machine: bool = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show a profile: every coefficient with its 95 % interval, and what could not be measured.

    With --cluster: the nodes of a cluster side by side, and which of them are odd (tenbin profile --nodes).

    Args:
        machine: Also what the node is made of.
    """
    if cluster:
        show_cluster(*known(which, store), json)
        return
    try:
        profile = stored_profiles(store).load(which)
    except BadInput as error:
        if _is_job(which):
            raise BadInput(f"{which} is a job", f"tenbin info {which}") from error
        raise
    if json:
        print(as_json(profile))
        return
    from agent.node_profile.identity import changes_since, kin

    print_profile(profile, machine=machine, kin=kin(stored_profiles(store), profile))
    if changes := "; ".join(changes_since(profile)):
        say(f"STALE: this machine has changed since ({changes}). Profile it again: tenbin profile")


def _is_job(word: str) -> bool:
    """Tell if a word that names no profile names a job of the user's coordinator."""
    if not re.fullmatch(r"\d{1,18}(\[\d+\])?", word):
        return False
    from tenbin.commands.jobs.jobs import select

    try:
        return bool(select(client_of(None), [word], members=False).ids)
    except TenbinError:
        return False


def print_profile(profile: Profile, *, machine: bool = False, kin: Sequence[Profile] = ()) -> None:
    """Print a profile; ``kin``: of other nodes of its kind, to tell its place."""
    from profiles.card import trust

    console = SafeConsole()
    console.plain(headline(profile), style="bold")
    said = trust(profile)
    console.plain(str(said), style=TRUST_STYLE[said.state])
    lines = machine_lines(profile.inventory)
    console.print(_hanging(lines if machine else lines[:3]))
    if profile.models:
        print_card(console, profile, kin)
        console.print("\n[bold]Quality[/bold]")
        console.print(_hanging(_meanings(profile)))
    for probe in dict.fromkeys(m.probe for m in profile.models):
        title = PROBES[probe].title if probe in PROBES else probe
        console.print(f"\n[bold]{escape(title)}[/bold]  [dim](value, 95 % interval, n, quality)[/dim]")
        _print_models(console, [m for m in profile.models if m.probe == probe])
    if profile.absent:
        console.print("\n[bold]Not measured[/bold]")
        rows = [
            (f"{a.probe}:", " -> ".join(filter(None, (f"{a.what}: {a.reason}", a.remedy))))
            for a in profile.absent
        ]
        console.print(_hanging(rows))


def _meanings(profile: Profile) -> list[tuple[str, str]]:
    """Explain the words and marks of the last column, as far as they occur."""
    from profiles.card import MEANINGS, ROUNDS_MEANING

    every = [c for model in profile.models for c in model.coefficients]
    rows = [(word, meaning) for word, meaning in MEANINGS.items() if any(c.quality == word for c in every)]
    return rows + [("*", ROUNDS_MEANING)] * any(c.rounds_differ for c in every)


def _hanging(rows: Sequence[tuple[str, str]]) -> Table:
    """Lay out text in which a long line goes on under its beginning, not under its heading."""
    table = Table.grid(padding=(0, 1))
    for heading, text in rows:
        table.add_row(Text(f"  {heading}"), Text(text))
    return table


def _print_models(console: Console, models: list[Model]) -> None:
    """Print a line for each coefficient; a model's subject is its heading, or names its only coefficient."""
    width = max(28, min(44, console.width - 56))
    quantity, lines = "", []  # printed together, because rich takes its time for each
    for model in models:
        mark = "  [magenta]EMULATED[/]" if model.emulated else ""
        single = len(model.coefficients) == 1
        if not single:
            lines.append(f"  [cyan]{escape(model.quantity)}[/]  {escape(subject(model))}{mark}")
        elif model.quantity != quantity:
            lines.append(f"  [cyan]{escape(model.quantity)}[/]{mark}")
        quantity = model.quantity
        if model.note and not single:
            lines.append(f"    [dim]{escape(model.note)}[/]")
        for c in model.coefficients:
            name = (subject(model) or c.name) if single else c.name
            mark = "*" * c.rounds_differ
            quality = f"[{QUALITY_STYLE[c.quality]}]{c.quality}[/]{mark}"
            if len(name) > width:
                lines.append(f"    {escape(name)}")
                name = ""
            value = f"{value_with_unit(c):>14}"  # a bound takes of the interval's place
            row = f"    {name:<{width}} {value} {interval(c):>{max(36 - len(value), 0)}} {c.n:>4} "
            lines.append(escape(row) + quality)
    console.print("\n".join(map(printable, lines)), soft_wrap=True)


def list_profiles(store: StoreOption = None, json: JsonOption = False) -> None:
    """List the stored profiles, newest first; a damaged one is named and costs no other."""
    from profiles.files.store import label, load

    stored, damaged = loaded(stored_profiles(store).paths(), load)
    fields = {"id", "node", "duration_s", "interrupted", "emulated", "fingerprint"}
    rows: list[dict[str, object]] = [
        {
            **profile.model_dump(mode="json", include=fields),
            "kind": "quick" if profile.settings.quick else "full",
            "label": label(path),
            "created": profile.created.isoformat(),
            "models": len(profile.models),
            "absent": len(profile.absent),
            "path": str(path),
        }
        for path, profile in stored
    ]
    print_answer({"profiles": rows, "damaged": damaged}, partial(_print_list, rows), json)
    end_after(damaged, said=json)


def _print_list(rows: list[dict[str, object]]) -> None:
    if not rows:
        print("No profile yet; make one with 'tenbin profile'.")
        return
    shown = table("id", "node", "kind", "took", "models", "absent", "", left=("id", "node", "kind", ""))
    for column in shown.columns:
        column.no_wrap, column.overflow = column.header not in ("node", "kind", ""), "fold"
    for row in rows:
        marks = " ".join((str(row["label"]), *(mark for mark in ("emulated", "interrupted") if row[mark])))
        took = duration(float(str(row["duration_s"])))
        cells = (row["id"], row["node"], row["kind"], took, row["models"], row["absent"], marks)
        shown.add_row(*(escape(printable(str(cell))) for cell in cells))
    SafeConsole().print(shown)


def label(which: Selector, text: str, store: StoreOption = None) -> None:
    """Call a profile something, so that every command finds it by that.

    [bold]Examples[/bold]

      tenbin profile label last before-bios-update
      tenbin profile compare before-bios-update last

    Args:
        text: What to call it; '' to call it nothing.
    """
    from profiles.files.store import set_label

    set_label(stored_profiles(store).find(which), text)


def delete(
    which: Annotated[list[str], typer.Argument(autocompletion=complete_selector, metavar="PROFILE...")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    store: StoreOption = None,
) -> None:
    """Delete profiles with their samples: all that are named, or none. A terminal is asked first.

    Args:
        which: Profiles: ids, labels, 'previous' or 'last'.
        yes: Do not ask.
    """
    kept = stored_profiles(store)
    paths = list(dict.fromkeys(kept.find(selector) for selector in which))
    names = ", ".join(f"{path.parent.parent.name} {path.parent.name}" for path in paths)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {printable(names)}?", abort=True)
    for path in paths:
        kept.delete(path)
    say(f"deleted {names}")


# -- ``tenbin profile export`` and ``report``: for other programs, and for people --------------------------


class Format(StrEnum):
    """The forms of export."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    PROMETHEUS = "prometheus"
    SCHEMA = "schema"


BY_NAME = {".csv": Format.CSV, ".prom": Format.PROMETHEUS}


def export(
    which: Selector = "last",
    form: Annotated[Format | None, typer.Option("--format")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    store: StoreOption = None,
) -> None:
    """Write a profile in a form that other programs read.

    [bold]Examples[/bold]

      tenbin profile export --format prometheus -o /var/lib/node_exporter/tenbin.prom
      tenbin profile export node1 --format parquet -o samples/

    Args:
        form: json: the profile; csv: a line for each coefficient; parquet: raw samples, into the folder of
            --output; prometheus: text for a node exporter's textfile folder; schema: of the JSON. Default: by
            the name of the output (.csv, .prom), else json.
        output: File (parquet: folder) to write; default: the terminal.
    """
    from profiles import export as forms

    form = form or BY_NAME.get(output.suffix if output else "", Format.JSON)
    if form is Format.SCHEMA:
        _write(forms.json_schema(), output)
        return
    path = stored_profiles(store).find(which)
    profile = stored_profiles(store).load(str(path))
    if form is Format.PARQUET:
        _copy_samples(path, output)
        return
    texts = {Format.PROMETHEUS: forms.prometheus, Format.CSV: forms.csv, Format.JSON: as_json}
    _write(texts[form](profile) + "\n" * (form is Format.JSON), output)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        return
    write_output("--output", output, text)


def _copy_samples(path: Path, output: Path | None) -> None:
    if output is None:
        raise BadInput("--format parquet writes a file for each probe", "name a folder with --output")

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
    output: Annotated[Path | None, typer.Option("--output", "-o")] = None,
    interactive: bool = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write a profile as one self-contained HTML page, with pictures of samples and fits.

    The page needs no network and no script. With --cluster: heat maps of a cluster's nodes and of the pairs
    of them (tenbin profile --nodes).

    Args:
        output: The HTML file; default: <node>-<id>.html here.
        interactive: Pictures that can be enlarged, zoomed and saved as SVG: 2 MB more.
    """
    if output is not None:
        ensure_page("--output", output)
    if cluster:
        survey, profiles = known(which, store)
        identity = survey.id
        output = output or _file_name(survey.cluster, identity)
        write_cluster_report(survey, profiles, output, interactive=interactive)
    else:
        from tenbin.report.page import write_report

        path = stored_profiles(store).find(which)
        profile = stored_profiles(store).load(str(path))
        identity = profile.id
        output = output or _file_name(profile.node, identity)
        write_report(path, output, interactive=interactive)
    print_answer({"report": str(output), "profile": identity}, str(output), json)


def _file_name(name: str, identity: str) -> Path:
    """Name a file in this folder after any texts of a profile."""
    return Path("".join(c if c.isprintable() and c != "/" else "_" for c in f"{name}-{identity}.html"))
