"""``tenbin label`` and ``tenbin delete``: the profiles that are kept."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tenbin.commands.options import Selector, StoreOption, complete_selector


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
    from profiles.files.store import Store, set_label

    set_label(Store(store).find(which), text)


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
    from profiles.files.store import Store
    from tenbin.text import printable, say

    kept = Store(store)
    paths = list(dict.fromkeys(kept.find(selector) for selector in which))
    names = ", ".join(f"{path.parent.parent.name} {path.parent.name}" for path in paths)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {printable(names)}?", abort=True)
    for path in paths:
        kept.delete(path)
    say(f"deleted {names}")
