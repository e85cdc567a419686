"""Checks of the paths that jobs name, before the jobs are accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from profiles.errors import BadInput
from scheduler.jobs.dependencies import WaitsByPlace, named
from scheduler.jobs.specs import JobRefused, JobSpec


def check_all(
    check: Callable[[JobSpec], None],
    specs: Sequence[JobSpec],
    waits_for: WaitsByPlace,
) -> None:
    """Check the paths of all jobs but those that wait for others, which may make what they need.

    The arguments are those of ``Coordinator.submit``.

    Raises:
        BadInput: names the job and the path.
    """
    seen: set[tuple[str, ...]] = set()
    for place, spec in enumerate(specs):
        paths = spec.folder, spec.stdout, spec.stderr, spec.command[0]
        if paths in seen or named(spec) or waits_for.get(place):
            continue
        seen.add(paths)
        try:
            check(spec)
        except BadInput as error:
            raise JobRefused(error, place, len(specs)) from error
