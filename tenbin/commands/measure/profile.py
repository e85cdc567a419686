"""``tenbin profile``: measure this node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probes.registry import PROBES
from profiles.errors import INTERRUPTED, BadInput, Unavailable, UserError
from tenbin.commands.measure.cluster import profile_nodes
from tenbin.commands.measure.stored import print_profile
from tenbin.commands.options import (
    JsonOption,
    StoreOption,
    complete_machine,
    ensure_page,
    progress,
    restore_leftovers,
    storage_folder,
    stored_profiles,
    terminated_as_interrupted,
)
from tenbin.option_values import names
from tenbin.text import as_json, say

if TYPE_CHECKING:
    from agent.node_profile.profiler import Listener, Progress
    from profiles.files.store import Store
    from profiles.records import Profile, Settings

METERS = ("auto", "powercap", "pyrapl", "nvml", "none")


def _complete_probes(incomplete: str) -> list[str]:
    done, _, last = incomplete.rpartition(",")
    given = done.split(",") if done else []
    head = f"{done}," if done else ""
    return [head + name for name in PROBES if name.startswith(last) and name not in given]


def _complete_nodes(incomplete: str) -> list[str]:
    from scheduler.engines.slurm.slurm_commands import Slurm

    try:
        slurm = Slurm(timeout_s=2.0)
        names = ["all", *slurm.partitions(), *(node.name for node in slurm.nodes())]
    except UserError:
        names = ["all"]
    return [name for name in names if name.startswith(incomplete)]


def profile(
    *,
    quick: bool = False,
    only: Annotated[
        str | None,
        typer.Option(
            help=f"Only these probes, comma-separated: {','.join(PROBES)}.",
            autocompletion=_complete_probes,
            show_default=False,
        ),
    ] = None,
    storage: list[Path] | None = None,
    hosts: Annotated[str | None, typer.Option(show_default=False)] = None,
    nodes: Annotated[str | None, typer.Option(show_default=False, autocompletion=_complete_nodes)] = None,
    meter: Annotated[
        str, typer.Option(help=f"Power meter: {', '.join(METERS)}.", autocompletion=lambda: list(METERS))
    ] = "auto",
    set_gpu_limits: bool = False,
    emulate: Annotated[str, typer.Option(autocompletion=complete_machine, show_default=False)] = "",
    seed: Annotated[int, typer.Option(min=0)] = 1,
    report: Path | None = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Measure this node and store the profile: memory, arithmetic, network, storage, power, scaling...

    About 6 minutes, or one with --quick. Run it while the machine is quiet. Ctrl-C ends it early and keeps
    what was measured; whatever was changed (power caps) is put back. To measure the speed of storage, at most
    1 GiB is written to each folder, 192 MiB with --quick.

    [bold]Examples[/bold]

      tenbin profile --quick
      tenbin profile --only checkpoint,storage --storage /scratch --storage /home/me
      tenbin profile --hosts node1,node2 --report node1.html
      tenbin slurm profile --quick --report cluster.html

    Args:
        quick: Under a minute, wider intervals.
        storage: Folder for checkpoints, whose speed is measured too; repeat it to compare several.
        hosts: Measure all-to-all across these hosts, comma-separated.
        nodes: Measure nodes of the Slurm cluster: all, a list as node[1-3],x, or a partition.
        set_gpu_limits: Also change GPU power limits (restored afterwards).
        emulate: Measure the power of an emulated machine instead (a demonstration, marked as such): intel-1s,
            intel-2s, intel-2die or amd; with faults: intel-1s+wrap+locked.
        seed: Seed of the random orders.
        report: Also write the report to this HTML file.
    """
    from profiles.records import Settings

    if names(nodes, "--nodes") and hosts:
        raise BadInput(
            "--nodes and --hosts exclude each other", "--nodes measures between its nodes by itself"
        )
    if nodes:
        storage, elsewhere = [], tuple(folder.absolute() for folder in storage or [])
    if meter not in METERS:
        raise BadInput(f"--meter: no meter '{meter}'", f"choose from {', '.join(METERS)}")
    chosen = {"only": names(only, "--only"), "hosts": names(hosts, "--hosts"), "quick": quick, "seed": seed}
    folders = tuple(map(storage_folder, storage or []))
    limits = {"meter": meter, "set_gpu_limits": set_gpu_limits}
    settings = Settings.model_validate({**chosen, **limits, "storage": folders})
    if hosts:
        _check_hosts(settings, emulate)
    if report:
        ensure_page("--report", report)
    if nodes:
        with terminated_as_interrupted():
            settings = settings.model_copy(update={"storage": elsewhere})
            profile_nodes(nodes, settings, emulate, report=report, store=store, json=json)
    with terminated_as_interrupted():
        made = _measure(settings, emulate, stored_profiles(store))
    if report:
        from tenbin.report.page import write_report

        write_report(stored_profiles(store).find(made.id), report)
    _tell(made, stored_profiles(store), report, json)
    raise typer.Exit(_exit_code(made))


def _exit_code(made: Profile) -> int:
    if made.interrupted:
        return INTERRUPTED
    if any(absent.failed for absent in made.absent):
        return 1
    return 0 if made.samples else Unavailable.exit_code


def _check_hosts(settings: Settings, emulate: str) -> None:
    """See that the hosts answer, before minutes are spent on measuring."""
    from probes.mpi.runner import find_mpi
    from probes.network import check_names, greet

    if emulate or (settings.only and "network" not in settings.only):
        raise BadInput(
            "--hosts: only the network probe measures over hosts", "leave --hosts out, or the rest"
        )
    check_names(settings.hosts)
    greet(settings.hosts, find_mpi().library)


def _measure(settings: Settings, emulate: str, store: Store) -> Profile:
    from agent.node_profile.profiler import make_profile
    from profiles.files.store import save_measured
    from tenbin.report.page import pictures

    store.prepare()
    restore_leftovers()
    with _emulated(settings, emulate) as effective, _progress() as listener:
        made, samples = make_profile(effective, listener)
    if samples:
        save_measured(store, made, samples, f"tenbin profile show {made.id}")
    if samples and not made.interrupted:
        with suppress(UserError):  # the report will say it
            pictures(store.find(made.id), made)
    return made


@contextmanager
def _emulated(settings: Settings, machine: str) -> Iterator[Settings]:
    """Yield settings that point at an emulated machine while it lives."""
    if not machine:
        yield settings
        return
    from agent.emulation.machines import emulated_node

    if settings.only not in ((), ("power",)):
        raise BadInput("--emulate: only power is emulated", "leave --only out, or give --only power")
    with emulated_node(machine) as sysfs:
        yield settings.model_copy(update={"sysfs": sysfs, "emulated": machine, "only": ("power",)})


@contextmanager
def _progress() -> Iterator[Listener]:
    """Show the progress on standard error; elsewhere than on a terminal each step once."""
    steps = set()
    with progress() as show:

        def tell(now: Progress) -> None:
            title = PROBES[now.step.probe].title
            if sys.stderr.isatty():
                show(replace(now, doing=f"{title}: {now.doing}"))
            elif now.step not in steps:
                steps.add(now.step)
                show(replace(now, doing=title, left_s=round(now.left_s)))

        yield tell


def _tell(made: Profile, store: Store, report: Path | None, json: bool) -> None:
    from agent.node_profile.identity import kin

    if json:
        print(as_json(made))
        return

    print_profile(made, kin=kin(store, made))
    if not made.samples:
        print("Nothing was measured, so nothing is stored.")
        return
    say(f"\nStored as {made.node} {made.id}. The pictures: tenbin profile report {made.id}")
    if report:
        say(f"The report is in {report}")
