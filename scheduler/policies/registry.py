"""The policies by name, and their outlines. A new policy is one new file in this folder, and one line here.

Or a file of a user's own, which is named in place of the policy.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import isabstract
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from profiles.errors import BadInput
from scheduler.model.parameters import fill, split, unknown

if TYPE_CHECKING:
    from scheduler.policies.base import Policy


@dataclass(frozen=True)
class PolicyEntry:
    """A policy of this registry, or of a file.

    Attributes:
        preset: the parameters that distinguish it from others of its class.
        offered: to those who start a coordinator: it is an answer of docs/which-policy.md. The others,
            most of them the papers' own, are for studies; ``tenbin up`` takes them by name.
    """

    module: str
    name: str
    summary: str
    preset: dict[str, str] = field(default_factory=dict)
    offered: bool = False

    def load(self) -> type[Policy]:
        """Import the class, only here because policies may need heavy libraries."""
        policy: type[Policy] = getattr(import_module(self.module), self.name)
        return policy

    def outline(self) -> Outline:
        """Describe it; only a policy of a user's file, which may be made in any way, is imported."""
        if self.module in sys.modules:
            return outline_of(self.load())
        return read_outline(self.module, self.name)


MCT = "scheduler.policies.mct.mct"
POLICIES = {
    "weigh": PolicyEntry(
        "scheduler.policies.weigh.weigh",
        "Weigh",
        "each job where it ends first, when what it takes from others is paid for",
        offered=True,
    ),
    "easy": PolicyEntry(
        "scheduler.policies.backfill.easy",
        "Easy",
        "fcfs, and jobs that do not delay the first one may pass",
        offered=True,
    ),
    "conservative": PolicyEntry(
        "scheduler.policies.backfill.conservative",
        "Conservative",
        "a job may pass if it delays no earlier one",
        offered=True,
    ),
    "soft-regions": PolicyEntry(
        "scheduler.policies.regions.soft_regions",
        "SoftRegions",
        "regions that lend idle units, with a latest start for every job",
        offered=True,
    ),
    "fcfs": PolicyEntry("scheduler.policies.backfill.fcfs", "Fcfs", "first come, first served", offered=True),
    "first-fit": PolicyEntry(
        "scheduler.policies.backfill.first_fit", "FirstFit", "whoever fits starts", offered=True
    ),
    "las-mq": PolicyEntry(
        "scheduler.policies.las.las",
        "Las",
        "least attained service by levels: short jobs soon, although nobody knows run times",
        {"load_limit": "inf", "thorough": "true", "probe": "8", "factor": "2"},
        offered=True,
    ),
    "las-drf": PolicyEntry(
        "scheduler.policies.las.las",
        "Las",
        "las-mq that is fair between users: who has least of the machine sends first",
        {"thorough": "true", "probe": "8", "factor": "2", "fair": "true"},
        offered=True,
    ),
    "match": PolicyEntry(
        "scheduler.policies.sharing.match",
        "Match",
        "jobs share nodes where the least slow-down is predicted",
        offered=True,
    ),
    "parm": PolicyEntry(
        "scheduler.policies.power.parm",
        "Parm",
        "units and power caps of all jobs chosen at once, exactly",
        offered=True,
    ),
    "regions": PolicyEntry(
        "scheduler.policies.regions.regions", "Regions", "the machine cut into regions by the size of jobs"
    ),
    "las": PolicyEntry("scheduler.policies.las.las", "Las", "least attained service on several resources"),
    "las-prompt": PolicyEntry(
        "scheduler.policies.las.las",
        "Las",
        "las in which no new task waits long, however large it or the overload is",
        {"load_limit": "inf", "thorough": "true", "probe": "8"},
    ),
    "kairos": PolicyEntry(
        "scheduler.policies.las.kairos", "Kairos", "least attained service; tasks counted, not resources"
    ),
    "met": PolicyEntry(MCT, "Mct", "each job on the class where it runs fastest", {"fastest": "true"}),
    "mct": PolicyEntry(MCT, "Mct", "each job on the class where it ends first, in order on each class"),
    "mctb": PolicyEntry(
        MCT, "Mct", "mct, and jobs fill holes before the ends of the queues", {"backfill": "true"}
    ),
    "mctm": PolicyEntry(
        MCT, "Mct", "mct, and jobs start on a worse class until the better one is free", {"migrate": "true"}
    ),
    "mctbm": PolicyEntry(
        MCT,
        "Mct",
        "mct, and jobs run in parts wherever units are free",
        {"backfill": "true", "migrate": "true"},
    ),
    "mctbm-priced": PolicyEntry(
        MCT,
        "Mct",
        "mctbm, and each plan pays for what it takes from others while there is a queue",
        {"backfill": "true", "migrate": "true", "priced": "true"},
    ),
    "exclusive": PolicyEntry(
        "scheduler.policies.sharing.exclusive",
        "Exclusive",
        "whole nodes for each job, first come, first served",
    ),
    "pair": PolicyEntry(
        "scheduler.policies.sharing.pair",
        "Pair",
        "two jobs on the same nodes, chosen by their effect on a probe",
    ),
    "fifo-min": PolicyEntry(
        "scheduler.policies.power.fifo_cap",
        "FifoCap",
        "fcfs, each job on its fewest units at the lowest power cap",
        {"level": "min"},
    ),
    "fifo-mid": PolicyEntry(
        "scheduler.policies.power.fifo_cap",
        "FifoCap",
        "fcfs, each job on half its units at a middle power cap",
        {"level": "mid"},
    ),
    "fifo-max": PolicyEntry(
        "scheduler.policies.power.fifo_cap",
        "FifoCap",
        "fcfs, each job on all units it can use at the highest useful power cap",
        {"level": "max"},
    ),
    "parm-ga": PolicyEntry(
        "scheduler.policies.power.parm_ga", "ParmGa", "parm by the paper's genetic algorithm (needs DEAP)"
    ),
    "gavel": PolicyEntry(
        "scheduler.policies.rounds.gavel",
        "Gavel",
        "turns in rounds, so that the least share of the classes is greatest",
    ),
    "sia": PolicyEntry(
        "scheduler.policies.rounds.sia",
        "Sia",
        "class and size of all jobs chosen anew each minute, restarts made dearer",
    ),
}
OFFERED = [name for name, entry in POLICIES.items() if entry.offered]
DEFAULT, FORMER_DEFAULT = "weigh", "easy"


def entry_of(name: str) -> PolicyEntry:
    """Return the policy of that name, or the one in a file (``./mine.py``).

    Raises:
        BadInput: there is no such policy, or not one in the file.
    """
    if name.endswith(".py"):
        return _entry_of_file(str(Path(name).absolute()))
    if name not in POLICIES:
        raise unknown("policy", name, POLICIES, f"{', '.join(OFFERED)}; all: tenbin policies")
    return POLICIES[name]


@cache
def _entry_of_file(path: str) -> PolicyEntry:
    """Import a file, once: its module has the path for a name."""
    from scheduler.policies.base import Policy  # late, because a list of policies needs none of it

    if not Path(path).is_file():
        raise BadInput(f"policy {path}: no such file", "see: tenbin policies")
    spec = spec_from_file_location(path, path)
    assert spec is not None and spec.loader is not None  # because the name ends in .py
    module = sys.modules[path] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever its author has written
        del sys.modules[path]
        raise BadInput(
            f"policy {path}: {type(error).__name__}: {error}", "see docs/write-a-policy.md"
        ) from error
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == path]
    names = [kind.__name__ for kind in kinds if issubclass(kind, Policy) and not isabstract(kind)]
    if len(names) != 1:
        what = f"policy {path}: it defines {' and '.join(names) or 'no policy'}"
        raise BadInput(what, "one subclass of Policy with decide, see docs/write-a-policy.md")
    summary = (getattr(module, names[0]).__doc__ or module.__doc__ or path).strip().splitlines()[0]
    return PolicyEntry(path, names[0], summary.rstrip("."))


def fault_in_file(text: str, error: BaseException) -> BadInput | None:
    """Say where the file of this policy raised an error; None: the error is not of such a file."""
    from scheduler.policies.base import NoAnswer  # late, as above

    name = text.partition(",")[0]
    path = str(Path(name).absolute())
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == path]
    if not name.endswith(".py"):
        return None
    if isinstance(error, NoAnswer) and error.module == path:
        what = f"policy {name}: {error}"
    elif lines:
        what = f"policy {name}: {type(error).__name__}: {error} ({Path(name).name}, line {lines[-1]})"
    else:
        return None
    return BadInput(what, "mend the file, see docs/write-a-policy.md")


def of_any_folder(text: str) -> str:
    """Write the path of a policy's file as an absolute one."""
    name, comma, parameters = text.partition(",")
    return f"{Path(name).absolute()}{comma}{parameters}" if name.endswith(".py") else text


def policy_class(text: str) -> type[Policy]:
    """Return the class of the policy that ``"name"`` or ``"name,k=v"`` describes.

    Raises:
        BadInput: there is no such policy.
    """
    return entry_of(text.partition(",")[0]).load()


def create(text: str, seed: int = 0) -> Policy:
    """Make the policy that ``"name"`` or ``"name,k=v,k=v"`` describes.

    Raises:
        BadInput: no such policy or parameter, or a value of the wrong type; near misses are named.
    """
    kind = policy_class(text)
    name, given = split(text)
    entry = entry_of(name)
    return kind(fill(kind.Parameters, {**entry.preset, **given}, f"policy {name}"), seed)


def several(text: str) -> list[str]:
    """Split ``"fcfs,las,victims=2"``: a name begins a policy, all else belongs to the one before."""
    texts: list[str] = []
    for part in text.split(","):
        if not texts or part.strip() in POLICIES or part.strip().endswith(".py"):
            texts.append(part.strip())
        else:
            texts[-1] += f",{part}"
    return texts


# -- outlines of policies, read from their sources, because to import all of them takes long ---------------

# What takes long to parse and tells nothing: functions; of a class all that follows its first one.
FUNCTIONS = re.compile(r"^(|    )(?:def |@).*\n(?:(?![A-Za-z_]).*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Outline:
    """A policy as its source describes it.

    Attributes:
        algorithm: the docstring of its module; of a module without one, that of its class.
        about_parameters: the docstring of its parameters. defaults: their values, in their order.
    """

    algorithm: str
    about_parameters: str
    defaults: dict[str, Any]
    suits: frozenset[str]
    promises: frozenset[str]


def outline_of(kind: type[Policy]) -> Outline:
    """Describe a policy that is imported."""
    parameters = kind.Parameters
    return Outline(
        algorithm=sys.modules[kind.__module__].__doc__ or kind.__doc__ or "",
        about_parameters=parameters.__doc__ or "",
        defaults={field.name: field.default for field in fields(parameters)},
        suits=kind.suits,
        promises=kind.promises,
    )


def read_outline(module: str, name: str) -> Outline:
    """Describe the policy of that name in a module, without an import of it."""
    policy = _Source.of(module).definition(name)
    parameters = policy.attribute("Parameters")
    assert isinstance(parameters, _Class)
    return Outline(
        algorithm=ast.get_docstring(policy.source.tree, clean=False) or policy.doc,
        about_parameters=parameters.doc,
        defaults=dict(parameters.fields()),
        suits=policy.attribute("suits"),
        promises=policy.attribute("promises"),
    )


class _Source:
    """A module's names, each with what it stands for; its value is computed when it is asked for."""

    def __init__(self, module: str) -> None:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        self.tree = ast.parse(FUNCTIONS.sub(r"\1...\n", Path(spec.origin).read_text()))
        self._nodes: dict[str, ast.expr | ast.ClassDef | tuple[str, str]] = {}
        for node in self.tree.body:
            match node:
                case ast.ClassDef(name=name):
                    self._nodes[name] = node
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._nodes[name] = value
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                    pairs = zip(names, values, strict=True)
                    self._nodes |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
                case ast.ImportFrom(module=str(other), names=aliases):
                    self._nodes |= {alias.asname or alias.name: (other, alias.name) for alias in aliases}

    @staticmethod
    @cache
    def of(module: str) -> _Source:
        return _Source(module)

    def __getitem__(self, name: str) -> Any:
        node = self._nodes[name]
        if isinstance(node, tuple):
            return _Source.of(node[0])[node[1]]
        return _Class(self, node) if isinstance(node, ast.ClassDef) else self.value(node)

    def definition(self, name: str) -> _Class:
        definition = self[name]
        assert isinstance(definition, _Class)
        return definition

    def value(self, node: ast.expr) -> Any:
        """Compute an expression in which names of the module may occur."""
        return eval(compile(ast.Expression(node), "", "eval"), {}, self)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Class:
    """A class of a source."""

    source: _Source
    node: ast.ClassDef

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node, clean=False) or ""

    @property
    def bases(self) -> list[_Class]:
        return [self.source.definition(base.id) for base in self.node.bases if isinstance(base, ast.Name)]

    def attribute(self, name: str) -> Any:
        """Compute an attribute of the class, or of the first base that has it."""
        own = dict(self._assigned())
        return self.source.value(own[name]) if name in own else self.bases[0].attribute(name)

    def fields(self) -> Iterator[tuple[str, Any]]:
        """Name the fields of a dataclass with their defaults, those of its bases first."""
        for base in self.bases:
            yield from base.fields()
        for name, value in self._assigned():
            yield name, self.source.value(value)

    def _assigned(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self.node.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    yield name, value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    yield name, value
