"""Options that several commands share, what the shell completes, files that users name, progress."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from profiles.errors import BadInput, Unavailable
from profiles.quantities import duration
from tenbin.errors import TenbinError
from tenbin.text import remark

if TYPE_CHECKING:
    from profiles.files.store import Store
    from tenbin.client.client import Client


R = TypeVar("R")
PICTURES = {".jpg", ".pdf", ".png", ".svg"}  # names of which no page is written


def names_in(place: str) -> Callable[[str], list[str]]:
    """Complete the names in a registry (``module:NAME``), which is imported when the shell asks."""

    def complete(incomplete: str) -> list[str]:
        module, _, registry = place.partition(":")
        return [name for name in getattr(import_module(module), registry) if name.startswith(incomplete)]

    return complete


complete_machine = names_in("agent.emulation.machines:MACHINES")
complete_policy = names_in("scheduler.policies.registry:POLICIES")
complete_offered_policy = names_in("scheduler.policies.registry:OFFERED")


def complete_job_profile(incomplete: str) -> list[str]:
    """Names of the stored job profiles."""
    from profiles.files.store import JobStore

    return [name for name in JobStore().names() if name.startswith(incomplete)]


def complete_selector(incomplete: str) -> list[str]:
    """Profiles that a selector may name."""
    from profiles.files.store import Store, label

    paths = Store().paths()
    labels = filter(None, map(label, paths))
    nodes = dict.fromkeys(path.parent.parent.name for path in paths)
    names = ["last", "previous", *nodes, *labels, *(path.parent.name for path in paths)]
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def _ask(path: str, field: str) -> list[str]:
    """Ask the coordinator for names to complete; empty if it does not answer."""
    try:
        return [str(row[field]) for row in client_of(None).call("GET", path, timeout_s=1.0)]
    except TenbinError:
        return []


def complete_job(incomplete: str) -> list[str]:
    """Complete jobs that have not ended, and the selectors."""
    names = "last", "all", *_ask("/jobs?members=false&limit=1000", "id")
    return [name for name in names if name.startswith(incomplete)]


def complete_place(incomplete: str) -> list[str]:
    """Complete devices and nodes of the coordinator."""
    return [name for name in _ask("/nodes", "name") if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Complete devices of the coordinator, and words for several of them."""
    words = [name for name in ("any", "gpu", "cpu") if name.startswith(incomplete)]
    return words + complete_place(incomplete)


StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the stored profiles.", envvar="TENBIN_STORE", show_default=False),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(  # no envvar: where TENBIN_URL is set as well, that one counts
        "--home",
        help="The coordinator's folder. (default: $TENBIN_HOME, else ~/.local/state/tenbin/coordinator)",
        show_default=False,
        file_okay=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
ClusterOption = Annotated[
    bool, typer.Option("--cluster", help="PROFILE names a cluster; 'last': the one measured last.")
]
Selector = Annotated[
    str,
    typer.Argument(
        help="Which profile: 'last', 'previous', a node's name, an id, a label, or a path to a profile.json.",
        autocompletion=complete_selector,
        metavar="PROFILE",
    ),
]


# -- help --------------------------------------------------------------------------------------------------


def flags_alone(parameters: list[Any]) -> list[Any]:
    """Show no ``<bool>`` beside flags."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


OLD_OPTIONS = {"--state": "--stage"}  # still understood


class Command(TyperCommand):
    """A command whose help shows flags alone."""

    def make_parser(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        parser = super().make_parser(ctx)
        options = parser._long_opt
        options |= {old: options[new] for old, new in OLD_OPTIONS.items() if new in options}
        return parser

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        return flags_alone(super().get_params(ctx))


def option_parameter(
    name: str, kind: Any, default: Any, *spelling: str, **settings: Any
) -> inspect.Parameter:
    """Make the parameter of an option, as typer reads it; one without a default may be None."""
    annotation = Annotated[kind if default is not None else kind | None, typer.Option(*spelling, **settings)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def given(context: Any) -> set[str]:
    """Return the parameters that stand on the command line or in a ``#TENBIN`` line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def with_parameters(
    command: Callable[..., Any],
    at: str,
    *,
    before: Iterable[inspect.Parameter] = (),
    after: Iterable[inspect.Parameter] = (),
) -> inspect.Signature:
    """Return the signature of a command with more parameters beside ``at``, in place of its ``**``."""
    own = inspect.signature(command, eval_str=True)
    kept = [given for given in own.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD]
    place = [given.name for given in kept].index(at)
    return own.replace(parameters=[*kept[:place], *before, kept[place], *after, *kept[place + 1 :]])


# -- the coordinator, and what is stored --------------------------------------------------------------------


def stored_profiles(store: Path | None) -> Store:
    """Return the store of profiles in a folder; None: in the default one."""
    from profiles.files.store import Store

    if store is not None and store.exists() and not store.is_dir():
        raise BadInput(f"--store {store} is no folder", "name one")
    return Store(store)


def loaded(paths: Iterable[Path], load: Callable[[Path], R]) -> tuple[list[tuple[Path, R]], list[str]]:
    """Load records; return them with their paths, and a sentence on each that is damaged."""
    records, damaged = [], []
    for path in paths:
        try:
            records.append((path, load(path)))
        except BadInput as error:
            damaged.append(str(error))
    return records, damaged


def end_after(damaged: Sequence[str], *, said: bool) -> None:
    """Name the damaged records, unless it is ``said`` already; the exit code tells of them."""
    for sentence in () if said else damaged:
        remark(sentence)
    if damaged:
        raise typer.Exit(BadInput.exit_code)


def client_of(home: Path | None) -> Client:
    """Return the client of the coordinator in a folder; None: of this user's."""
    from tenbin.client.client import Client

    return Client(home)


def coordinator_folder(home: Path | None) -> Path:
    """Return the absolute folder of a coordinator; None: of this user's."""
    from tenbin.client.connection import default_home

    return (home or default_home()).absolute()


# -- files and folders that users name ---------------------------------------------------------------------


WRITABLE = "choose a file in a folder you may write"


@contextmanager
def named(what: str, remedy: str) -> Iterator[None]:
    """Say of what there was an error, where a file or folder that the user named has one."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{what}: {error.strerror}", remedy) from error


def storage_folder(folder: Path) -> Path:
    """Resolve links in a ``--storage`` folder; a folder that does not answer is reported by its reader."""
    from probes.folders import inspect_folder

    try:
        seen = inspect_folder(folder)
    except Unavailable:
        return folder.absolute()
    if not seen.is_folder:
        raise BadInput(f"--storage {folder}: not a folder", f"mkdir -p {folder}")
    return Path(seen.there)


def ensure_writable(option: str, file: Path) -> None:
    """See that ``file`` could be written, before the work whose result is to go there.

    Raises:
        BadInput: it could not; names ``option``.
    """
    from tempfile import TemporaryFile

    from profiles.files.safe_files import is_special

    if not file.parent.is_dir():
        raise BadInput(f"{option} {file}: its folder does not exist", f"mkdir {file.parent}")
    with named(f"{option} {file}", WRITABLE):
        if file.is_dir():
            raise IsADirectoryError(None, "is a folder")
        if is_special(file):
            return
        with TemporaryFile(dir=file.parent):
            pass


def ensure_page(option: str, file: Path) -> None:
    """See that a page could be written to ``file``, whose name says nothing else.

    Raises:
        BadInput: it could not, or it has the name of a picture; names ``option``.
    """
    if file.suffix.lower() in PICTURES:
        raise BadInput(f"{option} {file}: it will be an HTML page", f"name it {file.with_suffix('.html')}")
    ensure_writable(option, file)


def write_output(option: str, file: Path, text: str) -> None:
    """Write a whole file, or leave it as it was."""
    from profiles.files.safe_files import write_chosen

    with named(f"{option} {file}", WRITABLE):
        write_chosen(file, text)


def read_input(said: str, file: Path | None, largest: int, *, remedy: str, too_large: str) -> bytes:
    """Read a file, or standard input, but no more than ``largest`` bytes.

    Args:
        said: its name in messages. remedy, too_large: what to do if it cannot be read, or is larger.

    Raises:
        BadInput: it cannot be read, or is larger.
    """
    with named(said, remedy), file.open("rb") if file else nullcontext(sys.stdin.buffer) as opened:
        content = opened.read(largest + 1)
    if len(content) > largest:
        raise BadInput(f"{said} has more than {largest >> 20} MiB", too_large)
    return content


# -- progress of measurements, and their end by a signal ---------------------------------------------------


def restore_leftovers(*, tell: bool = True) -> list[str]:
    """Put back what a crash has left changed (power caps), and say so."""
    from agent import journal
    from profiles.files.safe_files import state_dir

    restored = list(map(str, journal.restore_leftovers(state_dir() / "journal")))
    for line in restored if tell else ():
        remark(f"left changed by a crash, now {line}")
    return restored


@contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """Handle signals so in the block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end a profile as Ctrl-C does: kept, restored, tidy.

    SIGINT is set too, because a shell starts background jobs with it ignored.
    """
    with handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.default_int_handler)):
        yield


@contextmanager
def progress(of: str = "") -> Iterator[Callable[[Any], None]]:
    """Show progress on standard error: a bar on a terminal, a line for each step elsewhere.

    Of what it is told: ``doing``, ``fraction`` and ``left_s``.
    """
    if not sys.stderr.isatty():

        def tell(now: Any) -> None:
            left = f" ({duration(now.left_s)} left)" if now.left_s else ""
            remark(f"{of}{now.doing}{left}")

        yield tell
        return

    from rich.progress import BarColumn, Progress, TextColumn

    from tenbin.terminal import SafeConsole

    columns = (
        BarColumn(bar_width=28),
        TextColumn("{task.fields[left]:>9} left"),
        TextColumn("[dim]{task.description}[/dim]", markup=True),
    )
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as bars:
        task = bars.add_task(f"{of}starting", total=1.0, left="")

        def show_bar(now: Any) -> None:
            left = duration(now.left_s) if now.left_s else "?"
            bars.update(task, description=f"{of}{now.doing}", completed=now.fraction, left=left)

        yield show_bar
