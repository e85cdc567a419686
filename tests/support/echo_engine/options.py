"""The options of the echo engine."""

from __future__ import annotations

from scheduler.engines.registry import Asked, Option

OF = "the echo engine"
OPTIONS = (Option("echoes", int, "With --engine echo: so many nodes of one core.", default=2, least=1),)


def check(asked: Asked, *, profiled: bool) -> None:
    """Accept everything."""
