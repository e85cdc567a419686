"""The process that tells what has happened to jobs, and how it is handed notices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agent import notifier
from agent.notifier import Notice, Notifier
from tests.support.waiting import until

ABOUT = {
    "TENBIN_EVENT": "failed",
    "TENBIN_JOB": "7",
    "TENBIN_JOB_NAME": "fit\n",
    "TENBIN_STATE": "failed",
    "TENBIN_EXIT_CODE": "3",
    "TENBIN_REASON": "exit code 3",
}


@pytest.fixture
def posts() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Listen; yield the URL, and what was posted there."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.path == "/odd":
                self.wfile.write(b"no HTTP\r\n")
                return
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


def test_a_url_a_mail_and_a_command(
    posts: tuple[str, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = posts
    notifier.tell(Notice(url, ABOUT, "/"))
    (body,) = posted
    assert body["text"] == "tenbin: job 7 (fit ): failed: exit code 3" and body["exit_code"] == "3"
    mail = tmp_path / "mail"
    mail.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/mailed\ncat >> {tmp_path}/mailed\n')
    mail.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    notifier.tell(Notice("mail:me@example.org", ABOUT, "/"))
    subject = "tenbin: job 7 (fit ): failed: exit code 3"
    assert (tmp_path / "mailed").read_text().startswith(f"-s|{subject}|me@example.org|TENBIN_EVENT: failed\n")
    notifier.tell(Notice('echo "$TENBIN_JOB $TENBIN_EXIT_CODE" > note', ABOUT, str(tmp_path)))
    assert (tmp_path / "note").read_text() == "7 3\n"


def test_what_fails_or_hangs_is_a_line(
    posts: tuple[str, list[dict[str, Any]]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier, "LIMIT_S", 0.2)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    for to, why in (
        (f"{posts[0]}/broken", "HTTP Error 500"),
        (f"{posts[0]}/odd", ""),
        ("http://127.0.0.1:1/", "<urlopen error"),
        ("sleep 600", "killed after 0.2 s\n"),
        ("exit 9", "failed with exit code 9\n"),
        ("kill -9 $$", "signal SIGKILL\n"),
        ("exec 2> /dev/null; nosuchcmd", "no such command (exit code 127)\n"),
        ("http://[/", "Invalid"),
    ):
        notifier.tell(Notice(to, ABOUT, "/no/such/folder"))
        line = capfd.readouterr().err
        assert line.startswith(f"tenbin: job 7 (fit ): failed: exit code 3; notice '{to}': {why}")
        assert line.count("\n") == 1


def test_the_process_outlives_the_coordinator_and_is_started_again(tmp_path: Path) -> None:
    """Nobody waits for it, also if it is killed, or if a command hangs."""
    notes = tmp_path / "notes"
    notices = Notifier(tmp_path)
    notices.tell([Notice("sleep 600 & echo $! > hangs; wait", ABOUT, str(tmp_path))])
    until((tmp_path / "hangs").exists)
    process = notices._process
    assert process is not None
    process.kill()
    process.wait()
    go = Notice('until [ -e go ]; do sleep 0.02; done; echo "$TENBIN_HOME" >> notes', ABOUT, str(tmp_path))
    notices.tell([go] * 6)  # more than at once
    notices.close()
    second = notices._process
    assert second is not None and second is not process and second.poll() is None
    (tmp_path / "go").touch()
    assert second.wait(60) == 0
    assert notes.read_text().split() == [str(tmp_path)] * 6
    subprocess.run(["kill", (tmp_path / "hangs").read_text().strip()], check=True)


def test_news_of_no_job_is_its_reason() -> None:
    why = "GPU 1 is held outside of the queue by process 7"
    about = {"TENBIN_EVENT": "stranger", "TENBIN_JOB": "", "TENBIN_STATE": "", "TENBIN_REASON": why}
    assert Notice("true", about, "/").sentence == why
