"""Access to a coordinator: over TCP by the token, over the Unix socket by its owner alone."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tenbin
from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tests.support.coordinator import Up

NOBODY = 65534


def status_of(url: str, method: str = "GET", path: str = "/status", **headers: str) -> tuple[int, str]:
    """Make one call over a real connection; return its status."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_over_tcp_with_the_token_and_by_a_name_of_this_machine(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    up.start("--cores", "1", "--listen", "0")
    url = up.client.call("GET", "/status")["url"]
    token = (up.home / "token").read_text().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url) and len(token) > 40
    assert stat.S_IMODE((up.home / "token").stat().st_mode) == 0o600
    right = f"Bearer {token}"
    assert status_of(url, Authorization=right)[0] == 200
    for wrong in ("", "Bearer", "Bearer ", token, f"Basic {token}", right[:-1], right + "x", "Bearer \xe9"):
        for path in ("/status", "/openapi.json", "/docs", "/metrics", "/nowhere"):
            code, text = status_of(url, path=path, Authorization=wrong)
            assert code == 401 and "TENBIN_TOKEN" in json.loads(text)["detail"], (wrong, path)
    code, text = status_of(url, path="/", Accept="text/html,*/*;q=0.8")
    assert code == 401 and text.startswith("<!doctype html>") and "<code>tenbin page</code>" in text
    assert status_of(url)[0] == 401 and status_of(url, "POST", "/down")[0] == 401
    port = urlsplit(url).port
    for host in (f"localhost:{port}", socket.gethostname(), f"[::1]:{port}", "127.0.0.1", "LOCALHOST."):
        assert status_of(url, Authorization=right, Host=host)[0] == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
    ):
        code, text = status_of(url, Authorization=right, Host=host)
        assert code == 403 and "does not answer to that name" in text, host
    client = Client(url=url, token=token)
    job = client.submit(["sh", "-c", "echo a line; echo another >&2; exit 4"])
    assert job.result(30) == 4 and client.output(job.id) == b"a line\n"
    assert client.output(job.id, "stderr", 3) == b"ther\n"
    with pytest.raises(TenbinError, match="token is missing or wrong") as caught:
        Client(url=url).call("GET", "/status")
    assert caught.value.exit_code == 2
    for name, value in (("TENBIN_URL", url), ("TENBIN_TOKEN", token)):
        monkeypatch.setenv(name, value)
    assert tenbin.submit(["true"]).result(30) == 0
    assert up.run("logs", str(job.id)).stdout == "a line\n"
    monkeypatch.setenv("TENBIN_TOKEN", "two\nlines")
    assert up.run("jobs").returncode == 2
    monkeypatch.setenv("TENBIN_URL", "file:///etc/passwd")
    done = up.run("jobs")
    assert done.returncode == 2 and "is no URL" in done.stderr
    assert Client(up.home).call("GET", "/status")["pid"]  # the folder itself needs no token


def test_the_token_stays_and_is_refused_where_others_can_read_it(up: Up) -> None:
    up.start("--cores", "1", "--listen", "[::1]:0" if socket.has_ipv6 and _has_ipv6() else "localhost:0")
    token = (up.home / "token").read_text()
    up.kill()
    up.start("--cores", "1", "--listen", "127.0.0.1:0")
    assert (up.home / "token").read_text() == token
    up.kill()
    (up.home / "token").chmod(0o644)
    done = up.run("up", "--cores", "1", "--listen", "0")
    assert done.returncode == 2 and "can be read by others" in done.stderr
    for text in ("http://x", ":80", "99999", "a:b", "1:2:3", ""):
        done = up.run("up", "--listen", text)
        assert done.returncode == 2 and "is no place to listen; write PORT" in done.stderr, text
    (up.home / "token").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = up.run("up", "--cores", "1", "--listen", str(taken.getsockname()[1]))
        assert done.returncode == 2 and "in use; choose another" in done.stderr


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_another_user_gets_at_nothing(up: Up) -> None:
    """As nobody: not the socket, the journal, the token, a job's output or environment."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("to be somebody else needs root and setpriv")
    folder = up.home.parent
    while folder != Path("/"):  # only what tenbin itself has made stands in the way
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent
    up.start("--cores", "1", "--listen", "0")
    assert up.client.submit(["echo", "secret"]).result(30) == 0
    files = [path for path in up.home.rglob("*") if not path.is_dir()]
    assert {"api.sock", "report.sock", "journal.sqlite", "token", "stdout"} <= {path.name for path in files}
    code = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(path)
        else:
            open(path, "rb").read(1)
    except PermissionError:
        continue
    print(path)
print("looked", os.getuid())
"""
    somebody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    look = [*somebody, shutil.which("python3", path="/usr/bin:/bin") or sys.executable, "-c", code]
    done = subprocess.run([*look, *map(str, files)], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == f"looked {NOBODY}\n"
