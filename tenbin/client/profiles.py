"""Functions for users' programs without a coordinator: stored profiles, predictions, simulations."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
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
    """Read the stored profile that ``selector`` names; with a warning if the last one is not a whole one.

    Args:
        selector: ``"last"``, a node's name, a profile's id, or a path to a profile.json.
        store: folder of the stored profiles; None: ``$TENBIN_STORE``, or the default one.

    Raises:
        TenbinError: nothing matches, or the file is damaged.
    """
    with _errors_for_programs():
        profile: Profile = _store(store).load(selector)
    if selector == "last" and profile.partly:
        warnings.warn(f"the last profile, {profile.node} {profile.id}, is {profile.partly}", stacklevel=2)
    return profile


def load_samples(selector: str = "last", store: Path | str | None = None) -> dict[str, pd.DataFrame]:
    """Read the raw samples of a stored profile, one table a probe; empty if it travels without them.

    Raises:
        TenbinError: nothing matches, or a file is damaged.
    """
    with _errors_for_programs():
        tables: dict[str, pd.DataFrame] = _own("files.store").samples(_store(store).find(selector))
    return tables


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict one new observation at ``x`` (in the unit of ``model.x``): value, low and high (95 %).

    A time is never below 0.

    Raises:
        TenbinError: ``x`` is below 0, or no number.
    """
    if not 0 <= x < math.inf:
        raise TenbinError(f"predict: x is {x}; give a number from 0 on", 2)
    prediction: Prediction = _own("models").predict(model, x)
    if model.quantity.endswith("_s"):
        prediction = prediction._replace(value=max(prediction.value, 0.0), low=max(prediction.low, 0.0))
    return prediction


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
def _errors_for_programs() -> Iterator[None]:
    """Raise the store's errors as those that users' programs know."""
    try:
        yield
    except _own("errors").UserError as error:
        raise TenbinError(str(error), error.exit_code) from None


# -- ``tenbin simulate`` in a process of its own -----------------------------------------------------------


# A program may have modules named like tenbin's packages: these come first in the other process.
START = (
    "import sys; sys.path[:0], sys.argv[:2] = sys.argv[1:2], ['tenbin']; from tenbin.cli import main; main()"
)


def simulate(
    policies: str | Sequence[str],
    workload: str,
    cluster: str,
    *,
    profiles: Sequence[str] = (),
    store: Path | str | None = None,
    seed: int = 0,
    limit: int | None = None,
    without_estimate: str = "unknown",
    warm_up: str | None = None,
    cool_down: str | None = None,
) -> list[dict[str, Any]]:
    """Simulate policies on the same jobs; the metrics of each, with units in their names.

    Of several policies, one that cannot schedule the cluster is left out with a warning.

    Args:
        policies, workload, cluster, profiles, store, seed, limit, without_estimate, warm_up, cool_down: as
            the options of ``tenbin simulate``.

    Raises:
        TenbinError: one of them makes no sense.
    """
    chosen = [policies] if isinstance(policies, str) else policies
    given = [*(f"--policy={text}" for text in chosen), *(f"--profile={text}" for text in profiles)]
    given += [f"--workload={workload}", f"--cluster={cluster}", f"--seed={seed}"]
    given += [f"--without-estimate={without_estimate}", "--json"]
    given += [] if limit is None else [f"--limit={limit}"]
    given += [] if warm_up is None else [f"--warm-up={warm_up}"]
    given += [] if cool_down is None else [f"--cool-down={cool_down}"]
    given += [] if store is None else [f"--store={store}"]
    command = [sys.executable, "-P", "-c", START, str(Path(__file__).parents[2]), "simulate", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TenbinError(done.stderr.strip().removeprefix("tenbin: "), done.returncode)
    printed = json.loads(done.stdout)
    for name, reason in printed["unsuitable"].items():
        warnings.warn(f"policy {name} is left out: {reason}", stacklevel=2)
    results: list[dict[str, Any]] = printed["results"]
    return results
