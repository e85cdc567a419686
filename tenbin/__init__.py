"""The face: command line, reports, and the few names that a user program imports."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiles.models import Prediction
    from profiles.records import Coefficient, Model, Profile
    from tenbin.checkpoint import Checkpoint, CheckpointError
    from tenbin.client.client import Cancelled, Client, Job, UnknownField, as_completed, job, submit, wait
    from tenbin.client.executor import Executor, FunctionFuture, NoResult
    from tenbin.client.profiles import load_profile, load_samples, predict, simulate
    from tenbin.errors import TenbinError

__all__ = [
    "Cancelled",
    "Checkpoint",
    "CheckpointError",
    "Client",
    "Coefficient",
    "Executor",
    "FunctionFuture",
    "Job",
    "Model",
    "NoResult",
    "Prediction",
    "Profile",
    "TenbinError",
    "UnknownField",
    "as_completed",
    "job",
    "load_profile",
    "load_samples",
    "predict",
    "simulate",
    "submit",
    "wait",
]
_MODULES = {  # of what is not in ``client.client``
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint",
    "TenbinError": "errors",
    **dict.fromkeys(("Executor", "FunctionFuture", "NoResult"), "client.executor"),
    **dict.fromkeys(("Coefficient", "Model", "Prediction", "Profile"), "client.profiles"),
    **dict.fromkeys(("load_profile", "load_samples", "predict", "simulate"), "client.profiles"),
}


def __getattr__(name: str) -> Any:
    """Load a name of ``__all__`` when it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'tenbin' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tenbin.{_MODULES.get(name, 'client.client')}"), name)
