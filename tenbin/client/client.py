"""A light client of the coordinator, for programs: ``import tenbin``; only the standard library.

job = tenbin.submit(["./simulate", "--steps", "1000"], cores=4, time_s=600)
job.result()
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tenbin.client.connection import Connection
from tenbin.client.futures import Job


class Client(Connection):
    """Submits jobs to one coordinator. Threads may share a client; for the arguments see ``Connection``."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def submit(self, command: Sequence[str], **needs: Any) -> Job:
        """Submit one job; ``needs`` are fields of the API's JobSpec (tasks, cores, time_s, after, ...)."""
        needs.setdefault("folder", str(Path.cwd()))
        return self.submit_all([{"command": list(command), **needs}])[0]

    def submit_all(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        waits_for: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Job]:
        """Submit jobs, all or none.

        Args:
            specs: each a JobSpec of the API. environment: of all of them; None: this process's.
            waits_for: which of them wait for which others of them, by their places from 0 on.
        """
        variables = dict(os.environ) if environment is None else environment
        whole, arrays = _arrays(specs)
        body = {
            "specs": whole,
            "environment": variables,
            "waits_for": dict(waits_for or {}),
            "arrays": arrays,
        }
        answer = self.call("POST", "/jobs", body)
        return [Job(self, job_id) for job_id in answer["ids"]]

    def job(self, job_id: int) -> Job:
        """Return a job by its number."""
        return Job(self, job_id)

    def output(self, job_id: int, stream: str = "stdout", start: int = 0) -> bytes:
        """Read a job's stdout or stderr, from a byte on; at most 4 MiB at once."""
        found: bytes = self.call("GET", f"/jobs/{job_id}/{stream}?start={start}")
        return found


def submit(command: Sequence[str], **needs: Any) -> Job:
    """Submit one job to the coordinator of this user; as ``Client.submit``."""
    return Client().submit(command, **needs)


def job(job_id: int) -> Job:
    """Return a job of this user's coordinator by its number."""
    return Client().job(job_id)


def _arrays(specs: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
    """Join neighbouring specs that differ only in ``array_index``; return them, and the indices by place."""
    whole: list[dict[str, Any]] = []
    arrays: dict[int, list[int]] = {}
    for spec in specs:
        index = spec.get("array_index")
        if index is None:
            whole.append(spec)
            continue
        common = {name: value for name, value in spec.items() if name != "array_index"}
        if len(whole) - 1 not in arrays or whole[-1] != common:
            whole.append(common)
        arrays.setdefault(len(whole) - 1, []).append(index)
    return whole, arrays
