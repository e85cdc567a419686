"""Folders of a user who may have no home, or one with an odd name."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from profiles.errors import BadInput
from profiles.files.safe_files import in_utf8, named_folder, user_folder


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one of a user that the machine does not know, without any variable."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)


def test_a_folder_is_named_or_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/me/.local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/home/me/.local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/elsewhere")


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"HOME is not set, .*; set HOME, or XDG_STATE_HOME"):
        user_folder("XDG_STATE_HOME", ".local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/elsewhere")


@pytest.mark.parametrize("home", [None, ""])
def test_an_empty_home_counts_as_none(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    known = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert user_folder("XDG_STATE_HOME", ".local/state") == known / ".local/state"


def test_a_name_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(b"/home/caf\xe9")
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv(name, odd)
        with pytest.raises(BadInput, match=f"{name} b'/home/caf.*' is not UTF-8") as refused:
            user_folder("XDG_STATE_HOME", ".local/state")
        str(refused.value).encode()
    with pytest.raises(BadInput):
        named_folder("XDG_STATE_HOME")
    assert in_utf8(Path("/home/caf\u00e9"), "--home") == Path("/home/caf\u00e9")
