"""Checks of the paths that jobs name, before the jobs are accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec, of_several


def check_all(
    check: Callable[[JobSpec], None],
    specs: Sequence[JobSpec],
    waits_for: Mapping[int, Sequence[int]],
    arrays: Mapping[int, Sequence[int]],
) -> None:
    """Check the paths of all jobs but those that wait for others, which may make what they need.

    The arguments are those of ``Coordinator.submit``.

    Raises:
        BadInput: names the job and the path.
    """
    seen: set[tuple[str, str, str]] = set()
    counts = [len(arrays.get(place, "-")) for place in range(len(specs))]
    for spec, count, end in zip(specs, counts, accumulate(counts), strict=True):
        paths, places = (spec.folder, spec.stdout, spec.stderr), range(end - count, end)
        if paths in seen or spec.after or any(map(waits_for.get, places)):
            continue
        seen.add(paths)
        try:
            check(spec)
        except BadInput as error:
            raise of_several(error, places[0], sum(counts)) from error
