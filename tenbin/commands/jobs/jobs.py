"""``tenbin jobs``, ``info``, ``logs``, ``wait``, ``cancel``, ``suspend``, ``resume``, ``migrate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenbin.commands.jobs.selection import select, tell_left_out
from tenbin.commands.options import HomeOption, JsonOption
from tenbin.text import print_json

if TYPE_CHECKING:
    from tenbin.client.client import Client

SHOWN = 50


def _ask(path: str, field: str) -> list[str]:
    """Ask the coordinator for names to complete; empty if it does not answer."""
    from tenbin.client.client import Client
    from tenbin.errors import TenbinError

    try:
        return [str(row[field]) for row in Client().call("GET", path, timeout_s=1.0)]
    except TenbinError:
        return []


def complete_job(incomplete: str) -> list[str]:
    """Complete jobs that have not ended, and the selectors."""
    return [name for name in ("last", "all", *_ask("/jobs", "id")) if name.startswith(incomplete)]


def complete_place(incomplete: str) -> list[str]:
    """Complete devices and nodes of the coordinator."""
    return [name for name in _ask("/nodes", "name") if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Complete devices of the coordinator, and words for several of them."""
    words = [name for name in ("any", "gpu", "cpu") if name.startswith(incomplete)]
    return words + complete_place(incomplete)


Which = Annotated[
    list[str],
    typer.Argument(
        help="Numbers (7), ranges (3-9: cancel and the like take those that have not ended), 'last', "
        "or 'all' that have not ended.",
        metavar="JOB...",
        autocompletion=complete_job,
    ),
]


def jobs(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    limit: Annotated[
        int,
        typer.Option(min=1, help="Show at most this many, the last ones; jobs that run are always shown."),
    ] = SHOWN,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List the jobs that wait or run."""
    from tenbin.client.client import Client

    client, which = Client(home), f"all={'true' if everything else 'false'}"
    found = client.call("GET", f"/jobs?{which}&limit={limit}")
    if json:
        print_json(found)
        return
    import time

    from rich.markup import escape

    from tenbin.terminal import SafeConsole, table
    from tenbin.text import duration, printable

    taken_over = any(job["slurm"] for job in found)
    columns = ("job", *(("slurm", "user") if taken_over else ()), "name", "stage", "cores", "since", "")
    listed = table(*columns, left=("user", "name", "stage", ""))
    for job in found:
        since = job["end_s"] or job["start_s"] or job["submit_s"]
        listed.add_row(
            str(job["id"]),
            *((job["slurm"] or "", escape(printable(job["user"] or ""))) if taken_over else ()),
            escape(printable(job["name"])),
            job["stage"],
            str(job["cores"]),
            duration(round(time.time() - since)),
            escape(printable(job["trouble"])),
        )
    SafeConsole().print(listed)
    count = client.call("GET", f"/jobs/count?{which}")["count"] if len(found) >= limit else 0
    if count > len(found):
        print(f"and {count - len(found):,} more: tenbin jobs{' --all' * everything} --limit {count}")


def info(
    job: Annotated[str, typer.Argument(autocompletion=complete_job)],
    samples: Annotated[
        bool, typer.Option("--samples", "-s", help="Also cores, memory, I/O and power over time.")
    ] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Say everything about a job: also why it waits, and when it should start."""
    from tenbin.client.client import Client
    from tenbin.commands.jobs.outcomes import last_error

    client, told = Client(home), []
    for job_id in select(client, [job]).ids:
        found = client.job(job_id).info()
        found["stderr_end"] = last_error(client, found)
        rows = client.job(job_id).samples() if samples else []
        if json:
            told.append({**found, "samples": rows} if samples else found)
            continue
        from tenbin.commands.jobs.account import account

        print(account(found))
        if samples:
            from tenbin.commands.jobs.samples import sample_table
            from tenbin.terminal import SafeConsole

            table = sample_table(rows, found["start_s"])
            SafeConsole().print(table if table.row_count else "  no samples: it was too short, or waits")
    if json:
        print_json(told[0] if len(told) == 1 else told)


def logs(
    job: Annotated[str, typer.Argument(autocompletion=complete_job)],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    error: Annotated[
        bool, typer.Option("--error", "-e", help="Standard error instead of standard output.")
    ] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Print a job's output; with --json both streams, as text."""
    import sys

    from tenbin.client.client import Client

    client, stream, told = Client(home), "stderr" if error else "stdout", []
    for job_id in select(client, [job]).ids:
        if json:
            whole = {name: b"".join(_output(client, job_id, name, follow)) for name in ("stdout", "stderr")}
            told.append(
                {"id": job_id} | {name: said.decode(errors="replace") for name, said in whole.items()}
            )
            continue
        for part in _output(client, job_id, stream, follow):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        _tell_failure(client, job_id, error)
    if json:
        print_json(told[0] if len(told) == 1 else told)


def _tell_failure(client: Client, job_id: int, error_shown: bool) -> None:
    """Say that a job failed, after its output, and where its standard error is."""
    from tenbin.commands.jobs.outcomes import last_error
    from tenbin.text import printable

    found = client.job(job_id).info()
    if not (error_shown or found["stdout"] == found["stderr"]) and last_error(client, found):
        reason = f": {found['trouble']}" if found["trouble"] else ""
        where = f"it wrote to standard error: tenbin logs {job_id} --error"
        typer.echo(printable(f"tenbin: job {job_id} {found['stage']}{reason}; {where}"), err=True)


def _output(client: Client, job_id: int, stream: str, follow: bool) -> Iterator[bytes]:
    """Read what a job has written; with ``follow`` until the job has ended."""
    import time

    from tenbin.client.futures import FINAL

    start = 0
    while True:
        last = not follow or client.job(job_id).info()["stage"] in FINAL
        while found := client.output(job_id, stream, start):
            start += len(found)
            yield found
        if last:
            return
        time.sleep(0.2)


def cancel(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """End jobs: SIGTERM, and SIGKILL after their grace."""
    _change("cancel", which, home, json)


def suspend(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """Pause jobs; their cores are free for others until ``tenbin resume``."""
    _change("suspend", which, home, json)


def resume(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """Let suspended jobs go on, as soon as there is room."""
    _change("resume", which, home, json)


def migrate(
    which: Which,
    to: Annotated[
        str, typer.Option("--to", help="Where to, see tenbin nodes.", autocompletion=complete_place)
    ],
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Move running jobs to another device or node: they write a checkpoint here and go on there."""
    _change("migrate", which, home, json, to=to)


def wait(
    which: Which,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds; exit code 124 when they are over.")
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Wait for the end of jobs; exit with the first exit code that is not 0."""
    from tenbin.client.client import Client

    client = Client(home)
    ids = select(client, which).ids
    code = wait_for(client, ids, timeout, quiet=json)
    if json:
        print_json([client.job(job_id).info() for job_id in ids])
    raise typer.Exit(code)


def wait_for(client: Client, ids: list[int], timeout_s: float | None = None, quiet: bool = False) -> int:
    """Wait for all jobs, and say why a job did not succeed; return the exit code to hand on."""
    import time

    from tenbin.commands.jobs.outcomes import exit_code, outcome
    from tenbin.text import say

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    code = 0
    for job_id in ids:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            found = client.job(job_id).wait(left)
        except TimeoutError:
            typer.echo(f"tenbin: job {job_id} has not ended", err=True)
            return 124
        if not quiet and (sentence := outcome(client, found)):
            say(sentence, error=True)
        code = code or exit_code(found)
    return code


def _change(what: str, which: list[str], home: Any, as_json: bool, **more: str) -> None:
    """Ask for a change of jobs; of ranges and ``all`` it concerns the jobs to which it applies."""
    from tenbin.client.client import Client

    client = Client(home)
    chosen = select(client, which)
    body = {"ids": chosen.named, "where_possible": chosen.among, **more}
    found = client.call("POST", f"/{what}", body)
    if as_json:
        print_json(found)
    else:
        tell_left_out(found["left_out"])
