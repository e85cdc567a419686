"""The job of one call of ``tenbin.Executor``: ``python -P run_function.py FOLDER [NUMBER]``.

Without NUMBER the job is one of an array, and its index is the number. FOLDER/NUMBER.call has the call.
Whoever takes that file away first decides: this process, which renames the file to NUMBER.started, or the
caller, who cancels. The result goes to NUMBER.result, written aside and renamed. Every call waits for the
imports of this module, so there are hardly any.
"""

import os
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 5  # of pickle: the content of a large array is written and read without a copy
OWNER = "owner"  # the caller keeps this file locked; the file has the name of the caller's node


def main() -> int:
    """Run the call; return the exit code of the job."""
    folder = sys.argv[1]
    name = f"{folder}/{sys.argv[2] if len(sys.argv) > 2 else os.environ['TENBIN_ARRAY_INDEX']}"
    if not claim(name) or caller_is_gone(folder):
        sys.stderr.write("not called: the call was cancelled or has ended, or its program has\n")
        return 1
    is_done, trace, value = outcome(name)
    try:
        write(name, is_done, trace, value)
    except BaseException as error:  # the value cannot be pickled (its own code decides), or there is no room
        is_done, trace = False, trace + described(error)
        try:
            write(name, False, trace, error)
        except Exception:
            write(name, False, trace, RuntimeError(f"neither result nor error can be pickled: {error!r}"))
    if not is_done:
        sys.stderr.write(trace)
    return 0 if is_done else 1


def claim(name: str) -> bool:
    """Return whether the call is to be run: not if the caller has cancelled it."""
    try:
        os.rename(f"{name}.call", f"{name}.started")  # noqa: PTH104
    except FileNotFoundError:  # cancelled, or this job is run again because its node was lost
        return os.path.exists(f"{name}.started")  # noqa: PTH110
    return True


def caller_is_gone(folder: str) -> bool:
    """Return whether the caller has ended without waiting for this call; only known on the caller's node."""
    import fcntl

    try:
        with open(f"{folder}/{OWNER}") as file:  # noqa: PTH123
            if file.read() != os.uname().nodename:
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:  # locked, or locks cannot be had here
        return False
    return True


def outcome(name: str) -> "tuple[bool, str, Any]":
    """Run the call; return whether it returned, the text of its traceback, and its result or exception."""
    try:
        return True, "", run(name)
    except BaseException as error:  # SystemExit too, as ProcessPoolExecutor has it
        return False, described(error), error


def run(name: str) -> "Any":
    """Read the call and run it; a call of ``Executor.map`` is of several tuples of arguments."""
    with open(f"{name}.started", "rb") as file:  # noqa: PTH123
        sys.path, function_name = pickle.load(file)
        if not function_name:
            function, args, kwargs = pickle.load(file)
            return function(*args, **kwargs)
        several = pickle.load(file)
    with open(f"{os.path.dirname(name)}/{function_name}", "rb") as file:  # noqa: PTH120, PTH123
        function = pickle.load(file)
    return [function(*args) for args in several]


def write(name: str, is_done: bool, trace: str, value: "Any") -> None:
    """Write the result, whole or not at all; what only cloudpickle can pickle is pickled by that."""
    with open(f"{name}.partial", "wb") as file:  # noqa: PTH123
        pickle.dump((is_done, trace), file, PROTOCOL)
        start = file.tell()
        try:
            pickle.dump(value, file, PROTOCOL)
        except Exception:
            import cloudpickle

            file.seek(start)
            file.truncate()
            cloudpickle.dump(value, file, PROTOCOL)
    os.replace(f"{name}.partial", f"{name}.result")  # noqa: PTH105


def described(error: BaseException) -> str:
    """Return the text of an exception with its traceback."""
    import traceback

    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    sys.exit(main())
