"""Stored profiles in users' programs: what was measured, predictions from it, and raw samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenbin.errors import TenbinError

if TYPE_CHECKING:
    import pandas as pd

    from profiles.models import Prediction
    from profiles.records import Model, Profile


def load_profile(selector: str = "last", store: Path | str | None = None) -> Profile:
    """Read the stored profile that ``selector`` names.

    Args:
        selector: ``"last"``, a node's name, a profile's id, or a path to a profile.json.
        store: folder of the stored profiles; None: ``$TENBIN_STORE``, or the default one.

    Raises:
        TenbinError: nothing matches, or the file is damaged.
    """
    with _told():
        found: Profile = _store(store).load(selector)
    return found


def load_samples(selector: str = "last", store: Path | str | None = None) -> dict[str, pd.DataFrame]:
    """Read the raw samples of a stored profile, one table a probe; empty if it travels without them.

    Raises:
        TenbinError: nothing matches, or a file is damaged.
    """
    with _told():
        found: dict[str, pd.DataFrame] = _own("files.store").samples(_store(store).find(selector))
    return found


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict one new observation at ``x`` (in the unit of ``model.x``): value, low and high (95 %)."""
    found: Prediction = _own("models").predict(model, x)
    return found


def __getattr__(name: str) -> Any:
    """Load the types that annotations need when they are used."""
    if name == "Prediction":
        return _own("models").Prediction
    if name in ("Coefficient", "Model", "Profile"):
        return getattr(_own("records"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _own(name: str) -> Any:
    return import_module(f"tenbin._profiles.{name}")


def _store(store: Path | str | None) -> Any:
    return _own("files.store").Store(None if store is None else Path(store))


@contextmanager
def _told() -> Iterator[None]:
    """Raise the store's errors as those that users' programs know."""
    try:
        yield
    except _own("errors").UserError as error:
        raise TenbinError(str(error), error.exit_code) from None
