"""The page beside a coordinator (``tenbin up --page``): a process of its own that ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.processes.tree import end_with_parent
from profiles.errors import BadInput, UserError
from profiles.files.safe_files import write_whole

PORT = "8471"
FILE = "page-address"  # in the coordinator's folder: what to open next
END_S = 5.0


@contextmanager
def page_beside(home: Path, listener: socket.socket, name: str, *, tells: bool) -> Iterator[None]:
    """Run the page of a coordinator as long as the block; the coordinator does not notice if the page ends.

    Args:
        listener: where the page listens; closed here.
        name: of this machine, as callers may know it.
        tells: the page prints its addresses.
    """
    (home / FILE).unlink(missing_ok=True)
    descriptor = listener.fileno()
    arguments = (str(home), str(descriptor), name, str(os.getpid()), str(int(tells)))
    page = subprocess.Popen(
        [sys.executable, "-P", "-m", "tenbin.page.beside", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
    )
    listener.close()
    try:
        yield
    finally:
        page.terminate()
        try:
            page.wait(END_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
        (home / FILE).unlink(missing_ok=True)


def address(home: Path, wait_s: float) -> str | None:
    """Return the address to open, for which the page is waited for; None: it is not ready yet."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if (home / FILE).exists():
            return (home / FILE).read_text().strip()
        time.sleep(0.05)
    return None


def say_address(url: str, first: bool) -> None:
    """Print an address of the page, which works once."""
    with suppress(OSError):  # whoever read this has seen enough
        print(f"tenbin: {'page at' if first else 'for another browser:'} {url}", flush=True)


def main() -> int:
    """Serve the page until the coordinator has ended."""
    from tenbin.page.serve import serve
    from tenbin.server.tcp import Listener

    home, descriptor, name, parent, tells = sys.argv[1:]
    end_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the server takes it

    def tell(url: str, first: bool) -> None:
        write_whole(Path(home, FILE), f"{url}\n".encode(), mode=0o600)
        if int(tells):
            say_address(url, first)

    try:
        serve(Path(home), Listener(fileno=int(descriptor)), name, tell)
    except (UserError, OSError) as error:
        print(f"tenbin: the page has ended: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
