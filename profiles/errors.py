"""Errors that a user meets: a line that says what is wrong, and what to do next."""

INTERRUPTED = 130  # exit code of what Ctrl-C ended, as shells have it


class UserError(Exception):
    """An error that the user can act on; printed as one line, without a traceback.

    Args:
        what: the problem, with file or field.
        remedy: the next step.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class BadInput(UserError):
    """An argument, a file or a field that cannot be used."""

    exit_code = 2


class Busy(UserError):
    """A resource is held by another process (another profile on this node)."""

    exit_code = 3


class Unavailable(UserError):
    """A resource that this machine lacks (no OpenCL platform, no power meter)."""

    exit_code = 4
