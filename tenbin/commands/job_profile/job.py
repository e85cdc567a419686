"""``tenbin job``: measure a program alone and beside others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from profiles.errors import INTERRUPTED, BadInput
from tenbin.commands.job_profile.parts import planned, with_caps, with_scaling
from tenbin.commands.job_profile.predict import predict
from tenbin.commands.job_profile.show import (
    JobArgument,
    list_jobs,
    print_job,
    print_list,
    schema,
    show,
    to_measure,
)
from tenbin.commands.options import JsonOption, StoreOption, complete_machine, names_in
from tenbin.commands.progress import progress, terminated_as_interrupted
from tenbin.option_values import counts, duration_s
from tenbin.text import as_json, print_json

if TYPE_CHECKING:
    from profiles.files.store import JobStore
    from tenbin.commands.job_profile.parts import Made

LimitOption = Annotated[str, typer.Option(help="End a run that takes longer: 90s, 10m, 2h.")]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        help="Begin no repetition that would end later: 20m. (default: the time of 34 runs, 3m to 20m)",
        show_default=False,
    ),
]
complete_kernel = names_in("agent.job_profile.trial:KERNELS")
app = typer.Typer(
    help="Job profiles: how much a program slows others down on a shared node, and others slow the program.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def profile(
    name: Annotated[str, typer.Argument(help="Name of the profile, for --job-profile and tenbin pairs.")],
    command: Annotated[
        list[str], typer.Argument(help="Program and arguments, after --.", metavar="-- CMD...")
    ],
    *,
    cores: Annotated[
        int,
        typer.Option("--cores", "-n", min=1, help="Cores that the job gets, for its threads or ranks."),
    ] = 1,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="Start the command as -n ranks of tenbin's MPI, one a core.")
    ] = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOST,HOST,...",
            help="Start the ranks (--mpi) on these hosts, and measure beside comprobe between them too.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer intensities and repetitions: a minute for runs of 5 s."),
    ] = False,
    limit: LimitOption = "10m",
    budget: BudgetOption = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Also measure the speed-up over these counts of cores (or of ranks over the hosts): 1,2,4; "
            "{n} in the command is the count."
        ),
    ] = None,
    caps: Annotated[
        bool, typer.Option("--caps", help="Also measure run time and energy under power caps (root; RAPL).")
    ] = False,
    emulate: Annotated[
        str,
        typer.Option(
            help="With --caps: on emulated packages (a demonstration, marked): intel-1s, intel-2s.",
            metavar="MACHINE",
            autocompletion=complete_machine,
        ),
    ] = "",
    folder: Annotated[
        Path | None, typer.Option("--chdir", help="Working directory. (default: this one)")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random orders.")] = 1,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Run a program over and over, alone and beside memprobe, and store what came out under a name.

    The program is not changed. It runs on cores of its own, its input empty and its output thrown away.
    It should take 5 seconds to a few minutes, with the same work each time: 3 to 20 repetitions of five runs,
    nine with --hosts; with --quick two or three of three runs. Of an MPI program the share of time inside MPI
    is measured too. Ctrl-C ends it early and keeps what was measured. Run it while the machine is quiet.

    [bold]Examples[/bold]

      tenbin job profile stencil -- ./stencil --steps 1000

      tenbin job profile lu -n 4 --quick -- mpiexec -n 4 ./lu.C.x

      tenbin job profile cg -n 8 --hosts node1,node2 -- python cg.py

      tenbin job profile lu -n 2 --mpi --scale 1,2,4 -- python lu.py

      tenbin job profile stencil --caps -- ./stencil --steps 1000
    """
    from agent.job_profile.caps import check_meter
    from agent.job_profile.profiler import make_job_profile
    from agent.job_profile.scaling import on_cores
    from agent.job_profile.session import JobOrder
    from profiles.files.store import JobStore

    _check_name(name)
    stored = JobStore(store)
    where = (folder or Path.cwd()).absolute()
    if not where.is_dir():
        raise BadInput(f"--chdir {where}: not a folder", f"mkdir -p {where}")
    order = JobOrder(
        name=name,
        command=tuple(command),
        folder=str(where),
        cores=cores,
        quick=quick,
        limit_s=duration_s(limit, "--limit"),
        budget_s=None if budget is None else duration_s(budget, "--budget"),
        seed=seed,
        mpi=mpi or hosts is not None,
        hosts=tuple(host.strip() for host in hosts.split(",")) if hosts is not None else (),
    )
    scaling = planned(counts(scale), order) if scale else None
    if emulate and not caps:
        raise BadInput("--emulate: only power caps are emulated", "give --caps too, or leave it out")
    if caps and hosts:
        raise BadInput("--caps with --hosts: caps are those of this node", "leave one of them out")
    if caps:
        check_meter(emulate)
    if scaling is not None:
        order = replace(order, command=on_cores(command, cores))
    stored.prepare()
    with terminated_as_interrupted(), progress() as listener:
        made = make_job_profile(order, listener)
        if scaling is not None and not made[0].interrupted:
            made = with_scaling(made, scaling, listener)
        if caps and not made[0].interrupted:
            made = with_caps(made, order, emulate, listener)
    _keep(stored, made, json)


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from profiles.jobs import JobName

    try:
        TypeAdapter(JobName).validate_python(name)
    except ValidationError:
        raise BadInput(f"NAME {name!r} cannot be a name", "use letters, digits and . _ + -") from None


def again(
    name: JobArgument,
    *,
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
    from agent.job_profile.profiler import check_samples, make_job_profile, pooled, same_again
    from agent.node_profile.identity import node_kind
    from profiles.files.store import JobStore, load_job
    from profiles.files.store import samples as samples_beside

    stored, kind = JobStore(store), node_kind()
    path = stored.find(name, kind.key)
    earlier = load_job(path)
    if earlier.kind.key != kind.key:
        what = f"job profile '{name}' was made on another kind of node ({earlier.kind.title})"
        raise BadInput(f"{what}, this one is {kind.title}", f"measure it here: {to_measure(earlier)}")
    known = samples_beside(path)
    check_samples(earlier, known)
    order = same_again(
        earlier, duration_s(limit, "--limit"), None if budget is None else duration_s(budget, "--budget")
    )
    stored.prepare()
    with terminated_as_interrupted(), progress() as listener:
        made = pooled(*make_job_profile(order, listener), earlier, known)
    _keep(stored, made, json)


def examples(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(help="ep, cg, ft, mg, lu. (default: all)", autocompletion=complete_kernel),
    ] = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Full profiles, three minutes and more each, not quick ones.")
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(help="Also measure the speed-up over these counts of ranks (tenbin's MPI): 1,2."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of a run, about.")] = 5.0,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Profile the five kernels of the node profile: EP, CG, FT, MG and an LU-like sweep, as jobs ep, cg, ...

    About five minutes in all. What was measured of a kernel before Ctrl-C is kept.

    [bold]Examples[/bold]

      tenbin job examples

      tenbin job examples cg ep --full --scale 1,2

      tenbin pairs
    """
    from agent.job_profile.profiler import make_job_profile
    from agent.job_profile.session import JobOrder
    from agent.job_profile.trial import KERNELS, command
    from agent.node_profile.identity import node_kind
    from profiles.files.store import JobStore

    wanted = list(dict.fromkeys(kernels or KERNELS))
    if unknown := [name for name in wanted if name not in KERNELS]:
        raise BadInput(f"no kernel {unknown[0]!r}", f"choose from {', '.join(KERNELS)}")
    stored, profiles = JobStore(store), []
    stored.prepare()
    sizes = counts(scale) if scale else ()
    with terminated_as_interrupted():
        for name in wanted:
            run = command(name, KERNELS[name], seconds, ranks=0 if sizes else 1)
            order = JobOrder(name, run, "/", quick=not full, mpi=bool(sizes))
            scaling = planned(sizes, order) if sizes else None
            with progress(f"{name}, ") as listener:
                made = make_job_profile(order, listener)
                if scaling is not None and not made[0].interrupted:
                    made = with_scaling(made, scaling, listener)
            stored.save(*made)
            profiles.append(made[0])
            if made[0].interrupted:
                break
    if json:
        print_json([one.model_dump(mode="json") for one in profiles])
    else:
        print_list(profiles, node_kind().key)
        print("\nWho gets on with whom: tenbin pairs. More of one: tenbin job show NAME")
    raise typer.Exit(INTERRUPTED if any(one.interrupted for one in profiles) else 0)


def _keep(stored: JobStore, made: Made, json: bool) -> NoReturn:
    """Store and show a job profile; the exit code tells if all of it was measured."""
    profile, samples = made
    earlier = stored.paths(name=profile.name)
    stored.save(profile, samples)
    if json:
        print(as_json(profile))
    else:
        print_job(profile)
        print(f"\nStored as {profile.name}@{profile.id}. Who gets on with it: tenbin pairs")
        if earlier:
            print(f"{len(earlier)} earlier of this name are kept; the newest is used unless one is named.")
    failed = any(absent.failed for absent in profile.absent)
    raise typer.Exit(INTERRUPTED if profile.interrupted else int(failed))


COMMANDS: dict[str, Callable[..., None]] = {
    "profile": profile,
    "show": show,
    "again": again,
    "predict": predict,
    "examples": examples,
    "list": list_jobs,
    "schema": schema,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
