"""docs/coming-from.md: each command line of tenbin in it can be parsed, each name of the package exists."""

from __future__ import annotations

import re
import shlex

import click
import pytest
import typer

import tenbin
from tenbin.cli import app
from tenbin.option_values import duration_s, size_mb
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text()
LINES = sorted(
    {code for code in re.findall(r"`([^`]+)`", PAGE.replace("\n", " ")) if code.startswith("tenbin ")}
)


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        name = words.pop(0)
        assert name in command.commands, name
        command = command.commands[name]
    # A usage error is raised here; the values of options are of the right type.
    assert command.make_context(command.name, list(words)).params


def test_names_of_the_package_exist() -> None:
    names = set(re.findall(r"tenbin\.(\w+)", PAGE))
    assert names and names <= set(tenbin.__all__)
    assert {"done", "cancel", "exception", "result", "stdout", "stderr"} <= set(dir(tenbin.Job))
    assert {"submit", "map"} <= set(dir(tenbin.Executor))


def test_times_and_sizes_are_as_the_page_says() -> None:
    assert duration_s("30") == 30
    assert duration_s("2-12:00") == duration_s("2-12:00:00") == duration_s("60h") == 2.5 * 86400
    assert duration_s("1:30:00") == duration_s("1h30m") == 5400 and duration_s("1-12") == 1.5 * 86400
    assert size_mb("1G") == 1000 and size_mb("1GiB") == pytest.approx(2**30 / 1e6)


def test_the_verbs_that_are_compared_are_all_there() -> None:
    assert len(LINES) > 40
    assert all(f"\n## {name}\n" in PAGE for name in ("Slurm", "HyperQueue", "task-spooler", "submitit"))
