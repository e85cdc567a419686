"""A batch script and its directives, read as ``sbatch`` reads them (Slurm 22.05)."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from profiles.errors import BadInput
from tenbin.commands.options import read_input

TENBIN: Literal["#TENBIN"] = "#TENBIN"
SBATCH: Literal["#SBATCH"] = "#SBATCH"
OTHERS = ("#PBS", "#BSUB")  # lines that sbatch reads too
LARGEST = 4 << 20  # bytes; Slurm's own limit (max_script_size)
HEAD = 80  # bytes by which a shell tells a script from a program
HETEROGENEOUS = ("hetjob", "packjob")


class Directive(NamedTuple):
    """A line of options: the words after ``#TENBIN`` or ``#SBATCH``."""

    kind: Literal["#TENBIN", "#SBATCH"]
    line: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    """A batch script as it was read."""

    path: str
    content: bytes
    directives: tuple[Directive, ...]

    def at(self, line: int) -> str:
        """Name a line, for messages."""
        return f"{self.path}, line {line}"

    def of(self, kind: str) -> list[Directive]:
        """Return the directives of one kind."""
        return [directive for directive in self.directives if directive.kind == kind]


def is_script(word: str) -> bool:
    """Tell if a word of the command line names a file that begins with ``#!``.

    Raises:
        BadInput: it names a file that could not run, neither as a script nor as a program.
    """
    head, quoted = _head(word), shlex.quote(word)
    if head is not None and head.startswith(b"#!"):
        return True
    if "/" not in word and shutil.which(word):
        return False
    if os.path.isdir(word):  # noqa: PTH112 (any text)
        raise BadInput(f"{word} is a folder", "name a script or a program")
    if os.path.exists(word) and not os.path.isfile(word):  # noqa: PTH110, PTH113
        raise BadInput(f"{word} is no regular file", "name a script or a program")
    if head is None:
        return False
    if b"\0" not in head:  # the same guess as a shell's
        remedy = f"write #!/bin/sh there, or: tenbin submit -- sh {quoted}"
        if word.endswith(".toml"):
            remedy = f"tenbin submit --file {quoted}"
        raise BadInput(f"{word} is no script: its first line does not begin with #!", remedy)
    if not os.access(word, os.X_OK):
        raise BadInput(f"{word} is a program that may not be run", f"chmod +x {quoted}")
    return False


def _head(word: str) -> bytes | None:
    """Read the beginning of a file; None: there is none that could be read."""
    try:
        descriptor = os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, HEAD) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:  # of /proc/self/mem, for instance
        return None
    finally:
        os.close(descriptor)


def read_script(path: str) -> Script:
    """Read a script and its directives.

    Raises:
        BadInput: the file is no batch script, or a directive cannot be split into words.
    """
    remedy, too_large = "name a script that you may read", "submit a program: tenbin submit -- CMD..."
    content = read_input(path, Path(path), LARGEST, remedy=remedy, too_large=too_large)
    if b"\0" in content:
        raise BadInput(f"{path} contains a zero byte: it is no script", "submit it as a program, after --")
    if b"\r\n" in content:
        raise BadInput(f"{path} has DOS line breaks (\\r\\n)", f"take them out: sed -i 's/\\r$//' {path}")
    text = content.decode(errors="surrogateescape")
    return Script(path, content, tuple(_directives(path, text)))


def _directives(path: str, text: str) -> list[Directive]:
    """Find the directives; the first line that is neither empty nor a comment ends them."""
    directives: list[Directive] = []
    ignores_others, others = False, 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(SBATCH):
            words = _sbatch_words(line.removeprefix(SBATCH), f"{path}, line {number}")
            if words and words[0] in HETEROGENEOUS:
                raise BadInput(
                    f"{path}, line {number}: {SBATCH} {words[0]}: tenbin has no jobs of several components",
                    "submit a script for each",
                )
            ignores_others = ignores_others or "--ignore-pbs" in words
            directives.append(Directive(SBATCH, number, tuple(words)))
        elif line.startswith(TENBIN):
            directives.append(Directive(TENBIN, number, _tenbin_words(line, f"{path}, line {number}")))
        elif line.startswith(OTHERS):
            others = others or number
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    if others and not ignores_others and any(directive.kind == SBATCH for directive in directives):
        raise BadInput(
            f"{path}, line {others}: sbatch would read this line too, tenbin does not",
            f"remove it, or write: {SBATCH} --ignore-pbs",
        )
    return directives


def _tenbin_words(line: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(line.removeprefix(TENBIN), comments=True))
    except ValueError as error:
        raise BadInput(f"{where}: {TENBIN}: {error}", "close the quotation mark") from error


def _sbatch_words(text: str, where: str) -> list[str]:
    """Split a line into words by sbatch's own rules, which are not those of a shell.

    Quotation marks of either kind group. A backslash takes the next character as it is, but a blank outside
    of quotation marks ends the word all the same. An unquoted ``#`` ends the line, even inside a word.
    """
    words: list[str] = []
    rest = text
    while True:
        rest = rest.lstrip()
        if not rest or rest[0] == "#":
            return words
        if rest[0] == ":":
            raise BadInput(f"{where}: {SBATCH}: a colon begins a word", "submit a script for each component")
        word, rest = _word(rest, where)
        words.append(word)


def _word(text: str, where: str) -> tuple[str, str]:
    """Read the first word of a text; return the word and what follows."""
    word, quote, escaped = "", "", False
    for place, letter in enumerate(text):
        if not quote and letter.isspace():
            return word, text[place:]
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "\"'":
            quote = letter
        elif letter == "#":
            return word, text[place:]
        else:
            word += letter
    if quote:
        raise BadInput(f"{where}: {SBATCH}: a quotation mark ({quote}) is not closed", "close it")
    return word, ""
