"""The API as its OpenAPI description says, by requests that Schemathesis makes from it."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.coordinator import Up

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES, EXAMPLES_OF_JOBS = 3, 9
LONGEST_WAIT_S = 0.01


def without_patterns(schema: Any) -> Any:
    """Remove the patterns of strings from the schema: with them a request takes twenty times as long to make.

    They are tested in ``test_requests``.
    """
    if isinstance(schema, dict):
        return {
            key: without_patterns(value)
            for key, value in schema.items()
            if key != "pattern" or not isinstance(value, str)
        }
    return [without_patterns(value) for value in schema] if isinstance(schema, list) else schema


def tame(case: Case, folder: Path) -> None:
    """No command of a request is run but ``true``, no file is written, and nobody waits for long.

    Numbers of jobs are those of jobs that are there, so that more than 404 is answered.
    """
    body = case.body if isinstance(case.body, dict) else {}
    specs = body.get("specs")
    for spec in specs if isinstance(specs, list) else []:
        if isinstance(spec, dict) and isinstance(spec.get("command"), list) and spec["command"]:
            spec["command"][0] = "/bin/true" if isinstance(spec["command"][0], str) else spec["command"][0]
            harmless = {
                "folder": str(folder),
                "stdout": "",
                "stderr": "",
                "mpi": False,
                "tasks": 1,
                "cores": 1,
            }
            spec |= {name: value for name, value in harmless.items() if type(spec.get(name)) is type(value)}
    for place in (body, case.query):
        wait_s = place.get("wait_s") if isinstance(place, dict) else None
        if isinstance(wait_s, int | float) and LONGEST_WAIT_S < wait_s <= 300:
            place["wait_s"] = LONGEST_WAIT_S
    if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        if isinstance(body.get("ids"), list):
            body["ids"] = [2 + number % 4 for number in body["ids"]]
        if case.operation.label == "POST /update":  # of its fields time_s excludes more_s
            body.pop("more_s", None)
            body.setdefault("priority", 1)
        if "job_id" in case.path_parameters:
            case.path_parameters["job_id"] %= 6


@pytest.mark.timeout(600)  # it takes half a minute where nothing else runs
def test_requests_made_from_the_description_are_answered_as_it_says(up: Up, tmp_path: Path) -> None:
    """No internal error, no answer that it does not name, nothing accepted that it forbids.

    The one core is taken: what is submitted waits.
    """
    up.start("--cores", "1", "--listen", "0")
    up.client.submit(["sleep", "600"])
    url, token = up.client.call("GET", "/status")["url"], (up.home / "token").read_text().strip()
    session = requests.Session()
    session.trust_env = False  # no proxy stands before this machine
    session.headers["Authorization"] = f"Bearer {token}"
    schema = schemathesis.openapi.from_dict(without_patterns(up.client.call("GET", "/openapi.json")))
    answered: dict[str, set[int]] = {}

    def check(case: Case) -> None:
        tame(case, tmp_path)
        response = case.call(url, session=session, timeout=300)
        too_large = response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE  # refused unread
        case.validate_response(response, checks=CHECKS, excluded_checks=[negative_data_rejection] * too_large)
        answered.setdefault(case.operation.label, set()).add(response.status_code)

    for found in schema.exclude(path="/down").get_all_operations():
        operation = found.ok()
        takes_values = operation.body or operation.query or operation.path_parameters
        for mode in GenerationMode if takes_values else (GenerationMode.POSITIVE,):
            examples = EXAMPLES_OF_JOBS if operation.label == "POST /jobs" else EXAMPLES
            bounded = settings(max_examples=examples, phases=[Phase.generate])
            bounded(given(operation.as_strategy(generation_mode=mode))(check))()
    assert len(answered) == 23 and all(200 in codes for codes in answered.values()), answered
    assert all({200, 422} <= answered[f"POST /{verb}"] for verb in ("jobs", "cancel", "resume")), answered
    assert "Traceback" not in (up.home.parent / "coordinator.log").read_text()
    up.client.call("POST", "/cancel", {"ids": [job["id"] for job in up.client.call("GET", "/jobs")]})
