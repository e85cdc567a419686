"""``tenbin up``, ``down``, ``status``: the coordinator itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenbin.commands.options import (
    HomeOption,
    JsonOption,
    RecoverOption,
    complete_machine,
    complete_policy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.engines.common.machine import Machine

START_S = 60.0


class Engines(StrEnum):
    """What can run jobs."""

    local = "local"
    slurm = "slurm"


def up(
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Name, or name,k=v,k=v.", autocompletion=complete_policy)
    ] = "easy",
    cores: Annotated[
        int | None, typer.Option(min=1, help="Use so many cores. (default: all that this process may use)")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Split the machine into so many nodes, for policies that place.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for all jobs together: 20G. (default: all that this process may use)"),
    ] = None,
    engine: Annotated[
        Engines, typer.Option(help="Who runs the jobs: this machine itself, or a Slurm cluster.")
    ] = Engines.local,
    partition: Annotated[
        str | None, typer.Option(help="With --engine slurm: schedule these nodes. (default: Slurm's default)")
    ] = None,
    unit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --engine slurm: units of so many cores of one node, for policies that count units. "
            "(default: whole nodes)",
        ),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            min=2,
            help="With --engine slurm: seconds after which a job that cannot see its folder ends itself; the "
            "jobs of a lost node run again when they have passed.",
        ),
    ] = 30.0,
    set_down: Annotated[
        bool,
        typer.Option(
            "--set-down",
            help="With --engine slurm: set nodes that are dead down in Slurm, long before it notices itself; "
            "those that answer again are resumed. Takes an administrator.",
        ),
    ] = False,
    take_over: Annotated[
        Path | None,
        typer.Option(
            help="With --engine slurm: take over jobs of plain sbatch. FILE tells job_submit.lua that "
            "tenbin is there; the same as in: tenbin slurm-config --job-submit FILE",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    gate: Annotated[
        float,
        typer.Option(
            min=5,
            help="With --take-over: jobs of sbatch that wait start by themselves so many seconds after "
            "tenbin has gone.",
        ),
    ] = 3600.0,
    partitions: Annotated[
        str | None,
        typer.Option(
            help="With --engine slurm and policy regions: make each region a partition of Slurm, PREFIX-1, "
            "PREFIX-2, ...",
            metavar="PREFIX",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        bool, typer.Option("--devices", help="Schedule OpenCL devices: each a class of its own.")
    ] = False,
    power_budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Cap the packages: those in use draw no more than so many watts together. With --engine "
            "slurm: cap the nodes, which draw no more all together, in use or not.",
        ),
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(
            help="With --power-budget: cap an emulated machine (a demonstration, marked as such): intel-2s. "
            "With --engine slurm: the folder with the emulated caps of each node.",
            autocompletion=complete_machine,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="A measured profile (last): what moving a job costs, what caps and sizes do."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Take calls over TCP as well: PORT (from this machine) or HOST:PORT (0.0.0.0:PORT: from "
            "everywhere). Callers must know the token in the coordinator's folder.",
            metavar="[HOST:]PORT",
        ),
    ] = None,
    recover: RecoverOption = False,
    daemon: Annotated[bool, typer.Option("--daemon", help="Go into the background.")] = False,
    home: HomeOption = None,
) -> None:
    """Start the coordinator: it takes jobs and runs them on this machine, or on a Slurm cluster.

    Its queue outlives it: stopped or killed and started again, it has every job exactly once, and jobs
    that run go on meanwhile.

    [bold]Examples[/bold]

      tenbin up --daemon

      tenbin up --policy conservative,depth=100 --cores 8

      tenbin up --policy mctbm --devices --profile last

      tenbin up --policy parm --power-budget 150 --profile last

      tenbin up --engine slurm --partition batch --home /nfs/me/tenbin --daemon

      tenbin up --engine slurm --take-over /run/tenbin.lease --daemon

      tenbin up --engine slurm --devices --policy mctbm

      tenbin up --engine slurm --policy regions --partitions tenbin
    """
    import logging

    from scheduler.engines.local.capped import capped_packages
    from scheduler.engines.local.discovery import devices_of_machine, divide, with_memory
    from tenbin.client.connection import default_home
    from tenbin.commands.quantities import size_mb
    from tenbin.server.serve import make_ready, serve
    from tenbin.server.tcp import where

    _check_together(devices, cores, nodes, power_budget, emulate)
    told = None if devices else profile
    here = {"--cores": cores, "--nodes": nodes, "--memory": memory}
    memory_mb = size_mb(memory) if memory is not None else None
    there = {"--partition": partition, "--unit": unit, "--take-over": take_over}
    there |= {"--set-down": set_down, "--partitions": partitions}
    _check_engine(engine, here, there, power_budget, told)
    if listen is not None:
        where(listen)  # what is wrong with it is said before anything is started
    folder = (home or default_home()).absolute()
    known = _profile(profile)
    for done in make_ready(folder, recover):
        typer.echo(f"tenbin: {done}")
    with _hardware(emulate if engine is Engines.local else None, folder) as sysfs:
        if engine is Engines.slurm:
            from scheduler.engines.slurm.discovery import setting_down, slurm_cluster

            found = slurm_cluster(policy, folder, partition, unit, lease, take_over, gate, devices, known)
            found = setting_down(found) if set_down else found
            if partitions is not None:
                from scheduler.engines.slurm.nodes.partition_check import partitioned

                found = partitioned(found, policy, partitions, folder)
            if power_budget is not None:
                from scheduler.engines.slurm.nodes.power_caps import capped_nodes

                found = capped_nodes(found, folder, policy, power_budget, known, emulate or "")
            machine: Machine = found
        elif devices:
            machine = with_memory(devices_of_machine(policy, known, folder), memory_mb)
        elif power_budget is not None:
            capped = capped_packages(policy, power_budget, nodes, known, sysfs, emulate or "")
            machine = with_memory(capped, memory_mb)
        else:
            machine = with_memory(divide(policy, cores, nodes, known), memory_mb)
        if daemon:
            _go_into_background(folder)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        if not daemon:
            typer.echo(f"tenbin: policy {policy}, {_told(machine)}; Ctrl-C stops it, jobs go on")
        tell = (lambda url: None) if daemon else partial(_tell_url, folder)
        serve(folder, policy, machine, place=listen, tell=tell)


def _tell_url(folder: Path, url: str) -> None:
    typer.echo(f"tenbin: also at {url}, for whoever knows the token in {folder / 'token'}")


def _told(machine: Machine) -> str:
    pools = ", ".join(f"{pool.units} x {pool.name}" for pool in machine.cluster.pools)
    caps_w, budget_w = machine.cluster.pools[0].caps_w, machine.cluster.budget_w
    if budget_w is None:
        return pools
    budget_w += machine.rest_w
    emulated = f" EMULATED ({machine.emulated})" if machine.emulated else ""
    return f"{pools} under caps of {caps_w[0]:g} to {caps_w[-1]:g} W, {budget_w:g} W together{emulated}"


def _hardware(emulate: str | None, folder: Path) -> AbstractContextManager[Path]:
    """Where the power caps are: the real /sys, or that of an emulated machine, which its jobs keep alive."""
    from agent.emulation.persistent import standing_node

    return standing_node(emulate, folder) if emulate else nullcontext(Path("/sys"))


def _check_together(
    devices: bool, cores: int | None, nodes: int | None, budget_w: float | None, emulate: str | None
) -> None:
    """Options that exclude or need each other.

    Raises:
        BadInput: they are not as they should be.
    """
    from profiles.errors import BadInput

    for name, value in (("--cores", cores), ("--nodes", nodes), ("--power-budget", budget_w)):
        if devices and value is not None:
            what = f"{name} with --devices: devices are scheduled"
            raise BadInput(f"{what}, not {name[2:]}", "give one of them")
    if budget_w is not None and cores is not None:
        raise BadInput("--cores with --power-budget: jobs get whole packages", "say how many by --nodes")
    if emulate is not None and budget_w is None:
        raise BadInput("--emulate is of power caps", "add --power-budget")


def _check_engine(
    engine: Engines,
    here: Mapping[str, object],
    there: Mapping[str, object],
    budget_w: float | None,
    profile: str | None,
) -> None:
    """Options of one engine with the other.

    Args:
        here: what only the local engine takes. there: what only the one of Slurm does.

    Raises:
        BadInput: they do not go together.
    """
    from profiles.errors import BadInput

    given = {name for name, value in {**here, **there}.items() if value not in (None, False)}
    if engine is Engines.slurm:
        for name in here:
            if name in given:
                raise BadInput(f"{name} with --engine slurm: it is of this machine", "leave it out")
        if profile is not None and budget_w is None:
            raise BadInput(
                "--profile with --engine slurm is of power caps, or of devices",
                "add --power-budget or --devices",
            )
        if "--unit" in given and budget_w is not None:
            raise BadInput("--unit with --power-budget: jobs get whole nodes", "leave it out")
        if "--take-over" in given and budget_w is not None:
            what = "--take-over with --power-budget: nothing caps what sbatch starts"
            raise BadInput(what, "give one of them")
        if {"--take-over", "--partitions"} <= given:
            what = "--take-over with --partitions: jobs of sbatch keep the partition that they have"
            raise BadInput(what, "give one of them")
        return
    for name in there:
        if name in given:
            raise BadInput(f"{name} is of a Slurm cluster", "add --engine slurm")


def _profile(selector: str | None) -> Any:
    from profiles.store import Store

    return None if selector is None else Store().load(selector)


def down(
    let_go: Annotated[
        bool,
        typer.Option("--let-go", help="Leave the jobs of plain sbatch that wait to Slurm's own scheduler."),
    ] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Stop the coordinator. Jobs that run go on; the queue is kept for the next ``tenbin up``.

    Jobs of plain sbatch that were taken over wait on for as long as tenbin up --gate says, and start by
    themselves then.
    """
    import os
    import time

    from tenbin.client.client import Client

    client = Client(home)
    found = client.call("POST", f"/down?let_go={'true' if let_go else 'false'}")
    pid, guests = found["pid"], found["guests"]
    for _ in range(200 if client.address == str(client.home) else 0):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.02)
    text = f"stopped (pid {pid})"
    if guests and let_go:
        text += f"; {guests} jobs of sbatch are left to Slurm"
    elif guests:
        text += f"; {guests} jobs of sbatch wait for tenbin up, and start by themselves if it does not come"
    _print({"pid": pid, "guests": guests}, json, text)


def status(home: HomeOption = None, json: JsonOption = False) -> None:
    """Say whether the coordinator runs, by which policy, and what it has to do."""
    from scheduler.jobs.sizes import memory_text
    from tenbin.client.client import Client

    found = Client(home).call("GET", "/status")
    counts = ", ".join(f"{count} {stage}" for stage, count in found["jobs"].items() if count) or "no jobs"
    also = f", {found['url']}" if found["url"] else ""
    text = f"pid {found['pid']}, policy {found['policy']}, {found['home']}{also}\n{counts}"
    if memory := found["memory"]:
        given, total = (memory_text(memory[what]) for what in ("set_aside_mb", "total_mb"))
        text += f"\n{given} of {total} of memory set aside for jobs"
    if power := found["power"]:
        text += f"\n{power['allotted_w']:g} of {power['budget_w']:g} W allotted"
    _print(found, json, text)


def _print(found: Any, as_json: bool, text: str) -> None:
    import json

    from tenbin.text import say

    say(json.dumps(found, indent=1) if as_json else text)


def _go_into_background(folder: Path) -> None:
    """Return in a process of its own; the first one waits until that answers, then ends.

    Raises:
        typer.Exit: in the first process.
    """
    import os
    import time

    from tenbin.client.client import Client
    from tenbin.errors import TenbinError
    from tenbin.text import say

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "coordinator.log"
    pid = os.fork()
    if pid == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor, opened in ((0, nothing), (1, written), (2, written)):
            os.dup2(opened, descriptor)
        return
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            last = (log.read_text().splitlines() or ["it said nothing"])[-1]
            say(last if last.startswith("tenbin:") else f"tenbin: {last}", error=True)
            raise typer.Exit(os.waitstatus_to_exitcode(status) or 1)
        try:
            found = Client(folder).call("GET", "/status")
            if found["pid"] == pid:
                typer.echo(f"tenbin: coordinator {pid} runs; its log: {log}")
                if found["url"]:
                    _tell_url(folder, found["url"])
                raise typer.Exit()
        except TenbinError:
            time.sleep(0.02)
    typer.echo(f"tenbin: the coordinator does not answer; see {log}", err=True)
    raise typer.Exit(1)
