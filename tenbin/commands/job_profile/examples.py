"""``tenbin job examples``: job profiles of tenbin's own kernels, to try everything else with."""

from __future__ import annotations

from typing import Annotated

import typer

from profiles.errors import INTERRUPTED, BadInput
from tenbin.commands.options import JsonOption, StoreOption, names_in

complete_kernel = names_in("agent.job_profile.kernels:KERNELS")


def examples(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(help="ep, cg, ft, mg, lu. (default: all)", autocompletion=complete_kernel),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Full profiles, three minutes and more each, not quick ones.")
    ] = False,
    scale: Annotated[
        str | None, typer.Option(help="Also how they speed up over so many ranks (tenbin's MPI): 1,2.")
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
    import json as json_

    from agent.job_profile.kernels import KERNELS, command
    from agent.job_profile.profiler import make_job_profile
    from agent.job_profile.session import LONGEST_S, JobOrder
    from agent.node_profile.node_kind import node_kind
    from profiles.job_store import JobStore
    from tenbin.commands.job_profile.scale import planned, with_scaling
    from tenbin.commands.job_profile.show import print_list
    from tenbin.commands.progress import progress, terminated_as_interrupted
    from tenbin.commands.quantities import counts

    wanted = list(dict.fromkeys(kernels or KERNELS))
    if unknown := [name for name in wanted if name not in KERNELS]:
        raise BadInput(f"no kernel {unknown[0]!r}", f"choose from {', '.join(KERNELS)}")
    stored, made = JobStore(store), []
    stored.prepare()
    sizes = counts(scale) if scale else ()
    with terminated_as_interrupted():
        for name in wanted:
            run = command(name, KERNELS[name], seconds, 0 if sizes else 1)
            order = JobOrder(name, run, "/", quick=not full, mpi=bool(sizes))
            how = run, "/", (order.limit_s, LONGEST_S), order.quick, order.seed, order.mpi
            scaling = planned(sizes, *how) if sizes else None
            with progress(f"{name}, ") as listener:
                one, samples = make_job_profile(order, listener)
                if scaling is not None and not one.interrupted:
                    one, samples = with_scaling(one, samples, scaling, listener)
            stored.save(one, samples)
            made.append(one)
            if one.interrupted:
                break
    if json:
        print(json_.dumps([one.model_dump(mode="json") for one in made], indent=1))
    else:
        print_list(made, node_kind().key)
        print("\nWho gets on with whom: tenbin pairs. More of one: tenbin job show NAME")
    raise typer.Exit(INTERRUPTED if any(one.interrupted for one in made) else 0)
