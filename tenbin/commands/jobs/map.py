"""``tenbin map``: one command with many arguments, in the style of GNU parallel."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import BadInput
from tenbin.commands.jobs.submit import (
    CommandWithFields,
    spec_of,
    with_fields,
)
from tenbin.commands.options import HomeOption, client_of, read_input
from tenbin.text import label, printable, remark

if TYPE_CHECKING:
    from tenbin.client.client import Client

# -- arguments: words after ``:::``, lines of files after ``::::``, all combinations -----------------------


SEPARATORS = (":::", "::::", ":::+", "::::+")
STANDARD_INPUT = "-"
MOST = 100_000  # members of an array
LARGEST = 64 << 20  # bytes of a file
EXAMPLE = "tenbin map -- CMD {} ::: a b c"

Arguments = tuple[str, ...]


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the command, and the sources of arguments that follow."""
    first = next((place for place, word in enumerate(words) if word in SEPARATORS), len(words))
    return list(words[:first]), list(words[first:])


def combinations(words: Sequence[str]) -> list[Arguments]:
    """Return the arguments of each job: all combinations of the sources, of which the last varies first.

    A source with ``+`` is linked to the source before: the first of one goes with the first of the other, and
    the shorter source ends both. Without any source the lines of standard input are the arguments.

    Raises:
        BadInput: a source is empty or cannot be read, or there are too many combinations.
    """
    groups: list[list[Arguments]] = []
    for separator, values in _sources(words):
        if not separator.endswith("+"):
            groups.append([(value,) for value in values])
        elif not groups:
            raise BadInput(f"{separator} has no source before it to be linked to", f"write {separator[:-1]}")
        else:
            groups[-1] = [(*some, value) for some, value in zip(groups[-1], values, strict=False)]
    combined = [sum(parts, ()) for parts in islice(product(*groups), MOST + 1)]
    if len(combined) > MOST:
        raise BadInput(f"more than {MOST:,} combinations of arguments", "submit them in parts")
    return combined


def _sources(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each source's separator and values; each file after ``::::`` is a source of its own."""
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            raise BadInput("no arguments for the command", EXAMPLE)
        return [(":::", _lines(STANDARD_INPUT))]
    parsed: list[tuple[str, list[str]]] = []
    for word in words:
        if word in SEPARATORS:
            parsed.append((word, []))
        else:
            parsed[-1][1].append(word)
    sources: list[tuple[str, list[str]]] = []
    for separator, values in parsed:
        if not values:
            what = "file" if separator.startswith("::::") else "argument"
            raise BadInput(f"{separator} without {what}s", EXAMPLE)
        if separator.startswith("::::"):
            sources += [(separator, _lines(name)) for name in values]
        else:
            sources.append((separator, values))
    return sources


def _lines(name: str) -> list[str]:
    """Read the lines of a file, or of standard input (``-``), whatever their bytes."""
    said = "standard input" if name == STANDARD_INPUT else name
    file = None if name == STANDARD_INPUT else Path(name)
    remedy = "name a file with an argument on each line"
    content = read_input(said, file, LARGEST, remedy=remedy, too_large="submit it in parts")
    if not content:
        raise BadInput(f"{said} has no arguments", "write an argument on each line")
    if b"\0" in content:
        raise BadInput(f"{said} contains a zero byte", "write an argument on each line")
    return [os.fsdecode(line) for line in content.removesuffix(b"\n").split(b"\n")]


# -- the template, in which ``{}`` and its kin stand for arguments as GNU parallel has them ----------------


REPLACEMENT = re.compile(r"\{(-?[0-9]+|)(\.|//|/\.|/|#|%|=.*?=|)\}", re.DOTALL)
KNOWN = "{}, {.}, {/}, {//}, {/.}, {#}, and with a number: {1}, {2/}"


def check(command: Sequence[str], sources: int) -> None:
    """Refuse a command that is none, or whose replacements cannot be made of so many arguments.

    Raises:
        BadInput: names the word.
    """
    if not command:
        raise BadInput("no command before the arguments", "tenbin map -- CMD {} ::: a b c")
    for word in command:
        for match in REPLACEMENT.finditer(word):
            place, form = match.groups()
            if form.startswith(("%", "=")) or (place and form == "#"):
                raise BadInput(f"{match[0]!r} is a replacement that tenbin does not have", f"use {KNOWN}")
            if place and not 1 <= abs(int(place)) <= sources:
                have = "is 1 source" if sources == 1 else f"are {sources} sources"
                raise BadInput(f"{match[0]!r}: there {have} of arguments", "count from {1}")


def expand(command: Sequence[str], arguments: Sequence[str], number: int) -> list[str]:
    """Put the arguments of a job into the command; a command without any replacement gets them at its end.

    Args:
        number: of the job, for ``{#}``, from 1 on.
    """
    if not any(REPLACEMENT.search(word) for word in command):
        command = [*command, "{}"]
    return [made for word in command for made in _words(word, arguments, number)]


def _words(word: str, arguments: Sequence[str], number: int) -> list[str]:
    """Replace in one word; of several arguments ``a{}b`` makes several words, from ``a`` to ``b``."""
    words, end = [""], 0
    for match in REPLACEMENT.finditer(word):
        first, *others = _values(match[1], match[2], arguments, number)
        words[-1] += word[end : match.start()] + first
        words += others
        end = match.end()
    words[-1] += word[end:]
    return words


def _values(place: str, form: str, arguments: Sequence[str], number: int) -> Sequence[str]:
    if form == "#":
        return [str(number)]
    chosen = arguments
    if place:
        chosen = [arguments[int(place) - (int(place) > 0)]]
    return [FORMS[form](argument) for argument in chosen]


def _without_extension(text: str) -> str:
    return re.sub(r"\.[^/.]*$", "", text, count=1)


def _base_name(text: str) -> str:
    return re.sub(r".*/", "", text, count=1)


def _folder(text: str) -> str:
    """Return the folder of a path as Perl's ``File::Basename::dirname`` does: of ``a/b/`` it is ``a``."""
    folder, name = _parse(text)
    if not name:
        folder, _ = _parse(_without_slashes(folder))
    return _without_slashes(folder)


def _parse(path: str) -> tuple[str, str]:
    folder, slash, name = path.rpartition("/")
    return (folder + slash) or "./", name


def _without_slashes(path: str) -> str:
    return path[:1] + path[1:].rstrip("/")


FORMS: dict[str, Callable[[str], str]] = {
    "": str,
    ".": _without_extension,
    "/": _base_name,
    "//": _folder,
    "/.": lambda text: _without_extension(_base_name(text)),
}


# -- the script that every member of the array runs: one line for each member's command --------------------


LARGEST_SCRIPT = 4 << 20  # bytes, of a script
NEWLINE = "TENBIN_NEWLINE"
HEAD = f"""#!/bin/sh
# Written by tenbin map. Each line from 8 on is the command of one job; TENBIN_ARRAY_INDEX counts them from 1.
{NEWLINE}='
'
eval "$(LC_ALL=C sed -n "$((TENBIN_ARRAY_INDEX + 7)){{p;q;}}" "$0")"
exit 126

"""


def script_of(commands: Iterable[list[str]]) -> bytes:
    """Write the script; its arguments come to each command as they are, whatever their bytes.

    Raises:
        BadInput: a command cannot be started so, or all are too long together.
    """
    script = b"".join([HEAD.encode(), *map(_line, commands)])
    if len(script) > LARGEST_SCRIPT:
        raise BadInput(
            f"the commands have more than {LARGEST_SCRIPT >> 20} MiB together", "submit them in parts"
        )
    return script


def _line(command: list[str]) -> bytes:
    from scheduler.jobs.files import check_length

    if not command[0] or command[0].startswith("-"):
        raise BadInput(f"{command[0]!r} is no program", "give its name, or its path")
    for word in command:
        check_length(f"{word[:40]!r}...", word)
    words = (f'"${NEWLINE}"'.join(map(shlex.quote, word.split("\n"))) for word in command)
    return os.fsencode(f"exec {' '.join(words)}\n")


# -- outputs, printed job by job as they end ---------------------------------------------------------------


LONGEST_WAIT_S = 60.0
LOOKED_AT = (
    500  # jobs at once, because each end of any job makes the coordinator look at all that are waited for
)
MOST_FAILURES = 101  # as GNU parallel: the exit code of more than 100


@dataclass
class Outputs:
    """Prints the output of jobs.

    Attributes:
        commands: of each job, in the order of ``ids``.
        ordered: print in that order, else as the jobs end.
        streams: to print; others go to files that the user has named.
    """

    client: Client
    ids: Sequence[int]
    commands: Sequence[list[str]]
    ordered: bool
    streams: Sequence[str]

    def print_all(self) -> int:
        """Wait for all jobs and print their output; return the number of those that did not succeed."""
        failures = 0
        for job in self._in_order() if self.ordered else self._ends():
            self._print(job)
            failures += job["stage"] != "done"
        return failures

    def _ends(self) -> Iterator[dict[str, Any]]:
        """Yield jobs as they end."""
        waiting = dict.fromkeys(self.ids)
        while waiting:
            for job in self.client.ended(list(waiting)[:LOOKED_AT], LONGEST_WAIT_S):
                del waiting[job["id"]]
                yield job

    def _in_order(self) -> Iterator[dict[str, Any]]:
        """Yield jobs in the order of their arguments."""
        ended: dict[int, dict[str, Any]] = {}
        ends = self._ends()
        for job_id in self.ids:
            while job_id not in ended:
                job = next(ends)
                ended[job["id"]] = job
            yield ended.pop(job_id)

    def _print(self, job: dict[str, Any]) -> None:
        files: dict[str, IO[bytes]] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        for stream in self.streams:
            for part in self.client.job(job["id"]).output(stream):
                files[stream].write(part)
            files[stream].flush()
        if job["stage"] != "done":
            command = shlex.join(self.commands[job["id"] - self.ids[0]])
            reason = f": {job['trouble']}" if job["trouble"] else ""
            remark(f"job {label(job)} {job['stage']}{reason}: {command}")

    @contextmanager
    def cancelled_by_interrupt(self) -> Iterator[None]:
        """Cancel all jobs that have not ended if an interrupt comes."""
        try:
            yield
        except KeyboardInterrupt:
            self.client.change("cancel", [], self.ids)
            remark("interrupted; all jobs that had not ended are cancelled")
            raise


# -- the command: its options are those of ``tenbin submit``, and its own ----------------------------------


class MapCommand(CommandWithFields):
    """The command ``map``: arguments stand after ``--``."""

    def parse(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Read the options; what is not of them stands after ``--``."""
        given, left = list(args), super().parse(ctx, args)
        words = ctx.params.get("words") or ()
        if not ctx.resilient_parsing and ("--" not in given or len(words) >= len(given) - given.index("--")):
            what = f"{words[0]!r} stands before --" if words and "--" in given else "no -- before the command"
            raise BadInput(what, "tenbin map [OPTIONS] -- CMD {} ::: a b c")
        return left


CommandClass = MapCommand  # of ``tenbin.cli``


@with_fields(after="home", leave_out={"array"})
def map_(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- CMD... ::: ARGUMENT...")] = None,
    *,
    most: Annotated[int | None, typer.Option("--jobs", "-j", min=1, metavar="N")] = None,
    keep_order: Annotated[bool, typer.Option("--keep-order", "-k")] = False,
    no_wait: bool = False,
    dry_run: bool = False,
    home: HomeOption = None,
    **fields: Any,
) -> None:
    """Run a command with many arguments, each as a job of one array, in the style of GNU parallel.

    Waits for all and prints the output of each when it has ended. The exit code is the number of jobs that
    failed, 101 for more than 100. Ctrl-C cancels the array. No shell reads the command (docs/other-tools.md).

    [bold]Examples[/bold]

      tenbin map -- gzip -9 ::: *.csv

      tenbin map -c 4 --time 1h -- ./fit --in {} --out {/.}.json :::: files.txt

      tenbin map -k -- ./simulate --seed {1} --size {2} ::: 1 2 3 ::: 10 100

    Args:
        words: After -- a command with {} for an argument, and the arguments: ::: WORDS, :::: FILES of lines,
            or the lines of standard input.
        most: Run at most so many at once.
        keep_order: Print the outputs in the order of the arguments.
        no_wait: Print the number of the array, and wait for nothing.
        dry_run: Only check, and print the commands.
    """
    from scheduler.jobs.files import check_program
    from tenbin.commands.jobs.job_file import checked

    command, of_arguments = split(words or [])
    if not command:
        check(command, 0)
    combined = combinations(of_arguments)
    check(command, len(combined[0]))
    commands = [expand(command, arguments, number) for number, arguments in enumerate(combined, 1)]
    script = script_of(commands)
    spec = spec_of(fields, ["map", *command], home)  # the script leaves these words alone; people see them
    for program in dict.fromkeys(words[0] for words in commands):
        check_program(program, spec["folder"], spec["env"].get("PATH"))
    spec["name"] = spec["name"] or Path(command[0]).name
    spec["array_limit"] = most
    if dry_run:
        checked(spec, "job 1")
        for argv in commands:
            print(printable(shlex.join(argv)))
        return
    client = client_of(home)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the numbers of the jobs are known
    answer = client.hand_over([spec], arrays={0: range(1, len(commands) + 1)}, script=script)
    if no_wait:
        print(answer["arrays"][0])
        return
    streams = [stream for stream in ("stdout", "stderr") if not spec[stream]]
    outputs = Outputs(client, answer["ids"], commands, keep_order, streams)
    with outputs.cancelled_by_interrupt():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise typer.Exit(min(outputs.print_all(), MOST_FAILURES))
