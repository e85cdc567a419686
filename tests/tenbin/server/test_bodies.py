"""Bodies of requests that would keep a coordinator from everything else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import HTTPException
from pydantic import BaseModel, ValidationError

from scheduler.jobs.specs import JobSpec
from tenbin.server.api import MOST_WAITS, Submission
from tenbin.server.bodies import (
    MOST_BODY,
    MOST_IDS,
    MOST_SUBMITTED,
    BodyLimit,
    Change,
    Move,
    NewPriority,
    Selectors,
    Wait,
)

SPEC = {"command": ["true"], "folder": "/"}


@pytest.mark.parametrize(
    ("body", "field", "rest"),
    [
        (Wait, "ids", {}),
        (Change, "ids", {}),
        (Change, "where_possible", {}),
        (Move, "where_possible", {"to": "n1"}),
        (NewPriority, "ids", {"priority": 1}),
        (JobSpec, "after", SPEC),
        (JobSpec, "after_any", SPEC),
        (JobSpec, "after_not_ok", SPEC),
        (JobSpec, "after_corr", SPEC),
    ],
)
def test_a_request_names_so_many_jobs(body: type[BaseModel], field: str, rest: dict[str, Any]) -> None:
    body.model_validate({**rest, field: tuple(range(MOST_IDS)) if body is JobSpec else list(range(MOST_IDS))})
    with pytest.raises(ValidationError, match=f"{field}\n.*at most {MOST_IDS}"):
        body.model_validate({**rest, field: list(range(MOST_IDS + 1))})


def test_so_many_words() -> None:
    with pytest.raises(ValidationError, match=f"words\n.*at most {MOST_IDS}"):
        Selectors(words=["1"] * (MOST_IDS + 1))


def test_so_many_waits_of_one_submission() -> None:
    for waits in ([0] * MOST_WAITS, {"after": [0] * (MOST_WAITS // 2), "after_any": [0] * (MOST_WAITS // 2)}):
        Submission.model_validate({"specs": [SPEC, SPEC], "waits_for": {1: waits}})
        with pytest.raises(ValidationError, match="waits_for: more than 1,000,000 in all"):
            Submission.model_validate({"specs": [SPEC, SPEC, SPEC], "waits_for": {1: waits, 2: [0]}})


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize(
    ("path", "most"), [("/cancel", MOST_BODY), ("/select", MOST_BODY), ("/jobs", MOST_SUBMITTED)]
)
def test_so_many_bytes(path: str, most: int, stated: bool) -> None:
    def codes(size: int) -> int:
        headers = [(b"content-length", str(size).encode())] if stated else []
        found = [200]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            try:
                await receive()
            except HTTPException as refusal:
                found.append(refusal.status_code)

        async def receive() -> Any:
            return {"type": "http.request", "body": bytes(size)}

        async def send(message: Any) -> None:
            found.append(message.get("status", found[-1]))

        asyncio.run(BodyLimit(app)({"type": "http", "path": path, "headers": headers}, receive, send))
        return found[-1]

    assert (codes(most), codes(most + 1)) == (200, 413)
