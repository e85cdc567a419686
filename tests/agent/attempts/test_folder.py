"""The folder of an attempt: what of a result is on disk when its supervisor goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Order, Result

ORDER = Order(1, 1, "mark", ("true",), {}, "/", "/dev/null", "/dev/null")
RESULT = Result("exited", 1.0, 0)


@pytest.mark.parametrize("removed", [False, True])
def test_a_result_is_synced_once(removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, because its note counts under either name; where the folder was made anew, this as well."""
    attempt = Attempt(tmp_path / "1" / "attempt-1")
    attempt.place(ORDER)
    assert attempt.claim()
    reserved, synced = attempt.reserve(), []
    attempt.note(reserved, RESULT)
    assert attempt.unpublished_result() == RESULT
    if removed:
        shutil.rmtree(attempt.path)
    attempt.publish(reserved)
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
    )
    attempt.make_durable(reserved)
    os.close(reserved)
    assert attempt.result() == RESULT
    if removed:
        assert synced[1:] == [attempt.path]
    else:
        assert synced == [attempt.path / "result.json"]


def test_an_order_is_placed_again_unless_it_is_claimed(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "1" / "attempt-1")
    for _ in range(2):
        attempt.place(ORDER)
    assert attempt.claim()
    with pytest.raises(FileExistsError, match="another job has run"):
        attempt.place(ORDER)
