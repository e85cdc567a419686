"""Outlines of policies, read from their sources, because to import all of them takes long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from sys import modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.policies.base import Policy

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


def of_class(kind: type[Policy]) -> Outline:
    """Describe a policy that is imported."""
    parameters = kind.Parameters
    return Outline(
        algorithm=modules[kind.__module__].__doc__ or kind.__doc__ or "",
        about_parameters=parameters.__doc__ or "",
        defaults={field.name: field.default for field in fields(parameters)},
        suits=kind.suits,
        promises=kind.promises,
    )


def read(module: str, name: str) -> Outline:
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
