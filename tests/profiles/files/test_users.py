"""Names of users that the machine knows, and of those that it does not."""

from __future__ import annotations

import os
import pwd

import pytest

from profiles.files.safe_files import user_name

UNKNOWN = 4_000_000_001


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name and user_name(UNKNOWN) == str(UNKNOWN)
    monkeypatch.setenv("LOGNAME", "ada")
    assert user_name() == "ada"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: UNKNOWN)
    assert user_name() == str(UNKNOWN)
