"""Requests of clients: each fault is refused by its own sentence; no request is an internal error."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from collections.abc import Iterable
from typing import Any

import pytest

from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tests.support.coordinator import Up

SPEC: dict[str, Any] = {"command": ["true"], "folder": "/"}
HUGE = (2**63, -(2**63) - 1, 10**400)
JSON = {"Content-Type": "application/json"}


def connect(up: Up) -> http.client.HTTPConnection:
    """Make a plain connection to the coordinator's socket."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(up.home / "api.sock"))
    return connection


def ask(
    up: Up, method: str, path: str, body: bytes | str | Iterable[bytes] | None = None, **headers: str
) -> tuple[int, bytes]:
    """Send one call as it is; return the answer."""
    connection = connect(up)
    try:
        connection.request(method, path, body, JSON | headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def refusal(up: Up, path: str, body: object, method: str = "POST") -> tuple[int, str]:
    """Return the code and the sentence; ``body`` may be anything that Python can write, JSON or not."""
    code, content = ask(up, method, path, None if body is None else json.dumps(body))
    assert 400 <= code < 500, (path, str(body)[:200], code, content[:500])
    answer = json.loads(content)
    detail = answer.pop("detail")
    assert answer.keys() in (set(), {"place", "reason"})
    assert isinstance(detail, str) and detail and "\n" not in detail and len(detail) < 2000, detail
    return code, detail


def faults() -> list[tuple[dict[str, Any], str]]:
    """Make submissions with one fault each, and the text that the refusal must have."""
    nan, inf, surrogate = float("nan"), float("inf"), "a\ud800"
    found: list[tuple[dict[str, Any], str]] = []
    for value in (nan, inf, -inf, 0, -1, 1e300, "1e999", "x", None):
        if value is not None:
            found += [({name: value}, name) for name in ("memory_mb", "time_s", "share")]
        found += [
            ({"expect_s": {"": value}}, "expect_s"),
            ({"speedup": {1: value}, "max_tasks": 2}, "speedup"),
        ]
        found += [({"cap_curve": [value, 0.1]}, "cap_curve")]
    found += [({"grace_s": value}, "grace_s") for value in (nan, inf, -1, 86_401)]
    found += [({"cap_curve": [50, value]}, "cap_curve") for value in (nan, inf, -1)]
    for name in ("tasks", "cores", "max_tasks", "nodes", "max_nodes", "checkpoint_signal", "checkpoint_code"):
        found += [({name: value}, name) for value in (*HUGE, 0, -1, nan, inf, 1e300, 1.5, "9" * 5000)]
    for name in ("priority", "array_index"):
        found += [({name: value}, name) for value in (*HUGE, nan, 1.5)]
    found += [({"after": [value]}, "after") for value in (nan, 1.5, "x")]
    found += [({"after": [value]}, f"no job {value}") for value in (*HUGE, 0)]
    found += [({"speedup": {value: 1.0}, "max_tasks": 2}, "speedup") for value in (*HUGE, 0, "x")]
    for name in ("folder", "stdout", "stderr", "name", "device", "account", "job_profile"):
        found += [({name: "/a\0b"}, name), ({name: surrogate}, name), ({name: "/" + "x" * 5000}, name)]
    for text in ("a\0b", surrogate, "x" * 131_073):
        found += [({"command": ["true", text]}, "command"), ({"command": [text]}, "command")]
        found += [({"env": {"A": text}}, "env"), ({"env": {text: "1"}}, "env")]
    found += [({"env": {name: "1"}}, "env") for name in ("", "A=B", "=")]
    found += [({"command": value}, "command") for value in ([], "true", [[]], [None], None, 3)]
    found += [({surrogate: 1}, "specs.0"), ({"\x1b[2J": 1}, "specs.0.\\x1b[2J: is no field")]
    found += [({"slurm": {"id": "1", "user": "x", "submitted_s": nan}}, "slurm")]
    return found


def test_each_fault_of_a_job_is_refused_by_its_field(shared: Up) -> None:
    """At the door, in one sentence, whichever field it is in; nothing is taken in."""
    for change, named in faults():
        code, detail = refusal(shared, "/jobs", {"specs": [SPEC | change]})
        assert code == 422 and named in detail and detail.isprintable(), (str(change)[:200], detail)
    for variables in (
        {"": "x"},
        {"A=B": "x"},
        {"A\0": "x"},
        {"A": "\0"},
        {"A": "\ud800"},
        {"A": "x" * 131_072},
    ):
        code, detail = refusal(shared, "/jobs", {"specs": [SPEC], "environment": variables})
        assert code == 422 and "environment" in detail, detail
    for waits in ({0: [2**63]}, {10**400: [0]}, {-1: [0]}, {0: [float("nan")]}, {"x": [0]}, {0: [0]}):
        assert refusal(shared, "/jobs", {"specs": [SPEC], "waits_for": waits})[0] == 422
    assert shared.client.call("GET", "/jobs?all=true") == []
    assert shared.client.submit(["true"]).result(60) == 0


def test_numbers_that_no_job_has(shared: Up) -> None:
    for number in (*HUGE, 0, -1, 2**63 - 1):
        for path in ("/cancel", "/suspend", "/resume", "/migrate"):
            body = {"ids": [number], **({"to": "core"} if path == "/migrate" else {})}
            assert refusal(shared, path, body) == (422, f"there is no job {number}; see: tenbin jobs")
        assert refusal(shared, "/wait", {"ids": [number]})[0] == 404
        if number in HUGE[:2] or abs(number) < 2**63:
            for rest in ("", "/samples", "/stdout", "/stderr"):
                assert refusal(shared, f"/jobs/{number}{rest}", None, "GET")[0] == 404
    job = shared.client.submit(["echo", "a"])
    assert job.result(60) == 0
    path = f"/jobs/{job.id}"
    for query in ("?start=-1", f"?start={2**63}", f"?start={10**400}", "?start=x", "?start=nan"):
        assert refusal(shared, f"{path}/stdout{query}", None, "GET")[0] == 422
    code, content = ask(shared, "GET", f"{path}/stdout?start={2**63 - 1}")
    assert (code, content) == (200, b"") or (code == 422 and json.loads(content)["detail"])
    for query in ("?limit=0", f"?limit={2**63}", "?limit=nan", "?all=perhaps"):
        assert refusal(shared, f"/jobs{query}", None, "GET")[0] == 422
    assert ask(shared, "GET", f"/jobs?all=true&limit={2**63 - 1}")[0] == 200
    for wait in ("nan", "inf", "-1", "301", "1e400"):
        assert refusal(shared, f"{path}?wait_s={wait}", None, "GET")[0] == 422
        assert refusal(shared, "/wait", {"ids": [job.id], "wait_s": float(wait)})[0] == 422
    done = shared.run("info", str(10**30))
    assert done.returncode == 2 and f"'{10**30}' is no job" in done.stderr


def test_places_that_nobody_can_move_to(shared: Up) -> None:
    job = shared.client.submit(["sleep", "60"])
    for place in ("", "\0", "\ud800", "core" + "9" * 90, "x" * 101, "²", "../..", 3, None, float("nan")):
        assert refusal(shared, "/migrate", {"ids": [job.id], "to": place})[0] == 422, place
    job.cancel()


def test_a_name_of_a_job_profile_is_no_path(shared: Up, up: Up) -> None:
    """Whether the policy knows such profiles or not."""
    up.start("--policy", "match", "--nodes", "1")
    for name in ("../x", "a/b", "é" * 100, "*", "[", "**", "a@" + "9" * 90, ".", "\n"):
        body = json.dumps({"specs": [SPEC | {"job_profile": name}]})
        assert [ask(queue, "POST", "/jobs", body)[0] for queue in (shared, up)] == [422, 422], name


def test_a_refusal_does_not_send_back_what_was_sent(shared: Up) -> None:
    big = "x" * (8 << 20)
    for body in ({"specs": [SPEC | {"name": big}]}, {"specs": [SPEC | {big: 1}]}, {big: 1}, {"specs": big}):
        assert len(refusal(shared, "/jobs", body)[1]) < 500
    detail = refusal(shared, "/jobs", {"specs": [SPEC | {"cores": 0}] * 1000})[1]
    assert detail.startswith("specs.0.cores: must be at least") and detail.endswith("and 997 more")
    faults = {"specs": [SPEC, SPEC | {"cores": 0, "priority": 10**7}, SPEC | {"cores": 0}]}
    refused = json.loads(ask(shared, "POST", "/jobs", json.dumps(faults))[1])
    assert (refused["place"], refused["reason"]) == (
        1,
        "cores: must be at least 1; priority: must be at most 1000000",
    )
    code, content = ask(shared, "POST", "/jobs", b'{"specs": [')
    assert (code, json.loads(content)["detail"]) == (
        422,
        "the body is no JSON: Expecting value, at character 11",
    )


def test_a_body_too_large_is_refused_however_it_comes(shared: Up) -> None:
    """With its length, in chunks, over a call that takes no body; before it is read whole."""
    pieces = [b" " * (1 << 20)] * 65
    for path in ("/jobs", "/cancel", "/wait"):
        for body in (b"".join(pieces), iter(pieces)):
            code, content = ask(shared, "POST", path, body)
            assert code == 413 and f"{64 if path == '/jobs' else 8} MiB" in json.loads(content)["detail"]
    assert ask(shared, "GET", "/status", **{"Content-Length": str(10**12)})[0] == 413
    with pytest.raises(TenbinError, match="larger than 64 MiB") as caught:
        shared.client.submit_all([{**SPEC, "env": {"A": "x" * 100_000}}] * 700, {})
    assert caught.value.exit_code == 2
    assert ask(shared, "POST", "/jobs", iter([json.dumps({"specs": [SPEC]}).encode()]))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        *(b"[" * 1_000_000, b'{"specs":' * 500_000, b'{"a":' * 100 + b"1" + b"}" * 100),
        *(b"", b"{", b"[]", b"null", b"\xff\xfe"),
    ],
)
def test_a_body_that_is_deeply_nested_or_no_object_is_refused(shared: Up, body: bytes) -> None:
    code, content = ask(shared, "POST", "/jobs", body)
    assert 400 <= code < 500 and len(content) < 1000 and json.loads(content)["detail"]


def test_an_environment_of_bytes_that_are_not_utf8_reaches_the_job(shared: Up) -> None:
    """Such bytes are nobody's fault: they came from the shell of whoever submits."""
    os.environb[b"TENBIN_TEST_BYTES"] = b"\xff\xfe"
    try:
        job = Client(shared.home).submit(["sh", "-c", 'printf %s "$TENBIN_TEST_BYTES"'])
    finally:
        del os.environb[b"TENBIN_TEST_BYTES"]
    assert job.result(60) == 0 and shared.client.output(job.id) == b"\xff\xfe"


def test_a_script_without_a_name_blocks_no_other(shared: Up) -> None:
    script = base64.b64encode(b"#!/bin/sh\nexit 7\n").decode()
    for name in (".", "..", "/", "a/..", "./"):
        spec = SPEC | {"command": [name]}
        code, detail = refusal(shared, "/jobs", {"specs": [SPEC, spec], "script": script})
        assert code == 422 and detail.startswith("specs.1.command: the script has no name"), detail
    assert not (shared.home / "scripts").exists()
    found = shared.client.hand_over([SPEC | {"command": ["job.sh"]}], script=base64.b64decode(script))
    assert shared.client.job(found["ids"][0]).result(60) == 7
