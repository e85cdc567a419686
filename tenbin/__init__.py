"""The face: command line, reports, and the few names that a user program imports."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiles.models import Prediction
    from profiles.records import Coefficient, Model, Profile
    from tenbin.checkpoint import Checkpoint, CheckpointError
    from tenbin.client.call_queue import FunctionFuture, NoResult
    from tenbin.client.client import Client, job, submit
    from tenbin.client.executor import Executor
    from tenbin.client.fields import UnknownField
    from tenbin.client.futures import Cancelled, Job, as_completed, wait
    from tenbin.client.profiles import load_profile, load_samples, predict
    from tenbin.client.simulation import simulate
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
_MODULES = {
    "Cancelled": "client.futures",
    "Checkpoint": "checkpoint",
    "CheckpointError": "checkpoint",
    "Executor": "client.executor",
    "FunctionFuture": "client.call_queue",
    "Job": "client.futures",
    "NoResult": "client.call_queue",
    "TenbinError": "errors",
    "UnknownField": "client.fields",
    "as_completed": "client.futures",
    "simulate": "client.simulation",
    **dict.fromkeys(
        ("Coefficient", "Model", "Prediction", "Profile", "load_profile", "load_samples", "predict"),
        "client.profiles",
    ),
    "wait": "client.futures",
}


def __getattr__(name: str) -> Any:
    """Load a name of ``__all__`` when it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'tenbin' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tenbin.{_MODULES.get(name, 'client.client')}"), name)
