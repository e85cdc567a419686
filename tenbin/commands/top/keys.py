"""The keys of ``tenbin top``; ``?`` shows them."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """Names of one key, and its purpose."""

    names: tuple[str, ...]
    purpose: str


MOVES = (
    Key(("up", "k"), "one line up"),
    Key(("down", "j"), "one line down"),
    Key(("pageup",), "one screen up"),
    Key(("pagedown",), "one screen down"),
    Key(("home", "g"), "to the first line"),
    Key(("end", "G"), "to the last line"),
)
LIST = (
    Key(("enter",), "open: the jobs of an array, or all about a job"),
    Key(("escape",), "go back"),
    Key(("e",), "explain: why it waits, what it uses now, its story, predictions"),
    Key(("t",), "the end of its standard output, as it comes"),
    Key(("T",), "the end of its standard error"),
    Key(("n",), "nodes: what is free, jobs, regions"),
    Key(("/",), "filter: fit name=fit* state=held place=node1 user=ann since=2h"),
    Key(("s",), "next order: queue, since, name, stage, cores, place, user, id"),
    Key(("S",), "reverse the order"),
    Key(("a",), "also jobs that have ended (the last 1,000), or not"),
    Key(("space",), "mark a job, or unmark it"),
    Key(("*",), "mark all that are listed (the first 1,000)"),
    Key(("u",), "unmark all"),
    Key(("c",), "cancel the marked jobs, else the job under the cursor"),
    Key(("p",), "suspend (pause) them; their cores are free for others"),
    Key(("r",), "resume them"),
    Key(("R",), "retry those that did not succeed"),
    Key(("m",), "migrate them to another device or node"),
    Key(("P",), "change their priority; the higher is first"),
    Key(("?",), "these keys"),
    Key(("q",), "end tenbin top; jobs and coordinator go on"),
)


def key_lines() -> list[str]:
    """Write a line for each key."""
    return [f"{' '.join(key.names):>12}  {key.purpose}" for key in (*MOVES, *LIST)]
