"""``tenbin page``: the queue in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tenbin.commands.options import HomeOption, coordinator_folder
from tenbin.page.beside import PORT, say_address


def page(
    *,
    listen: Annotated[str, typer.Option(metavar="[HOST:]PORT")] = PORT,
    no_open: bool = False,
    home: HomeOption = None,
) -> None:
    """Show the queue in a browser, live: what runs, why jobs wait, when they should start.

    A process of its own: it reads the coordinator's journal and hardly ever asks the coordinator. Ctrl-C ends
    the page; jobs and coordinator do not notice. The printed address works once, and then the next one is
    printed. From another machine: ssh -L 8471:127.0.0.1:8471 NODE, and open the address there.

    [bold]Examples[/bold]

      tenbin page

      tenbin page --listen 0 --no-open

    Args:
        listen: Where to listen: PORT (from this machine), or HOST:PORT; port 0: any free one.
        no_open: Do not open a browser.
    """
    from tenbin.page.serve import serve
    from tenbin.server import tcp

    def tell(url: str, first: bool) -> None:
        say_address(url, first)
        if first and not no_open:
            _open(url)

    serve(coordinator_folder(home), tcp.listen(listen), tcp.where(listen)[0], tell)


def _open(url: str) -> None:
    """Open a browser if there is a display; its command line does not show the token to other users."""
    import atexit
    import tempfile
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    folder = tempfile.TemporaryDirectory(prefix="tenbin-page-")  # mode 700
    atexit.register(folder.cleanup)
    file = Path(folder.name, "open.html")
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">')
    webbrowser.open(file.as_uri())
