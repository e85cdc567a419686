"""Options of ``tenbin up`` that engines declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from scheduler.engines import registry
from scheduler.engines.options import Megabytes, Option, Seconds
from scheduler.jobs.quantities import duration_s, size_mb

IN_WORDS: dict[type, Callable[[str, Option], float]] = {
    Megabytes: lambda text, _: size_mb(text),
    Seconds: lambda text, option: duration_s(text, option.flag, least=option.least),
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

        found: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                continue
            if parameter.name == before:
                found += map(_parameter, registry.options(registry.DEFAULT))
            found.append(parameter)
            if parameter.name == before:
                others = [name for name in registry.ENGINES if name != registry.DEFAULT]
                found += [_parameter(option) for name in others for option in registry.options(name)]
        call.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
        return call

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    """Return the option as typer reads it."""
    kind: Any = str if option.kind in IN_WORDS else option.kind
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.least is not None and kind is not str:
        settings["min"] = option.least
    if kind is Path:
        settings["dir_okay"] = False
    names = [option.flag] if kind is bool else []  # without --no-...
    default = f"{option.default:g}s" if option.kind is Seconds else option.default
    optional: Any = kind if default is not None else kind | None
    annotation: Any = Annotated[optional, typer.Option(*names, **settings)]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
