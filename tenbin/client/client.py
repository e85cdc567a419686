"""A light client of the coordinator, for programs: ``import tenbin``; only the standard library.

job = tenbin.submit(["./simulate", "--steps", "1000"], cores=4, time_s=600)
job.result()
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from tenbin.client.connection import Connection
from tenbin.client.fields import check_fields, words_of
from tenbin.client.futures import Job
from tenbin.fields import JobFields


class Client(Connection):
    """Submits jobs to one coordinator. Threads may share a client; for the arguments see ``Connection``."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        pass

    def submit(self, command: Sequence[str | os.PathLike[str]], **needs: Unpack[JobFields]) -> Job:
        """Submit one job; ``needs`` are its fields (tasks, cores, time_s, after, ...: docs/job-files.md).

        Raises:
            NoCommand: the command is no list of words.
            UnknownField: there is no such field.
            TenbinError: the coordinator does not answer, or refuses the job.
        """
        check_fields(needs, "submit")
        needs.setdefault("folder", str(Path.cwd()))
        return self.submit_all([{"command": command, **needs}])[0]

    def submit_all(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        waits_for: Mapping[int, Sequence[int] | Mapping[str, Sequence[int]]] | None = None,
        arrays: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Job]:
        """Submit jobs, all or none; the jobs of ``hand_over``."""
        answer = self.hand_over(specs, environment, waits_for=waits_for, arrays=arrays)
        return [Job(self, job_id) for job_id in answer["ids"]]

    def hand_over(
        self,
        specs: Sequence[dict[str, Any]],
        environment: dict[str, str] | None = None,
        *,
        waits_for: Mapping[int, Sequence[int] | Mapping[str, Sequence[int]]] | None = None,
        arrays: Mapping[int, Sequence[int]] | None = None,
        script: bytes | None = None,
    ) -> dict[str, list[int]]:
        """Submit jobs, all or none; return their numbers (``ids``), and those of the ``arrays`` among them.

        Raises:
            NoCommand: a command is no list of words.

        Args:
            specs: each a JobSpec of the API. environment: of all of them; None: this process's.
            waits_for: which of the specs wait for which others of them, by their places from 0 on: a list
                (``after``), or lists by kind, ``{"after_any": [0]}``.
            arrays: the indices of each spec that is an array, by its place.
            script: content of the script that each runs; its name stands first in each command.
        """
        body: dict[str, Any] = {
            "specs": [{**spec, "command": words_of(spec.get("command"))} for spec in specs],
            "environment": dict(os.environ) if environment is None else environment,
            "waits_for": dict(waits_for or {}),
            "arrays": {place: list(indices) for place, indices in (arrays or {}).items()},
        }
        if script is not None:
            body["script"] = base64.b64encode(script).decode()
        answer: dict[str, list[int]] = self.call("POST", "/jobs", body)
        return answer

    def job(self, job_id: int) -> Job:
        """Return a job by its number."""
        return Job(self, job_id)

    def output(self, job_id: int, stream: str = "stdout", start: int = 0) -> bytes:
        """Read a job's stdout or stderr, from a byte on; at most 4 MiB at once."""
        found: bytes = self.call("GET", f"/jobs/{job_id}/{stream}?start={start}")
        return found


def submit(command: Sequence[str | os.PathLike[str]], **needs: Unpack[JobFields]) -> Job:
    """Submit one job to the coordinator of this user; as ``Client.submit``."""
    return Client().submit(command, **needs)


def job(job_id: int) -> Job:
    """Return a job of this user's coordinator by its number."""
    return Client().job(job_id)
