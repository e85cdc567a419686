"""The options of the echo engine."""

from __future__ import annotations

from scheduler.engines.registry import Option, UpRequest

OF = "the echo engine"
OPTIONS = (Option("echoes", int, "With --engine echo: so many nodes of one core.", default=2, least=1),)


def check(asked: UpRequest, *, profiled: bool) -> None:
    """Accept everything."""
