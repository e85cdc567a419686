"""A real browser on the page, and everything that went wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.labs.components import require
from tests.support.page import PageProcess

# Features of Chromium: the popup of the address bar, for which each window has two more processes, and those
# that Playwright disables, because only the last --disable-features counts.
DISABLED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "AimEnabled", "HttpsFirstBalancedModeAutoEnable"),
    *("HttpsUpgrades", "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding"),
    *("PreconnectToSearch", "ThirdPartyStoragePartitioning", "DestroyProfileOnBrowserClose"),
)
# Heard from the first instant on, before any script of the page.
HEARD = """
window.heard = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.heard.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}`));
"""


@pytest.fixture(scope="module")  # while it is there, asyncio cannot run in this process
def browser() -> Iterator[Any]:
    """Start Debian's Chromium once for a file of tests."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    require(program, "chromium")
    require(find_spec("playwright"), "playwright (./install --dev)")
    api = import_module("playwright.sync_api")
    with api.sync_playwright() as playwright:
        switches = ["--no-sandbox", f"--disable-features={','.join(DISABLED)}"]
        started = playwright.chromium.launch(executable_path=program, args=switches)
        yield started
        started.close()


class Viewer:
    """A window of the browser on the page, and everything that went wrong in it.

    Attributes:
        tab: the window, on ``url`` if the way there is not the direct one.
        requests: URLs of all requests. errors: of scripts, and of the policy.
    """

    def __init__(self, browser: Any, page: PageProcess, url: str | None = None, **settings: Any) -> None:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **settings})
        self.requests: list[str] = []
        self.errors: list[str] = []
        context.on("request", lambda request: self.requests.append(request.url))
        context.add_init_script(HEARD)
        self.tab = context.new_page()
        self.tab.set_default_timeout(60_000)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._hear)
        before = len(page.addresses(1))
        self._url, self._context = url or page.url, context
        self.tab.goto(page.addresses(1)[-1].replace(page.url, self._url))
        page.addresses(before + 1)  # the next one is printed

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def go(self, fragment: str) -> None:
        """Choose a view."""
        self.tab.evaluate("fragment => { location.hash = fragment; }", fragment)

    def row(self, name: str) -> Any:
        """Find the row of a job in the queue by its name."""
        return self.tab.locator("tr[data-job]", has=self.tab.locator("td.c-name", has_text=name))

    def close(self) -> None:
        """Close the window; nothing must have gone wrong, and no request left this host."""
        heard = self.tab.evaluate("window.heard")
        self._context.close()
        assert not heard and not self.errors, (heard, self.errors)
        assert all(url.startswith((self._url, "data:")) for url in self.requests), self.requests
