"""Substitutes for ``signal``, ``json`` and ``contextlib`` that import no other module.

A job's command waits for every module that is imported before it starts, on a shared disk a millisecond for
each file. The C modules below the standard library are always loaded.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    try:
        import _signal as signal
    except ImportError:  # another Python than CPython
        import signal

__all__ = ["parse", "signal", "suppress"]


class suppress:  # noqa: N801 (as in contextlib)
    """Ignores these errors, as ``contextlib.suppress``."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


class _As:
    """The options of ``json.loads``."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


try:
    from _json import make_scanner

    _scan: Any = make_scanner(_As)  # type: ignore[arg-type]
except ImportError:
    _scan = None


def parse(text: str) -> Any:
    """Parse JSON that begins with its value; ValueError if it is not JSON."""
    if _scan is None:
        from json import loads

        return loads(text)
    try:
        return _scan(text, 0)[0]
    except StopIteration:
        raise ValueError("no JSON") from None
