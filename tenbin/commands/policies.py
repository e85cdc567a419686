"""``tenbin policies``: every policy with its parameters, and what it needs."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from profiles.errors import BadInput
from tenbin.commands.options import JsonOption, complete_policy
from tenbin.terminal import SafeConsole
from tenbin.text import described, print_json, unwrapped

NEEDS = {  # kinds of machine (``Policy.suits``): a word for each, and what makes one
    "counted": ("cores", "of this machine, or a count in a simulation"),
    "classes": ("devices", "tenbin up --devices, or 16xgpu+64xcpu in a simulation"),
    "nodes": ("nodes", "tenbin up --nodes N, or 8xnode[cpu=1,memory=1]"),
    "power": ("power caps", "tenbin up --power-budget WATTS"),
    "sharing": ("shared nodes", "job profiles, by tenbin program profile"),
}
PROMISES = {
    "in-order": "no job starts before one submitted earlier",
    "no-delay": "later jobs never delay a job, where run times are as expected",
    "conserving": "no job waits while it fits",
}


def policies(
    which: Annotated[
        list[str] | None, typer.Argument(metavar="[POLICY]...", autocompletion=complete_policy)
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the policies: what each does, its parameters with their defaults, and what it needs.

    Of a policy that is named: its algorithm, its parameters, its promises and its source.

    [bold]Examples[/bold]

      tenbin policies

      tenbin policies easy

    Args:
        which: Only these, each with its algorithm; also a file (./mine.py).
    """
    from scheduler.policies.registry import POLICIES, entry_of, several

    names = [name for text in which or POLICIES for name in several(text)]
    for name in names:
        alone, comma, _ = name.partition(",")
        if comma:
            raise BadInput(f"{name}: parameters are for simulate and up", f"see: tenbin policies {alone}")
    rows = [_row(name, entry_of(name)) for name in names]
    if json:
        print_json({"policies": rows})
        return
    console = SafeConsole()
    for row in rows if which else [row for row in rows if row["offered"]]:
        console.print(f"[bold]{escape(row['name'])}[/]  {escape(row['summary'])}")
        given = [f"{name}={value}" for name, value in row["parameters"].items()]
        _print(console, "for " + ", ".join(NEEDS[kind][0] for kind in row["suits"]), "  ".join(given))
        if which:
            promises = [f"Promises: {PROMISES[promise]}" for promise in row["promises"]]
            _print(console, *promises, "\n" + row["algorithm"], "\n" * bool(given) + row["about_parameters"])
    if not which:
        console.print("\n[bold]Others: of papers, and for comparison[/]")
        _print(console, *(f"{row['name']}  {row['summary']}" for row in rows if not row["offered"]))
        console.print("\n[bold]Needs[/]")
        _print(console, *(f"{word}: {what}" for word, what in NEEDS.values()))
        console.print("\nOne of them whole: tenbin policies weigh. With parameters: -p weigh,depth=100")


def _print(console: SafeConsole, *texts: str) -> None:
    for line in "\n".join(filter(None, texts)).split("\n"):
        indent = len(line) - len(line.lstrip()) + 2
        text = re.sub(r"\*\*(.+?)\*\*", r"[bold]\1[/]", escape(line.lstrip()))
        console.print(Padding(text, (0, 0, 0, indent)))


def _row(name: str, entry: Any) -> dict[str, Any]:
    outline = entry.outline()
    about, parameters = described(outline.about_parameters)
    defaults = {parameter: _written(default) for parameter, default in outline.defaults.items()}
    return {
        "name": name,
        "summary": entry.summary,
        "offered": entry.offered,
        "parameters": {**defaults, **entry.preset},
        "suits": [word for word in NEEDS if word in outline.suits],
        "promises": sorted(outline.promises),
        "algorithm": unwrapped(outline.algorithm),
        "about_parameters": "\n".join([about, *(f"{name}: {text}" for name, text in parameters.items())]),
    }


def _written(value: object) -> str:
    """Write a default as it is given: ``60``, ``true``, ``none``; a text that is empty as ``''``."""
    return str(value).lower().removesuffix(".0") if value != "" else "''"
