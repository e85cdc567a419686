"""A page beside a real coordinator, and a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.coordinator import Up
from tests.support.page import PageProcess
from tests.support.viewer import Viewer


@pytest.fixture
def page(up: Up) -> Iterator[PageProcess]:
    """Yield the page of a coordinator on two cores."""
    up.start("--cores", "2")
    one = PageProcess(up.home)
    yield one
    assert one.stop() == 0, one.log.read_text()
    assert "Traceback" not in one.log.read_text()


@pytest.fixture
def view(browser: Any, page: PageProcess) -> Iterator[Callable[..., Viewer]]:
    """Open windows on the page; each is checked at the end."""
    opened: list[Viewer] = []

    def open_one(**settings: Any) -> Viewer:
        opened.append(Viewer(browser, page, **settings))
        return opened[-1]

    yield open_one
    for viewer in opened:
        viewer.close()
