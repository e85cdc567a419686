"""Progress of measurements, and their end by a signal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.job_profile.session import JobProgress, Listener


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Make SIGTERM end a profile as Ctrl-C does: kept, restored, tidy.

    SIGINT is set too, because a shell starts background jobs with it ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def progress(of: str = "") -> Iterator[Listener]:
    """Show progress on standard error: a bar on a terminal, a line for each step elsewhere."""
    from tenbin.text import duration

    if not sys.stderr.isatty():

        def tell(now: JobProgress) -> None:
            left = f" ({duration(now.left_s)} left)" if now.left_s else ""
            print(f"tenbin: {of}{now.doing}{left}", file=sys.stderr, flush=True)

        yield tell
        return

    from rich.progress import BarColumn, Progress, TextColumn

    from tenbin.terminal import SafeConsole

    columns = (
        BarColumn(bar_width=28),
        TextColumn("{task.fields[left]:>9} left"),
        TextColumn("[dim]{task.description}[/dim]", markup=True),
    )
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=1.0, left="")

        def show_bar(now: JobProgress) -> None:
            left = duration(now.left_s) if now.left_s else "?"
            bars.update(task, description=f"{of}{now.doing}", completed=now.fraction, left=left)

        yield show_bar
