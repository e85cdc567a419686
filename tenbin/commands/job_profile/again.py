"""``tenbin job again``: a job profile that goes on where an earlier one ended."""

from __future__ import annotations

from profiles.errors import BadInput
from tenbin.commands.job_profile.keep import keep
from tenbin.commands.job_profile.options import BudgetOption, JobArgument, LimitOption
from tenbin.commands.job_profile.show import to_measure
from tenbin.commands.options import JsonOption, StoreOption
from tenbin.commands.progress import progress


def again(
    name: JobArgument,
    limit: LimitOption = "10m",
    budget: BudgetOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Measure a job once more, as its profile was made, and store a new one with the runs of both.

    Two hours of one machine differ by more than the repetitions of one hour tell. A profile of several
    sessions, at different times, has that in its intervals, and less of it in its predictions.

    [bold]Example[/bold]

      tenbin job profile stencil -- ./stencil --steps 1000

      tenbin job again stencil    (in the evening)
    """
    from agent.job_profile.pool import check_samples, pooled, same_again
    from agent.job_profile.profiler import make_job_profile
    from agent.node_profile.node_kind import node_kind
    from profiles.job_store import JobStore, load
    from profiles.store import samples as samples_beside
    from tenbin.commands.progress import terminated_as_interrupted
    from tenbin.commands.quantities import duration_s

    stored, kind = JobStore(store), node_kind()
    path = stored.find(name, kind.key)
    earlier = load(path)
    if earlier.kind.key != kind.key:
        what = f"job profile '{name}' was made on another kind of node ({earlier.kind.title})"
        raise BadInput(f"{what}, this one is {kind.title}", f"measure it here: {to_measure(earlier)}")
    known = samples_beside(path)
    check_samples(earlier, known)
    order = same_again(earlier, duration_s(limit), None if budget is None else duration_s(budget))
    stored.prepare()
    with terminated_as_interrupted(), progress() as listener:
        made, samples = pooled(*make_job_profile(order, listener), earlier, known)
    keep(stored, made, samples, json)
