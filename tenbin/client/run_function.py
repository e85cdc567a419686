"""The job of one call of ``tenbin.Executor``: ``python -P run_function.py FOLDER [NUMBER]``.

Without NUMBER the job is one of an array, and its index is the number. FOLDER/NUMBER.call has the call.
Whoever takes that file away first decides: this process, which renames the file to NUMBER.started, or the
caller, who cancels. The result goes to NUMBER.result, written aside and renamed. What is read is run, so the
folder must be this user's alone; it is looked at by its descriptor, and files are opened in that. Every call
waits for the imports of this module, so there are hardly any.
"""

import errno
import os
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

PROTOCOL = 5  # of pickle: the content of a large array is written and read without a copy
OWNER = "owner"  # the caller keeps this file locked; the file has the name of the caller's node


def main() -> int:
    """Run the call; return the exit code of the job."""
    path = sys.argv[1]
    name = sys.argv[2] if len(sys.argv) > 2 else os.environ["TENBIN_ARRAY_INDEX"]
    try:
        folder = own_folder(path)
    except FileNotFoundError:
        folder = -1
    except OSError as error:
        sys.stderr.write(f"not called: {path}: {error.strerror}\n")
        return 1
    if folder < 0 or not claim(folder, name) or caller_is_gone(folder):
        sys.stderr.write("not called: the call was cancelled or has ended, or its program has\n")
        return 1
    is_done, trace, value = outcome(folder, name)
    folder = own_folder(path)  # again, because the function may have closed it
    try:
        write(folder, name, (is_done, trace), value)
    except BaseException as error:  # the value cannot be pickled (its own code decides), or there is no room
        is_done, trace = False, trace + described(error)
        try:
            write(folder, name, (False, trace), error)
        except Exception:
            why = RuntimeError(f"neither result nor error can be pickled: {error!r}")
            write(folder, name, (False, trace), why)
    if not is_done:
        sys.stderr.write(trace)
    return 0 if is_done else 1


def own_folder(path: str) -> int:
    """Open a folder of this user to which nobody else may write; OSError if it is none."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(folder)
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        os.close(folder)
        raise PermissionError(errno.EPERM, "not a folder of this user alone", path)
    return folder


def opened(folder: int, name: str, flags: int = os.O_RDONLY) -> "BinaryIO":
    """Open a file in a folder, to read or to write."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb" if flags & os.O_WRONLY else "rb")


def exists(folder: int, name: str) -> bool:
    """Return whether a folder has a file of that name."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def claim(folder: int, name: str) -> bool:
    """Return whether the call is to be run: not if the caller has cancelled it."""
    try:
        os.rename(f"{name}.call", f"{name}.started", src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:  # cancelled, or this job is run again because its node was lost
        return exists(folder, f"{name}.started")
    return True


def caller_is_gone(folder: int) -> bool:
    """Return whether the caller has ended without waiting for this call; only known on the caller's node."""
    import fcntl

    try:
        with opened(folder, OWNER) as file:
            if file.read() != os.uname().nodename.encode():
                return False
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:  # locked, or locks cannot be had here
        return False
    return True


def outcome(folder: int, name: str) -> "tuple[bool, str, Any]":
    """Run the call; return whether it returned, the text of its traceback, and its result or exception."""
    try:
        return True, "", run(folder, name)
    except BaseException as error:  # SystemExit too, as ProcessPoolExecutor has it
        return False, described(error), error


def run(folder: int, name: str) -> "Any":
    """Read the call and run it; a call of ``Executor.map`` is of several tuples of arguments."""
    with opened(folder, f"{name}.started") as file:
        sys.path, function_name = pickle.load(file)
        what = pickle.load(file)
    if not function_name:
        function, args, kwargs = what
        return function(*args, **kwargs)
    with opened(folder, function_name) as file:
        function = pickle.load(file)
    return [function(*args) for args in what]


def write(folder: int, name: str, end: "tuple[bool, str]", value: "Any") -> None:
    """Write the result, whole or not at all; what only cloudpickle can pickle is pickled by that."""
    with opened(folder, f"{name}.partial", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        pickle.dump(end, file, PROTOCOL)
        start = file.tell()
        try:
            pickle.dump(value, file, PROTOCOL)
        except Exception:
            import cloudpickle

            file.seek(start)
            file.truncate()
            cloudpickle.dump(value, file, PROTOCOL)
    os.replace(f"{name}.partial", f"{name}.result", src_dir_fd=folder, dst_dir_fd=folder)


def described(error: BaseException) -> str:
    """Return the text of an exception with its traceback."""
    import traceback

    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    sys.exit(main())
