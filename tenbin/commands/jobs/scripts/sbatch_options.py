"""The options of sbatch (Slurm 22.05), and what tenbin does with each: take it, leave it out, or refuse it.

Taken is what tenbin can do. Left out, with a line, is what concerns the site or tells people something, and
what tenbin does anyway is left out silently. Refused is what would change the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from profiles.errors import BadInput
from scheduler.model.parameters import unknown
from tenbin.fields import SBATCH_WORDS

Value = Literal["", "needed", "optional"]


class Taken(NamedTuple):
    """An option that tenbin can do; ``scheduler/jobs/fields.py`` says which of its own goes before it.

    Attributes:
        short: its letter. value: whether it takes one.
        ours: what to write on tenbin's own command line, where that is not the option of the field.
    """

    short: str = ""
    value: Value = "needed"
    ours: str = ""


GPU = Taken(ours="--device gpu, one for each task")
TAKEN: dict[str, Taken] = {
    "array": Taken("a"),
    "begin": Taken("b"),
    "chdir": Taken("D"),
    "cpus-per-task": Taken("c"),
    "deadline": Taken(),
    "dependency": Taken("d", ours="--after JOB, --after-any, --after-not-ok or --after-corr"),
    "error": Taken("e"),
    "export": Taken(ours="--env NAME=VALUE; all variables of this shell are handed on anyway"),
    "gpus": GPU._replace(short="G"),
    "gpus-per-node": GPU,
    "gpus-per-task": GPU,
    "gres": GPU,
    "job-name": Taken("J"),
    "mem": Taken(ours="--memory, of each task"),
    "mem-per-cpu": Taken(ours="--memory, of each task"),
    "nice": Taken(value="optional", ours="--priority, with the sign turned"),
    "no-requeue": Taken(value="", ours="--no-requeue"),
    "nodes": Taken("N", ours="--nodes for whole nodes, or -n TASKS"),
    "ntasks": Taken("n"),
    "ntasks-per-node": Taken(ours="-n, the number of all tasks"),
    "output": Taken("o"),
    "requeue": Taken(value="", ours="--requeue"),
    "test-only": Taken(value="", ours="--dry-run"),
    "time": Taken("t", ours="--time, where a number alone is in seconds: 90s, 10m, 1:30:00"),
    "wait": Taken("W", "", "--wait"),
}
SAME = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}
SILENT: dict[str, tuple[str, Value]] = {
    "help": ("h", ""),
    "ignore-pbs": ("", ""),
    "parsable": ("", ""),
    "quiet": ("Q", ""),
    "usage": ("", ""),
    "verbose": ("v", ""),
    "version": ("V", ""),
}
SITE = "of the site's Slurm only"
NOTED = "tenbin keeps no such note"
PLACE = "tenbin chooses the place itself"
WHOLE = "for jobs on several nodes only"
SHARE = "the job has its cores to itself all the same"
LEFT_OUT: dict[str, tuple[str, Value, str]] = {
    "account": ("A", "needed", SITE),
    "acctg-freq": ("", "needed", "tenbin samples at its own times"),
    "bb": ("", "needed", "tenbin has no burst buffers"),
    "bbf": ("", "needed", "tenbin has no burst buffers"),
    "clusters": ("M", "needed", SITE),
    "cluster-constraint": ("", "needed", SITE),
    "comment": ("", "needed", NOTED),
    "contiguous": ("", "", WHOLE),
    "delay-boot": ("", "needed", SITE),
    "distribution": ("m", "needed", PLACE),
    "get-user-env": ("", "optional", "the job has the variables of this shell"),
    "gpu-bind": ("", "needed", PLACE),
    "gres-flags": ("", "needed", PLACE),
    "mail-type": ("", "needed", "tenbin sends no mail (see: tenbin wait)"),
    "mail-user": ("", "needed", "tenbin sends no mail (see: tenbin wait)"),
    "mcs-label": ("", "needed", SITE),
    "mem-bind": ("", "needed", PLACE),
    "network": ("", "needed", SITE),
    "no-kill": ("k", "optional", WHOLE),
    "open-mode": ("", "needed", "tenbin always appends to files of output"),
    "oversubscribe": ("s", "", SHARE),
    "partition": ("p", "needed", SITE),
    "power": ("", "needed", SITE),
    "prefer": ("", "needed", "a wish, and tenbin knows no features of nodes"),
    "priority": ("", "needed", "numbers of Slurm's own; tenbin has --priority"),
    "profile": ("", "needed", "tenbin info --samples shows what a job used"),
    "propagate": ("", "optional", "limits are those of whoever started tenbin up"),
    "qos": ("q", "needed", SITE),
    "reservation": ("", "needed", SITE),
    "spread-job": ("", "", WHOLE),
    "switches": ("", "needed", WHOLE),
    "time-min": ("", "needed", "the limit is that of --time"),
    "use-min-nodes": ("", "", WHOLE),
    "wait-all-nodes": ("", "needed", WHOLE),
    "wckey": ("", "needed", SITE),
}
FEATURES = "tenbin knows no features of nodes"
SHAPE = "tenbin gives whole cores, and does not choose among sockets and threads"
WHERE = "tenbin chooses the nodes"
REFUSED: dict[str, tuple[str, Value, str]] = {
    "batch": ("", "needed", FEATURES),
    "constraint": ("C", "needed", FEATURES),
    "container": ("", "needed", "tenbin starts no containers; start it in the script"),
    "core-spec": ("S", "needed", SHAPE),
    "cores-per-socket": ("", "needed", SHAPE),
    "cpu-freq": ("", "needed", "tenbin sets no frequencies for a job"),
    "cpus-per-gpu": ("", "needed", "say how many cores a task needs: --cpus-per-task"),
    "exclude": ("x", "needed", WHERE),
    "exclusive": ("", "optional", "for whole nodes write #TENBIN --nodes"),
    "export-file": ("", "needed", "read the file in the script"),
    "extra-node-info": ("B", "needed", SHAPE),
    "gid": ("", "needed", "jobs run as whoever started tenbin up"),
    "gpu-freq": ("", "needed", "tenbin sets no frequencies for a job"),
    "gpus-per-socket": ("", "needed", SHAPE),
    "hint": ("", "needed", SHAPE),
    "hold": ("H", "", "submit without it, then: tenbin suspend"),
    "input": ("i", "needed", "redirect the input in the script"),
    "kill-on-invalid-dep": ("", "needed", "a job whose jobs before it fail is cancelled"),
    "licenses": ("L", "needed", "tenbin counts no licences"),
    "mem-per-gpu": ("", "needed", "say how much memory the job needs: --mem"),
    "mincpus": ("", "needed", "say how many cores a task needs: --cpus-per-task"),
    "nodefile": ("F", "needed", WHERE),
    "nodelist": ("w", "needed", WHERE),
    "ntasks-per-core": ("", "needed", SHAPE),
    "ntasks-per-gpu": ("", "needed", SHAPE),
    "ntasks-per-socket": ("", "needed", SHAPE),
    "ntasks-per-tres": ("", "needed", SHAPE),
    "overcommit": ("O", "", "tenbin gives each task cores of its own"),
    "reboot": ("", "", "tenbin reboots no nodes"),
    "signal": ("", "needed", "tenbin sends SIGTERM at the limit only, ten seconds before SIGKILL"),
    "sockets-per-node": ("", "needed", SHAPE),
    "thread-spec": ("", "needed", SHAPE),
    "threads-per-core": ("", "needed", SHAPE),
    "tmp": ("", "needed", "tenbin does not count disk space"),
    "tres-per-task": ("", "needed", "say what a task needs: --cpus-per-task, --gpus-per-task"),
    "uid": ("", "needed", "jobs run as whoever started tenbin up"),
    "wrap": ("", "needed", "a command is given by itself: tenbin submit -- sh -c 'CMD'"),
}
TABLES: tuple[Mapping[str, tuple[Any, ...]], ...] = (TAKEN, LEFT_OUT, REFUSED, SILENT)
KINDS: dict[str, Value] = {
    **{name: entry[1] for table in TABLES for name, entry in table.items()},
    **dict.fromkeys(SAME, "needed"),
}
SHORT = {entry[0]: name for table in TABLES for name, entry in table.items() if entry[0]}


def of_tenbin(option: str) -> BadInput | None:
    """Make the error for an option of sbatch on tenbin's own command line; None: sbatch has none such.

    Args:
        option: as it was written, without its value: ``-t``, ``--gres``.
    """
    written = option.lstrip("-")
    name = SHORT.get(written, "") if len(written) == 1 else SAME.get(written, written)
    what = f"{option} is an option of sbatch" + (f" (--{name})" if option != f"--{name}" else "")
    if taken := TAKEN.get(name):
        return BadInput(what, f"write {taken.ours or SBATCH_WORDS[name].spelling[-1]}")
    if name in SILENT:
        return BadInput(what, "leave it out")
    if left_out := LEFT_OUT.get(name):
        return BadInput(f"{what}: {left_out[2]}", "leave it out")
    if refused := REFUSED.get(name):
        return BadInput(f"{what}: {refused[2]}", "leave it out, or see: tenbin submit --help")
    return None


class Given(NamedTuple):
    """An option as a script gives it."""

    name: str
    value: str | None
    where: str

    def wrong(self, why: str) -> BadInput:
        """Make the error for a value that cannot be read or taken."""
        return BadInput(f"{self.where}: #SBATCH {self}: {why}", remedy(self.name))

    def __str__(self) -> str:
        return f"--{self.name}" + (f"={self.value}" if self.value is not None else "")


def remedy(name: str) -> str:
    """Name the ways on from an option that is refused."""
    return f"change or remove the line, or add: #TENBIN --ignore-sbatch {name}"


def options(words: Sequence[str], where: str) -> Iterator[Given]:
    """Read words as getopt_long does: ``-n 4``, ``-n4``, ``--ntasks=4``, ``--ntasks 4``, unique beginnings.

    Raises:
        BadInput: sbatch has no such option, or its value is missing.
    """
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--") and word != "--":
            text, sign, value = word[2:].partition("=")
            name = _whole_name(text, where)
            yield _given(name, value if sign else None, left, where)
        elif word.startswith("-") and word not in ("-", "--"):
            yield from _short(word[1:], left, where)
        else:
            raise BadInput(
                f"{where}: #SBATCH: {word!r} is no option of sbatch",
                "write --option=value without blanks around =, and a comment after #",
            )


def _short(letters: str, left: list[str], where: str) -> Iterator[Given]:
    """Read short options that stand together; the first that takes a value takes the rest of the word."""
    while letters:
        if letters[0] not in SHORT:
            raise BadInput(f"{where}: #SBATCH -{letters[0]}: sbatch has no such option", "see: man sbatch")
        name, letters = SHORT[letters[0]], letters[1:]
        value, letters = (letters or None, "") if KINDS[name] else (None, letters)
        yield _given(name, value, left, where)


def _given(name: str, value: str | None, left: list[str], where: str) -> Given:
    if KINDS[name] == "needed" and value is None and left:
        value = left.pop(0)
    if (KINDS[name] == "needed" and not value) or (value is not None and not KINDS[name]):
        what = "needs a value" if KINDS[name] else "takes no value"
        raise BadInput(f"{where}: #SBATCH --{name} {what}", "see: man sbatch")
    return Given(SAME.get(name, name), value, where)


def _whole_name(text: str, where: str) -> str:
    """Find the option whose name is, or alone begins with, the text."""
    if text in KINDS:
        return text
    found = sorted({SAME.get(name, name) for name in KINDS if text and name.startswith(text)})
    if len(found) > 1:
        names = ", ".join(f"--{name}" for name in found)
        raise BadInput(f"{where}: #SBATCH --{text} may be {names}", "write the whole name")
    if not found:
        error = unknown("option of sbatch", text, KINDS)
        near = error.remedy.partition("there are:")[0].strip() or "see: man sbatch"
        raise BadInput(f"{where}: #SBATCH --{text}: sbatch has no such option", near)
    return found[0]
