"""The part of the queue that is asked for: filters, order, and window."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from profiles.errors import BadInput
from tenbin.commands.jobs.columns import chosen_states
from tenbin.commands.jobs.jobs import STATES
from tenbin.option_values import past_instant

ORDERS = ("queue", "since", "name", "stage", "cores", "place", "user", "id")
ENDED = 1000  # jobs that have ended, the last ones
FIELDS = ("name", "state", "place", "user", "since")


@dataclass(frozen=True)
class Query:
    """The list of jobs that is wanted.

    Attributes:
        text: the filter as the user wrote it. filters: as the API takes it.
        everything: also jobs that have ended.
        array: only the members of this array, each in a row.
    """

    text: str = ""
    filters: Mapping[str, Any] = field(default_factory=dict)
    order: str = ORDERS[0]
    reverse: bool = False
    everything: bool = False
    array: int | None = None

    def path(self, start: int, rows: int) -> str:
        """Return the path of the request for these rows."""
        given: dict[str, Any] = {**self.filters, "order": self.order, "start": start, "rows": rows}
        if self.array is not None:
            given["array"] = self.array
        flags = {"reverse": self.reverse, "all": self.everything, "members": self.array is not None}
        given |= {name: str(value).lower() for name, value in flags.items()}
        return f"/queue?{urlencode({**given, 'limit': ENDED}, doseq=True)}"

    def words(self) -> str:
        """Say what is listed, and in which order."""
        parts = [f"by {self.order}{', reversed' if self.reverse else ''}"]
        parts += [f"jobs of array {self.array}"] if self.array is not None else []
        parts += ["also ended ones"] if self.everything else []
        parts += [f"filter: {self.text}"] if self.text else []
        return "; ".join(parts)

    def next_order(self) -> Query:
        """Return the same list in the next order."""
        return replace(self, order=ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)], reverse=False)

    def filtered(self, text: str) -> Query:
        """Return the list with another filter.

        Raises:
            BadInput: the filter cannot be read.
        """
        return replace(self, text=text.strip(), filters=read_filter(text))


def read_filter(text: str) -> dict[str, Any]:
    """Read ``fit name=fit* state=running,held``; a word alone is a part of the name, or its pattern."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"filter {text!r}: {error}", "write for instance name='my fit*'") from error
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            name, value = "name", word if any(c in word for c in "*?[") else f"*{word}*"
        if name not in FIELDS:
            raise BadInput(f"filter {name!r} is not known", f"one of {', '.join(FIELDS)}")
        if name == "state":
            found["stages"] = chosen_states(value, STATES)
        elif name == "since":
            found["since_s"] = past_instant(value, "since")
        else:
            found[name] = value
    return found
