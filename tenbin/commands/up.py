"""``tenbin up``: starts the coordinator, with the options of each engine."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import BadInput
from profiles.files.safe_files import in_utf8
from profiles.quantities import local
from scheduler.engines import registry
from scheduler.engines.registry import DEFAULT, ENGINES, IdleRule, Megabytes, Option, Seconds, UpRequest
from scheduler.policies.registry import DEFAULT as DEFAULT_POLICY
from tenbin.commands.options import (
    HomeOption,
    client_of,
    complete_machine,
    complete_offered_policy,
    option_parameter,
    stored_profiles,
    with_parameters,
)
from tenbin.errors import TenbinError
from tenbin.option_values import duration_s, size_mb
from tenbin.page.beside import FILE, PORT, address, page_beside
from tenbin.text import remark

if TYPE_CHECKING:
    from scheduler.engines.protocol import Machine

# -- options of engines ------------------------------------------------------------------------------------


IN_WORDS: dict[type, Callable[[str, Option], Any]] = {
    Megabytes: lambda text, _: size_mb(text),
    Seconds: lambda text, option: duration_s(text, option.flag, least=option.least),
    IdleRule: lambda text, option: _idle_rule(text, option.flag),
}


def with_engine_options(before: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of all engines, in place of its ``**own``.

    The options of the default engine come before the parameter ``before``, those of the others after it.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = {option.name: option for engine in registry.ENGINES for option in registry.options(engine)}

        @wraps(command)
        def call(**given: Any) -> None:
            for name, option in declared.items():
                if option.kind in IN_WORDS and given[name] is not None:
                    given[name] = IN_WORDS[option.kind](given[name], option)
            command(**given)

        others = [name for name in registry.ENGINES if name != registry.DEFAULT]
        signature = with_parameters(
            command,
            before,
            before=map(_parameter, registry.options(registry.DEFAULT)),
            after=[_parameter(option, name) for name in others for option in registry.options(name)],
        )
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: given.annotation for name, given in signature.parameters.items()}
        return call

    return decorate


def _parameter(option: Option, engine: str = "") -> inspect.Parameter:
    """Return the option as typer reads it; in the help below ``engine``, if it is not the default one."""
    kind: Any = str if option.kind in IN_WORDS else option.kind
    group = f"With --engine {engine}" if engine else None
    text = option.help.removeprefix(f"{group}: ")
    settings: dict[str, Any] = {"help": text[:1].upper() + text[1:], "metavar": option.metavar}
    settings |= {"rich_help_panel": group, "dir_okay": kind is not Path}
    if option.least is not None and kind is not str:
        settings["min"] = option.least
    names = [option.flag] if kind is bool else []  # without --no-...
    default = f"{option.default:g}s" if option.kind is Seconds else option.default
    return option_parameter(option.name, kind, default, *names, **settings)


def _idle_rule(text: str, flag: str) -> IdleRule:
    match text.rpartition("="):
        case after, "=", "end" | "park" as then:
            return IdleRule(duration_s(after, flag, least=1.0), then)
    raise BadInput(f"{flag} {text!r} does not say what becomes of the job", "write 2h=end, or 2h=park")


# -- ``tenbin up`` -----------------------------------------------------------------------------------------


START_S, PAGE_S = 60.0, 20.0
PATHS = (  # variables that may be relative, which a daemon leaves its folder with
    "TENBIN_STORE",
    "TENBIN_OPENCL_FOLDER",
    "SLURM_CONF",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


Engines = StrEnum("Engines", {name: name for name in ENGINES})  # type: ignore[misc]
DEFAULT_ENGINE = Engines(DEFAULT)


@with_engine_options(before="engine")
def up(
    *,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", autocompletion=complete_offered_policy, show_default=DEFAULT_POLICY),
    ] = None,
    engine: Engines = DEFAULT_ENGINE,
    devices: bool = False,
    power_budget: Annotated[float | None, typer.Option(min=0)] = None,
    emulate: Annotated[str | None, typer.Option(autocompletion=complete_machine)] = None,
    profile: str | None = None,
    drain_unfit: bool = False,
    listen: Annotated[str | None, typer.Option(metavar="[HOST:]PORT")] = None,
    page: bool = False,
    page_listen: Annotated[
        str | None,
        typer.Option(
            help=f"Where the page of --page listens. (default: {PORT}, from this machine)",
            metavar="[HOST:]PORT",
        ),
    ] = None,
    keep: Annotated[int, typer.Option(min=0)] = 1000,
    on_event: Annotated[str, typer.Option(metavar="CMD", show_default=False)] = "",
    recover: bool = False,
    daemon: bool = False,
    home: HomeOption = None,
    **own: Any,
) -> None:
    """Start the coordinator: it takes jobs and runs them on this machine, or on a Slurm cluster.

    Its queue outlives it: stopped or killed and started again, it has every job exactly once, and jobs
    that run go on meanwhile.

    [bold]Examples[/bold]

      tenbin up --daemon

      tenbin up --policy conservative,depth=100 --cores 8

      tenbin up --devices --profile last

      tenbin up --policy las-drf,weights=alice:2/bob:1    # fair parts; jobs say --user-share alice

      tenbin up --policy parm --power-budget 150 --profile last

      tenbin up --page --daemon

      tenbin up --emulate gpus-4

      tenbin up --engine slurm --partition batch --home /nfs/me/tenbin --daemon

      tenbin up --engine slurm --take-over /run/tenbin.lease --daemon

      tenbin up --engine slurm --devices

      tenbin up --engine slurm --policy regions --partitions tenbin

    Args:
        policy: weigh, easy, conservative, soft-regions, fcfs, first-fit, las-mq, las-drf, match or parm
            (docs/which-policy.md; others: tenbin policies); with parameters name,k=v,k=v. Or a file
            (./mine.py).
        engine: Who runs the jobs: this machine itself, or a Slurm cluster.
        devices: Schedule OpenCL devices: each a class of its own.
        power_budget: Cap the packages: those in use draw no more than so many watts together. With --engine
            slurm: cap the nodes, which draw no more all together, in use or not.
        emulate: Give jobs emulated GPUs (a demonstration, marked as such): gpus-4. With --power-budget: cap
            an emulated machine, likewise: intel-2s. With --engine slurm: the folder with the emulated caps of
            each node.
        profile: A measured profile (last): what moving a job costs, what caps and sizes do.
        drain_unfit: Start no jobs on nodes that failed their last tenbin profile check, until they pass one.
            With --engine slurm: drain them in Slurm, and resume those. Takes an administrator there.
        listen: Take calls over TCP as well: PORT (from this machine) or HOST:PORT (0.0.0.0:PORT: from
            everywhere). Callers must know the token in the coordinator's folder.
        page: Show the queue in a browser, too: tenbin page, as long as this runs.
        keep: Leave the files of so many jobs that succeeded in folders. Those of earlier ones are packed into
            one file; logs, info and the page read them there.
        on_event: Run this command of the shell when a job has ended, however, or does nothing on its GPUs,
            when somebody else holds one, and when one is lost: TENBIN_EVENT (ended, failed, idle, stranger,
            gpu-lost), TENBIN_JOB, TENBIN_STATE, ... (docs/run-jobs.md).
        recover: First make a damaged journal anew, of what can be read of it and of the jobs' folders.
        daemon: Go into the background.
    """
    import logging

    from scheduler.coordinator.journal.journal_file import hold
    from scheduler.engines.protocol import Taken
    from scheduler.policies.registry import create, of_any_folder
    from tenbin.client.connection import default_home
    from tenbin.server import tcp
    from tenbin.server.serve import default_policy, make_ready, serve

    folder = in_utf8(home or default_home(), "--home").absolute()
    policy = of_any_folder(policy or default_policy(folder, typer.echo))
    own = {name: value.absolute() if isinstance(value, Path) else value for name, value in own.items()}
    os.environ.update(
        {name: str(Path(os.environ[name]).absolute()) for name in PATHS if os.environ.get(name)}
    )
    request = UpRequest(
        policy, folder, devices, power_budget, emulate or "", own=own, drain_unfit=drain_unfit
    )
    create(policy)  # a slip of the pen is told before anybody is asked for the machine
    registry.check(engine, request, profiled=profile is not None)
    if listen is not None:
        tcp.where(listen)  # a wrong address is refused before anything is started
    page_at = page_listen or (PORT if page else "")
    door = tcp.listen(page_at, "--page-listen") if page_at else None
    request = replace(request, profile=_profile(profile))
    for done in make_ready(folder, recover):
        typer.echo(f"tenbin: {done}")
    with ExitStack() as stack:
        try:
            machine = stack.enter_context(registry.find(engine, request))
        except Taken:
            os.close(hold(folder))  # by the coordinator that runs there: then that is what to say
            raise
        for note in machine.notes:
            typer.echo(f"tenbin: {note}")
        if daemon:
            _go_into_background(folder, page=door is not None)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
        if not daemon:
            typer.echo(f"tenbin: policy {policy}, {_told(machine)}; Ctrl-C stops it, jobs go on")
        tell = (lambda url: None) if daemon else partial(_tell_url, folder)
        beside: Callable[[], AbstractContextManager[None]] = nullcontext
        if door is not None:
            beside = partial(page_beside, folder, door, tcp.where(page_at)[0], tells=not daemon)
        serve(
            folder,
            policy,
            machine,
            place=listen,
            tell=tell,
            drain_unfit=drain_unfit,
            keep=keep,
            on_event=on_event,
            beside=beside,
        )


def _tell_url(folder: Path, url: str) -> None:
    typer.echo(f"tenbin: also at {url}, for whoever knows the token in {folder / 'token'}")


def _tell_page(folder: Path) -> None:
    url = address(folder, PAGE_S)
    typer.echo(f"tenbin: page at {url}" if url else "tenbin: the page is not ready yet")
    typer.echo(f"tenbin: each address works once; the next one is in {folder / FILE}")


def _told(machine: Machine) -> str:
    pools = ", ".join(f"{pool.units} x {pool.name}" for pool in machine.cluster.pools)
    caps_w, budget_w = machine.cluster.pools[0].caps_w, machine.cluster.budget_w
    if budget_w is None:
        return pools
    budget_w += machine.rest_w
    emulated = f" EMULATED ({machine.emulated})" if machine.emulated else ""
    return f"{pools} under caps of {caps_w[0]:g} to {caps_w[-1]:g} W, {budget_w:g} W together{emulated}"


def _profile(selector: str | None) -> Any:
    return None if selector is None else stored_profiles(None).load(selector)


def _go_into_background(folder: Path, *, page: bool) -> None:
    """Return in a process of its own; the first one waits until that answers, then ends.

    Args:
        page: it also waits for the address of the page, and prints it.

    Raises:
        typer.Exit: in the first process.
    """
    log = folder / "coordinator.log"
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir("/")  # the folder in which it was started can be unmounted, or removed
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor, opened in ((0, nothing), (1, written), (2, written)):
            os.dup2(opened, descriptor)
        return
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            last = (log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
            remark(last.removeprefix("tenbin: "))
            raise typer.Exit(os.waitstatus_to_exitcode(status) or 1)
        try:
            answer = client_of(folder).call("GET", "/status")
            if answer["pid"] == pid:
                typer.echo(f"tenbin: coordinator {pid} runs; its log: {log}")
                if answer["held"]:
                    remark(local(answer["held"]))
                if answer["url"]:
                    _tell_url(folder, answer["url"])
                if page:
                    _tell_page(folder)
                raise typer.Exit()
        except TenbinError:
            time.sleep(0.02)
    remark(f"the coordinator does not answer; see {log}")
    raise typer.Exit(1)
