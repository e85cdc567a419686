"""Times, sizes and lists of times as written on the command line."""

from __future__ import annotations

import pytest

from profiles.errors import BadInput
from tenbin.option_values import duration_s, expected, size_mb
from tests.support.programs import tenbin


def test_expected_times() -> None:
    assert expected("10m") == {"": 600.0}
    assert expected("gpu=1m, cpu=1:30:00") == {"gpu": 60.0, "cpu": 5400.0}


@pytest.mark.parametrize("text", ["gpu=1m,10m", "=10m", "soon", "gpu=soon", "gpu="])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadInput):
        expected(text)


def test_a_duration_is_longer_than_nothing_and_the_option_is_named() -> None:
    assert duration_s("1h30m") == 5400 and duration_s("0", "--timeout", least=0) == 0
    for text in ("0", "0:00", "0s", "0-0"):
        with pytest.raises(BadInput, match=r"--block '.*' is too short"):
            duration_s(text, "--block")
    with pytest.raises(BadInput, match="--limit '1:99' is no duration"):
        duration_s("1:99", "--limit")


@pytest.mark.parametrize(
    ("text", "mb"), [("500", 500), ("1500K", 1.5), ("2g", 2000), ("1T", 1e6), ("2Gi", 2**31 / 1e6)]
)
def test_sizes_in_megabytes(text: str, mb: float) -> None:
    assert size_mb(text) == mb


@pytest.mark.parametrize("text", ["", "1x", "-1G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadInput, match=r"--memory '.*' is no size; write for instance"):
        size_mb(text)


@pytest.mark.parametrize("text", ["0", "0G", "1K", "0.9M"])
def test_a_size_in_which_nothing_starts(text: str) -> None:
    with pytest.raises(BadInput, match=r"--memory '.*' is too little; write at least 1M"):
        size_mb(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "--engine", "slurm", "--lease", "1s"), "--lease '1s' is too short; write at least 2s"),
        (("up", "--gate", "1h30m"), "--gate is of a Slurm cluster"),
        (("up", "--memory", "1x"), "--memory '1x' is no size"),
        (("wait", "1", "--timeout", "1:99"), "--timeout '1:99' is no duration"),
        (("profile", "check", "--wait", "soon"), "--wait 'soon' is no duration"),
    ],
)
def test_one_line_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    done = tenbin(*arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
