"""Pages of the documentation: what they name exists, and what is typed in works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer

import tenbin
from scheduler.jobs.policy_view import NO_GPUS
from scheduler.policies.registry import POLICIES, policy_class
from tenbin.cli import app
from tenbin.option_values import duration_s, size_mb
from tests.support.coordinator import Up
from tests.support.paths import ROOT
from tests.support.typed_pages import FENCE, matches

PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *ROOT.glob("docs/**/*.md")])
each = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
FENCED = re.compile(r"^```(?!text).*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
SOURCES = re.compile(r"`((?:agent|examples|probes|profiles|scheduler|tenbin|tests)/[\w/-]+\.\w+)")


def unfenced(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> list[str]:
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", unfenced(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after each ``tenbin`` in code, without the command of a job."""
    for code in (*FENCED.findall(text), *INDENTED.findall(text), *INLINE.findall(text)):
        for line in re.findall(r"(?:^|[^\w/.-])tenbin ([^|;&#`\n)]*)", code, re.MULTILINE):
            yield re.split(r" -- |$", line)[0].split()


@each
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_sources_that_are_named_exist() -> None:
    for page in set(PAGES) - {ROOT / "docs" / "developing.md"}:  # which test_developing.py follows
        for file in SOURCES.findall(page.read_text()):
            assert (ROOT / file).exists() or "mine" in file, (page.name, file)


@each
def test_commands_have_the_options_that_are_named(page: Path) -> None:
    for words in commands(page.read_text()):
        command = typer.main.get_command(app)
        while words and (below := getattr(command, "commands", {})) and words[0] in below:
            command = below[words.pop(0)]
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
        options = {word.split("=")[0].rstrip(",:.") for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known, (command.name, options - known)


@each
def test_lines_are_short(page: Path) -> None:
    if page.parent.name != "measurements" and page.name != "developing.md":  # records; names of files
        long = [line for line in unfenced(page).splitlines() if len(line) > 120]
        assert not [line for line in long if not line.startswith(("|", "    ", "!["))]


def test_every_policy_is_defined() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    defined = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^### (.+)$", page, re.MULTILINE))))
    assert set(POLICIES) <= defined


def test_the_policies_that_schedule_gpus_are_named() -> None:
    honour = {name for name in POLICIES if {"counted", "nodes"} <= policy_class(name).suits}
    for page in ("gpu-jobs", "slurm"):
        text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
        (sentence,) = re.findall(r"[^.]*`fcfs`, `first-fit`,[^.]* cores, memory and GPUs", text)
        assert set(re.findall(r"`([a-z-]+)`", sentence)) == honour
    assert set(re.findall(r"[a-z-]+(?=,| schedule)", NO_GPUS.split("policies ")[1])) == honour
    others = {name for name in POLICIES if "nodes" in policy_class(name).suits} - honour
    assert {policy_class(name).__module__.split(".")[2] for name in others} == {"las"}


# docs/coming-from.md: each command line of tenbin in it can be parsed, each name of the package exists.


COMING_FROM = (ROOT / "docs" / "coming-from.md").read_text()
COMMAND_LINES = sorted(
    {code for code in re.findall(r"`([^`]+)`", COMING_FROM.replace("\n", " ")) if code.startswith("tenbin ")}
)


@pytest.mark.parametrize("line", COMMAND_LINES)
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
    names = set(re.findall(r"tenbin\.(\w+)", COMING_FROM))
    assert names and names <= set(tenbin.__all__)
    assert {"done", "cancel", "exception", "result", "stdout", "stderr"} <= set(dir(tenbin.Job))
    assert {"submit", "map"} <= set(dir(tenbin.Executor))


def test_times_and_sizes_are_as_the_page_says() -> None:
    assert duration_s("30") == 30
    assert duration_s("2-12:00") == duration_s("2-12:00:00") == duration_s("60h") == 2.5 * 86400
    assert duration_s("1:30:00") == duration_s("1h30m") == 5400 and duration_s("1-12") == 1.5 * 86400
    assert size_mb("1G") == 1000 and size_mb("1GiB") == pytest.approx(2**30 / 1e6)


def test_the_verbs_that_are_compared_are_all_there() -> None:
    assert len(COMMAND_LINES) > 40
    assert all(
        f"\n## {name}\n" in COMING_FROM for name in ("Slurm", "HyperQueue", "task-spooler", "submitit")
    )


# docs/functions.md: every block runs as a program of its own, and prints what the page says.


FUNCTIONS = ROOT / "docs" / "functions.md"


def test_the_programs_of_the_page_print_what_it_says(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    environment = {**os.environ, "TENBIN_HOME": str(up.home)}
    found = FENCE.findall(FUNCTIONS.read_text())
    assert len(found) >= 10 and [kind for kind, _, _ in found] == ["python", "text"] * (len(found) // 2)
    for (_, needs, program), (_, _, said) in zip(found[::2], found[1::2], strict=True):
        if needs and find_spec(needs) is None:
            continue
        file = tmp_path / "program.py"
        file.write_text(program)
        done = subprocess.run(
            [sys.executable, file], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert matches(said, done.stdout), (program, done.stdout)


def test_headings_of_the_table_are_those_of_the_page() -> None:
    text = FUNCTIONS.read_text()
    linked = re.findall(r"^\| .*\[(.+?)\]\(#", text, re.MULTILINE)
    assert linked == re.findall(r"^## (.+)$", text, re.MULTILINE)
