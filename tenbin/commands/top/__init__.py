"""``tenbin top``: the queue in a terminal.

Views (``views``) are plain objects: they turn answers of the API into lines, and keys into effects. ``app``
draws the lines with Textual, asks the coordinator, and carries the effects out.
"""

from __future__ import annotations

import os
import sys

from profiles.errors import BadInput
from tenbin.commands.options import HomeOption, client_of


def top(home: HomeOption = None) -> None:
    """Watch the queue in this terminal, and change jobs by keys.

    Move: up, down (or k, j), PgUp, PgDn, Home, End.
    Enter opens an array or a job, Esc goes back.

    Look: e why a job waits, what it uses, its story, predictions;
    t its stdout and T its stderr, as they come; n the nodes.

    Choose: / filter, s next order, S reverse, a also jobs that have ended;
    Space marks a job, * all that are listed, u none.

    Change the marked jobs, else the one under the cursor: c cancel,
    p suspend (pause), r resume, R retry, m migrate, P priority. You are asked first.

    ? shows all keys, q ends. For programs and files: tenbin jobs.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise BadInput("tenbin top needs a terminal", "for files, pipes and programs: tenbin jobs")
    client = client_of(home)
    client.call("GET", "/queue?rows=0", timeout_s=10)  # without a coordinator a plain error
    for name in ("COLUMNS", "LINES"):  # a shell's, which would hold while the terminal changes its size
        os.environ.pop(name, None)
    from tenbin.commands.top.app import Top

    Top(client).run(mouse=False)  # the terminal's own marking of text goes on to work
