"""The error of ``tenbin.Client``. This module imports nothing, because every command imports it."""

NO_ANSWER = 4  # exit code of a call that no coordinator answers


class TenbinError(Exception):
    """A coordinator that cannot be reached (exit code 4) or refuses (2); the text says what to do.

    Attributes:
        place: of jobs that were submitted together, the one that was refused, from 0 on; None: not of one.
        reason: the text without that place.
    """

    def __init__(self, text: str, exit_code: int = 1, place: int | None = None, reason: str = "") -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.place, self.reason = place, reason
