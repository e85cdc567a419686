"""The socket on which supervisors of this machine report."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def listen(path: Path) -> socket.socket:
    """Open a datagram socket that only its owner may write to."""
    path.unlink(missing_ok=True)
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    before = os.umask(0o177)
    try:
        channel.bind(str(path))
    finally:
        os.umask(before)
    return channel
