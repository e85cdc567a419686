"""Access to the page: by the token once, then by the cookie, from the page, by a name of this machine."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.support.coordinator import Up
from tests.support.page import PageProcess
from tests.support.viewer import Viewer

READS = (
    "/api/session",
    "/api/jobs",
    "/api/ids",
    "/api/events",
    "/api/jobs/1",
    "/api/jobs/1/output?stream=stdout",
)


def test_the_token_works_once_and_only_the_cookie_lets_in(up: Up, page: PageProcess) -> None:
    job = up.client.submit(["sleep", "600"])
    for path in READS:
        assert page.ask(path)[0] == 401, path
    assert page.ask("/api/change/cancel", {"ids": [job.id]})[0] == 401
    for wrong in ("", "x", "%C3%A9", page.address[-43:-1]):
        assert page.ask(f"/enter?token={wrong}")[0] == 401, wrong
    code, _, told = page.ask(page.address.removeprefix(page.url))
    assert code == 303 and told["location"] == "/"
    assert re.fullmatch(
        rf"tenbin-page-{urlsplit(page.url).port}=[\w-]{{43}}; HttpOnly; Path=/; SameSite=strict",
        told["set-cookie"],
    )
    assert page.ask(page.address.removeprefix(page.url))[0] == 401  # used
    page.cookie = told["set-cookie"].partition(";")[0]
    assert page.get("/api/session")["home"] == str(up.home)
    second = page.addresses(2)[1]
    assert second != page.address and page.ask(second.removeprefix(page.url))[0] == 303
    up.until(lambda: page.get("/api/jobs")["total"] == 1)  # the first viewer stays
    for cookie in (page.cookie[:-1], page.cookie + "x", page.cookie.partition("=")[2], "a=b", ";;\x01"):
        assert page.ask("/api/session", Cookie=cookie)[0] == 401, cookie


def test_a_used_address_is_answered_by_a_page(page: PageProcess, view: Callable[..., Viewer]) -> None:
    """To programs by JSON; who has the cookie comes in."""
    used = page.address.removeprefix(page.url)
    viewer = view()
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in (used, "/enter", "/enter?token=x", "/nowhere"):
        code, content, told = page.ask(path, **browser)
        assert code == 401 and told["content-type"].startswith("text/html"), path
        assert b"each address works once" in content and b"<script" not in content
        code, found, _ = page.ask(path)
        assert code == 401 and "each address works once" in found["detail"]
    viewer.tab.goto(page.address)
    viewer.tab.wait_for_url(page.url + "/")
    viewer.tab.get_by_role("link", name="Queue").wait_for()
    (cookie,) = viewer.tab.context.cookies()
    code, _, told = page.ask(used, Cookie=f"{cookie['name']}={cookie['value']}")
    assert (code, told["location"]) == (303, "/")
    other = viewer.tab.context.browser.new_page()
    other.goto(page.address)
    other.get_by_text("each address works once").wait_for()
    other.close()


def test_other_hosts_and_other_sites_are_refused(up: Up, page: PageProcess) -> None:
    job = up.client.submit(["sleep", "600"])
    page.enter()
    port = urlsplit(page.url).port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}"):
        for path in ("/", "/static/page.css", *READS, "/enter?token=x"):
            assert page.ask(path, Host=host)[0] == 403, (host, path)
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", socket.gethostname()):
        assert page.ask("/api/session", Host=host)[0] == 200, host
    assert page.ask("/api/session", Sec_Fetch_Site="cross-site")[0] == 403
    assert page.ask("/api/session", Sec_Fetch_Site="same-site")[0] == 403  # another port of this host
    body = {"ids": [job.id]}
    for origin in (
        None,
        "null",
        "http://evil.example",
        f"http://127.0.0.1:{port + 1}",
        page.url + ".evil.example",
    ):
        code, found, _ = page.ask("/api/change/cancel", body, Origin=origin)
        assert code == 403 and "Origin" in found["detail"], origin
    assert page.ask("/api/change/cancel", body, X_Tenbin_Page=None)[0] == 403
    assert page.ask("/api/change/cancel", body, Content_Type="text/plain")[0] == 422
    assert page.ask("/api/jobs", method="DELETE")[0] == 405
    assert not job.done() and job.info()["stage"] == "running"
    code, found, _ = page.ask("/api/change/cancel", body)
    assert code == 200 and found == {"ids": [job.id], "left_out": {}, "reasons": {}}
    up.until(job.done)


def test_every_answer_has_the_policy(page: PageProcess) -> None:
    page.enter()
    for path in (
        "/",
        "/static/main.js",
        "/static/../app.py",
        "/api/session",
        "/api/nowhere",
        "/nowhere",
        "/docs",
    ):
        code, content, told = page.ask(path)
        assert told["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'; connect-src 'self'; "
            "img-src 'self' data:; style-src 'self';"
        )
        assert "frame-ancestors 'none'" in told["content-security-policy"] and "unsafe" not in str(told)
        assert told["x-content-type-options"] == "nosniff" and told["referrer-policy"] == "no-referrer"
        assert told["cache-control"] == "no-store"
        assert (code == 200) == (path in ("/", "/static/main.js", "/api/session")), path
        assert b"<script>" not in content if isinstance(content, bytes) else True
    assert "token" not in page.log.read_text().replace("/enter?token=", "")
