"""joblib's ``Parallel`` by jobs of tenbin; joblib is not installed with tenbin.

tenbin.client.joblib.register()
with joblib.parallel_config(backend="tenbin", n_jobs=8, time_s=600):
    joblib.Parallel()(joblib.delayed(f)(n) for n in range(100))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from tenbin.client.client import Client
from tenbin.client.executor import Executor, FunctionFuture


def register() -> None:
    """Let joblib know the backend ``tenbin``."""
    register_parallel_backend("tenbin", TenbinBackend)


class TenbinBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """joblib's calls, in batches, as jobs; further arguments are those of ``Executor``."""

    supports_retrieve_callback = True

    def __init__(self, nesting_level: int | None = None, **arguments: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._arguments = arguments
        self._executor: Executor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches are under way at once; -1: as many as the coordinator has cores."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs > 0:
            return n_jobs or 1
        client = self._arguments.get("client") or Client(self._arguments.get("home"))
        nodes = client.call("GET", "/status")["nodes"]
        cores = sum(node.get("units") or node.get("capacity", {}).get("cores", 1) for node in nodes)
        return max(int(cores) + 1 + n_jobs, 1)

    def configure(self, n_jobs: int | None = 1, parallel: object = None, **_joblib_options: Any) -> int:
        """Start the executor; return how many batches are under way at once."""
        self.parallel = parallel
        self._executor = Executor(**self._arguments)
        return self.effective_n_jobs(n_jobs)

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], object] | None = None
    ) -> FunctionFuture[Any]:
        """Submit a batch."""
        assert self._executor is not None  # joblib configures first
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: FunctionFuture[Any]) -> Any:
        """Return the results of a batch that has ended."""
        return out.result()

    def terminate(self) -> None:
        """End the executor."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End all jobs, because a call has failed."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = Executor(**self._arguments) if ensure_ready else None
