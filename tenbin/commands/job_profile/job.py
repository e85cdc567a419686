"""``tenbin job``: what a program presses with and suffers from beside others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput
from tenbin.commands.job_profile.again import again
from tenbin.commands.job_profile.caps import with_caps
from tenbin.commands.job_profile.examples import examples
from tenbin.commands.job_profile.keep import keep
from tenbin.commands.job_profile.options import BudgetOption, JobArgument, LimitOption
from tenbin.commands.job_profile.predict import predict
from tenbin.commands.job_profile.scale import planned, with_scaling
from tenbin.commands.job_profile.show import print_job, print_list, to_measure
from tenbin.commands.options import JsonOption, StoreOption, complete_machine
from tenbin.commands.progress import progress

if TYPE_CHECKING:
    from profiles.jobs import JobProfile

app = typer.Typer(
    help="Job profiles: what a program presses with, and suffers from, when it shares a node.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("profile")
def profile(
    name: Annotated[str, typer.Argument(help="What to call it, for --job-profile and tenbin pairs.")],
    command: Annotated[
        list[str], typer.Argument(help="Program and arguments, after --.", metavar="-- CMD...")
    ],
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
            help="Also how it speeds up over so many cores (or ranks over the hosts): 1,2,4; {n} in the "
            "command is the count."
        ),
    ] = None,
    caps: Annotated[
        bool, typer.Option("--caps", help="Also its run time and energy under power caps (root; RAPL).")
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
    from agent.job_profile.caps import check as check_caps
    from agent.job_profile.profiler import make_job_profile
    from agent.job_profile.scaling import on_cores
    from agent.job_profile.session import LONGEST_S, JobOrder
    from profiles.job_store import JobStore
    from tenbin.commands.progress import terminated_as_interrupted
    from tenbin.commands.quantities import counts, duration_s

    _check_name(name)
    stored = JobStore(store)
    where = (folder or Path.cwd()).absolute()
    if not where.is_dir():
        raise BadInput(f"--chdir {where}: not a folder", f"mkdir -p {where}")
    limit_s, budget_s = duration_s(limit), None if budget is None else duration_s(budget)
    times = limit_s, LONGEST_S if budget_s is None else budget_s
    ranks_on = tuple(host.strip() for host in hosts.split(",")) if hosts is not None else ()
    run = tuple(command), str(where), times, quick, seed, mpi, ranks_on
    scaling = planned(counts(scale), *run) if scale else None
    if emulate and not caps:
        raise BadInput("--emulate: only power caps are emulated", "give --caps too, or leave it out")
    if caps and hosts:
        raise BadInput("--caps with --hosts: caps are those of this node", "leave one of them out")
    if caps:
        check_caps(emulate)
    order = JobOrder(
        name,
        on_cores(command, cores) if scaling else tuple(command),
        str(where),
        cores,
        quick,
        limit_s,
        budget_s,
        seed,
        mpi=mpi or hosts is not None,
        hosts=ranks_on,
    )
    stored.prepare()
    with terminated_as_interrupted(), progress() as listener:
        made, samples = make_job_profile(order, listener)
        if scaling is not None and not made.interrupted:
            made, samples = with_scaling(made, samples, scaling, listener)
        if caps and not made.interrupted:
            made, samples = with_caps(made, samples, times, emulate, listener)
    keep(stored, made, samples, json)


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from profiles.jobs import JobName

    try:
        TypeAdapter(JobName).validate_python(name)
    except ValidationError:
        raise BadInput(
            f"NAME {name!r} cannot be a name",
            "use letters, digits and . _ + -",
        ) from None


@app.command("show")
def show(name: JobArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show a job profile: what it needs alone, what it presses with, what it suffers from."""

    from agent.node_profile.node_kind import node_kind
    from profiles.job_store import JobStore
    from tenbin.text import as_json, say

    kind = node_kind()
    found = JobStore(store).load(name, kind.key)
    if json:
        print(as_json(found))
        return
    print_job(found)
    if found.kind.key != kind.key:
        print(f"\nOF ANOTHER KIND OF NODE. This one is {kind.title}; measure it here:")
        say(to_measure(found))


app.command("again")(again)
app.command("predict")(predict)
app.command("examples")(examples)


@app.command("list")
def list_jobs(store: StoreOption = None, json: JsonOption = False) -> None:
    """List the stored job profiles, newest first; a damaged one is named and costs no other."""
    from agent.node_profile.node_kind import node_kind
    from profiles.job_store import JobStore, load
    from tenbin.text import say

    here, rows, broken = node_kind().key, [], []
    for path in JobStore(store).paths():
        try:
            rows.append(load(path))
        except BadInput as error:
            broken.append(str(error))
    if json:
        import json as json_

        listed = [{**_summary(row), "this_kind": row.kind.key == here} for row in rows]
        print(json_.dumps({"job_profiles": listed, "damaged": broken}, indent=1))
    else:
        print_list(rows, here)
        for problem in broken:
            say(f"tenbin: {problem}", error=True)
    if broken:
        raise typer.Exit(BadInput.exit_code)


@app.command("schema")
def schema() -> None:
    """Print the schema of a job profile's JSON."""
    from profiles.export import json_schema
    from profiles.jobs import JobProfile

    print(json_schema(JobProfile), end="")


def _summary(row: JobProfile) -> dict[str, object]:
    run, pressure, curve = row.need("run_s"), row.pressure_by(), row.sensitivity_by()
    network = row.network
    return {
        "name": row.name,
        "id": row.id,
        "node": row.node,
        "kind": row.kind.key,
        "cores": row.cores,
        "run_s": run.value if run else None,
        "pressure_ratio": pressure.slowdown.value if pressure else None,
        "sensitivity_ratio": curve.levels[-1].slowdown.value if curve else None,
        "network_pressure_ratio": network.pressure.slowdown.value if network and network.pressure else None,
        "network_sensitivity_ratio": (
            network.sensitivity.levels[-1].slowdown.value if network and network.sensitivity else None
        ),
        "mpi_share": share.value if (share := row.need("mpi_share")) else None,
        "hosts": list(row.hosts),
        "clock": row.clock,
        "parallelism": None if row.scaling is None else row.scaling["A"].value,
        "repetitions": row.repetitions,
        "sessions": row.sessions,
        "interrupted": row.interrupted,
        "emulated": row.emulated,
        "command": list(row.command),
    }
