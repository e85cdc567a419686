"""Options that several commands share, and what the shell completes for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer


def names_in(place: str) -> Callable[[str], list[str]]:
    """Complete the names in a registry (``module:NAME``), which is imported when the shell asks."""

    def complete(incomplete: str) -> list[str]:
        module, _, registry = place.partition(":")
        return [name for name in getattr(import_module(module), registry) if name.startswith(incomplete)]

    return complete


complete_machine = names_in("agent.emulation.machines:MACHINES")
complete_policy = names_in("scheduler.policies.registry:POLICIES")


def complete_job_profile(incomplete: str) -> list[str]:
    """Names of the stored job profiles."""
    from profiles.files.store import JobStore

    return [name for name in JobStore().names() if name.startswith(incomplete)]


def complete_selector(incomplete: str) -> list[str]:
    """Profiles that a selector may name."""
    from profiles.files.store import Store, label

    paths = Store().paths()
    labels = filter(None, map(label, paths))
    nodes = dict.fromkeys(path.parent.parent.name for path in paths)
    names = ["last", "previous", *nodes, *labels, *(path.parent.name for path in paths)]
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def _ask(path: str, field: str) -> list[str]:
    """Ask the coordinator for names to complete; empty if it does not answer."""
    from tenbin.client.client import Client
    from tenbin.errors import TenbinError

    try:
        return [str(row[field]) for row in Client().call("GET", path, timeout_s=1.0)]
    except TenbinError:
        return []


def complete_job(incomplete: str) -> list[str]:
    """Complete jobs that have not ended, and the selectors."""
    return [
        name
        for name in ("last", "all", *_ask("/jobs?members=false&limit=1000", "id"))
        if name.startswith(incomplete)
    ]


def complete_place(incomplete: str) -> list[str]:
    """Complete devices and nodes of the coordinator."""
    return [name for name in _ask("/nodes", "name") if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Complete devices of the coordinator, and words for several of them."""
    words = [name for name in ("any", "gpu", "cpu") if name.startswith(incomplete)]
    return words + complete_place(incomplete)


StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the stored profiles.", envvar="TENBIN_STORE", show_default=False),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(  # no envvar: where TENBIN_URL is set as well, that one counts
        "--home",
        help="The coordinator's folder. (default: $TENBIN_HOME, else ~/.local/state/tenbin/coordinator)",
        show_default=False,
        file_okay=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
RecoverOption = Annotated[
    bool,
    typer.Option(
        "--recover",
        help="First make a damaged journal anew, of what can be read of it and of the jobs' folders.",
    ),
]
ClusterOption = Annotated[
    bool, typer.Option("--cluster", help="PROFILE names a cluster; 'last': the one measured last.")
]
Selector = Annotated[
    str,
    typer.Argument(
        help="Which profile: 'last', 'previous', a node's name, an id, a label, or a path to a profile.json.",
        autocompletion=complete_selector,
        metavar="PROFILE",
    ),
]
