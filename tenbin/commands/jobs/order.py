"""The options of ``tenbin submit`` that say when a job runs: after others, at a time, and once more."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts import sbatch_times
from tenbin.commands.quantities import BadOption, duration_s

TIMES = "write for instance 16:00, tomorrow, now+1h or 2026-12-24T08:00"


def order_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a JobSpec that these options are about.

    Args:
        options: by the names of the parameters of ``tenbin submit``; those that are missing are not given.

    Raises:
        BadOption: a value cannot be read.
    """
    found: dict[str, Any] = {
        kind: _numbers(f"--{kind.replace('_', '-')}", options.get(kind) or (), options.get("home"))
        for kind in ("after", "after_any", "after_not_ok", "after_corr")
    }
    if begin := options.get("begin"):
        found["begin_s"] = begin_s(begin)
    if deadline := options.get("deadline"):
        found["deadline_s"] = deadline_s(deadline)
    retries = options.get("retries") or 0
    if retries:
        found["retries"] = retries
    for name, field, read in (
        ("retry_on", "retry_codes", exit_codes),
        ("retry_pause", "retry_pause_s", retry_pause_s),
    ):
        if text := options.get(name):
            if not retries:
                option = "--" + name.replace("_", "-")
                raise BadOption(option, "without --retries", "say how often: --retries 3")
            found[field] = read(text)
    return found


def _numbers(option: str, words: Sequence[str], home: Path | None) -> list[int]:
    """Read jobs to wait for; the coordinator knows what all but plain numbers mean.

    Raises:
        BadOption: there are none.
        TenbinError: the coordinator does not answer, or a word is no job to it.
    """
    from scheduler.jobs.choice.selectors import read_selector
    from tenbin.client.client import Client
    from tenbin.commands.jobs.selection import select

    numbers: list[int] = []
    for word in words:
        if re.fullmatch(r"\d{1,18}", word):
            numbers.append(int(word))
            continue
        try:
            read_selector(word)
        except BadInput as error:
            raise BadOption(option, error.what, error.remedy) from error
        chosen = select(Client(home), [word], members=False).ids
        if not chosen:
            raise BadOption(option, f"{word}: there is no such job", "see: tenbin jobs --all")
        numbers += chosen
    return list(dict.fromkeys(numbers))


def begin_s(text: str) -> float | None:
    """Read ``--begin`` as seconds since 1970; None: at once."""
    return _instant_s("--begin", text)


def deadline_s(text: str) -> float:
    """Read ``--deadline`` as seconds since 1970."""
    at = _instant_s("--deadline", text)
    if at is None:
        raise BadOption("--deadline", f"{text!r} has passed", "name a later time, for instance now+1h")
    return at


def _instant_s(option: str, text: str) -> float | None:
    """Read an instant as sbatch does, and ``now+`` any duration; None: it is now or has passed."""
    if text.startswith("now+"):
        with suppress(BadOption):
            return time.time() + duration_s(text.removeprefix("now+"))
    try:
        return sbatch_times.instant_s(text, datetime.now())
    except (ValueError, OverflowError) as error:
        raise BadOption(option, f"{text!r} is no time", TIMES) from error


def exit_codes(text: str) -> list[int]:
    """Read ``1,137`` as exit codes."""
    codes = [int(part) if re.fullmatch(r"\s*\d{1,3}\s*", part) else 0 for part in text.split(",")]
    if not all(1 <= code <= 255 for code in codes):
        raise BadOption(
            "--retry-on", f"{text!r} is no list of exit codes", "write numbers from 1 to 255: 1,137"
        )
    return codes


def retry_pause_s(text: str) -> float:
    """Read the first pause before a job that has failed is tried again, in seconds."""
    return duration_s(text, "--retry-pause")
