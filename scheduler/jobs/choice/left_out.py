"""Jobs that a change does not apply to, and that its user did not insist on."""

from __future__ import annotations

from typing import NamedTuple


class LeftOut(NamedTuple):
    """A job, or an array, that a change leaves out.

    Attributes:
        label: what users call it. reason: why, as a clause or a sentence without the label.
        sentence: all of it.
    """

    label: str
    reason: str
    sentence: str
