"""The error of ``tenbin.Client``. This module imports nothing, because every command imports it."""


class TenbinError(Exception):
    """A coordinator that cannot be reached (exit code 4) or refuses (2); the text says what to do."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code
