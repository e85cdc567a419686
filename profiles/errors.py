"""Errors that a user meets: a line that says what is wrong, and what to do next."""

import errno

INTERRUPTED = 130  # exit code of what Ctrl-C ended, as shells have it
WORDS = {  # pydantic's words, and those of this project
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be greater than or equal to ": "must be at least ",
    "Input should be less than or equal to ": "must be at most ",
    "Input should be greater than ": "must be more than ",
    "Input should be less than ": "must be less than ",
    "Input should be ": "must be ",
    "Field required": "is missing",
    "Extra inputs are not permitted": "is no field",
    **{f"{kind} should have ": "must have " for kind in ("String", "List", "Tuple", "Dictionary")},
    " after validation": "",
}


def plain(text: str) -> str:
    """Say what pydantic says in plain words."""
    for theirs, ours in WORDS.items():
        text = text.replace(theirs, ours)
    return text


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


class Interrupted(UserError):
    """Ctrl-C before there was anything to keep."""

    exit_code = INTERRUPTED


class BadInput(UserError):
    """An argument, a file or a field that cannot be used."""

    exit_code = 2


class Busy(UserError):
    """A resource is held by another process (another profile on this node)."""

    exit_code = 3


class Unavailable(UserError):
    """A resource that this machine lacks (no OpenCL platform, no power meter)."""

    exit_code = 4


def unwritable(place: object, error: OSError, instead: str = "") -> BadInput:
    """Say that a file or folder cannot be written, and the remedy for that, or what to do ``instead``."""
    remedies = {
        errno.ENOSPC: "make room there",
        errno.EDQUOT: "delete files of yours, or ask for a larger quota",
        errno.EROFS: "mount it for writing",
    }
    remedy = remedies.get(error.errno or 0, "see who may write there")
    return BadInput(f"{place}: {error.strerror or error}", f"{remedy}{instead}")
