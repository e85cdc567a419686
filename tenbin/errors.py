"""The error of ``tenbin.Client``; a module of its own because it must import nothing."""


class TenbinError(Exception):
    """The coordinator cannot be reached (exit code 4), or refuses (2): one line that says what to do."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code
