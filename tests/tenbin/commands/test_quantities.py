"""Times, sizes and lists of times as written on the command line."""

from __future__ import annotations

import pytest

from profiles.errors import BadInput
from tenbin.commands.quantities import expected


def test_expected_times() -> None:
    assert expected(None) == {} and expected("10m") == {"": 600.0}
    assert expected("gpu=1m, cpu=1:30:00") == {"gpu": 60.0, "cpu": 5400.0}


@pytest.mark.parametrize("text", ["gpu=1m,10m", "=10m", "soon", "gpu=soon", "gpu="])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadInput):
        expected(text)
