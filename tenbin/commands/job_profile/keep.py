"""What becomes of a job profile that has been made: stored, shown, told by the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from profiles.errors import INTERRUPTED
from tenbin.commands.job_profile.show import print_job
from tenbin.text import as_json

if TYPE_CHECKING:
    import pandas as pd

    from profiles.job_store import JobStore
    from profiles.jobs import JobProfile


def keep(stored: JobStore, made: JobProfile, samples: dict[str, pd.DataFrame], json: bool) -> NoReturn:
    """Store and show it; the exit code says whether it is whole."""
    earlier = stored.paths(name=made.name)
    stored.save(made, samples)
    if json:
        print(as_json(made))
    else:
        print_job(made)
        print(f"\nStored as {made.name}@{made.id}. Who gets on with it: tenbin pairs")
        if earlier:
            print(f"{len(earlier)} earlier of this name are kept; the newest is used unless one is named.")
    raise typer.Exit(INTERRUPTED if made.interrupted else 1 if any(a.failed for a in made.absent) else 0)
