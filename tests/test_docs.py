"""Pages of the documentation: links, anchors, commands, options and policies exist, and lines are short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from scheduler.policies.registry import POLICIES
from tenbin.cli import app
from tests.support.paths import ROOT

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
    listed = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| .+?\|", page, re.MULTILINE))))
    assert set(POLICIES) <= defined & listed
