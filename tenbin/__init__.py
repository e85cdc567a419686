"""The face: command line, reports, and the few names that a user program imports."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenbin.client import Client, Job
    from tenbin.errors import TenbinError

__all__ = ["Client", "Job", "TenbinError"]


def __getattr__(name: str) -> Any:
    """The names a user's program imports, loaded when they are used."""
    if name not in __all__:
        raise AttributeError(f"module 'tenbin' has no attribute {name!r}")
    from tenbin import client

    return getattr(client, name)
