"""``tenbin jobs``, ``info``, ``logs``, ``wait``, and the verbs that change jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from profiles.errors import BadInput
from tenbin.commands.jobs.columns import (
    SHOWN,
    CsvOption,
    NameOption,
    PlaceOption,
    StateOption,
    UserOption,
    check_formats,
    chosen_columns,
    chosen_states,
    print_csv,
    print_table,
    since_s,
)
from tenbin.commands.jobs.selection import select, tell_left_out
from tenbin.commands.options import HomeOption, JsonOption, complete_job, complete_place
from tenbin.option_values import duration_s
from tenbin.text import label, print_json

if TYPE_CHECKING:
    from tenbin.client.client import Client

COLUMNS = (
    *("id", "array", "array_index", "name", "user", "slurm", "stage", "cores", "priority", "place"),
    *("submit_s", "start_s", "end_s", "since_s", "time_limit_s", "code", "held_by_user", "trouble"),
)
BEGUN = ("running", "stopping", "suspended")
STATES = ("held", "waiting", *BEGUN, "done", "failed", "cancelled", "killed")
SAMPLED = (
    *("id", "at_s", "cpu_s", "memory_mb", "read_mb", "written_mb", "processes", "threads", "energy_j"),
)
TOGETHER = 1000  # jobs of which wait asks at once which have ended


Which = Annotated[
    list[str],
    typer.Argument(
        help="Numbers of jobs or arrays (7), members of array 7 (7[3], 7[1,5-9]), ranges (3-9: cancel and "
        "the like take those that have not ended), 'last', or 'all' that have not ended.",
        metavar="JOB...",
        autocompletion=complete_job,
    ),
]


def jobs(
    *,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    state: StateOption = None,
    name: NameOption = None,
    user: UserOption = None,
    since: Annotated[
        str | None,
        typer.Option(help="Also those that have ended since: 2h (ago), yesterday, 2026-11-20."),
    ] = None,
    place: PlaceOption = None,
    limit: Annotated[
        int,
        typer.Option(min=1, help="Show at most this many, the last ones; jobs that run are always shown."),
    ] = SHOWN,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Each member of an array in a row of its own.")
    ] = False,
    columns: Annotated[str | None, typer.Option(help="Only these: id,name,place; 'help' lists all.")] = None,
    csv: CsvOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List the jobs that wait or run, running ones first; an array is one row."""
    import time
    from urllib.parse import urlencode

    from tenbin.client.client import Client
    from tenbin.option_values import past_instant

    chosen = chosen_columns(columns, COLUMNS, "jobs")
    if columns == "help":
        print("\n".join(COLUMNS))
        return
    check_formats(csv=csv, json=json)
    given = {
        "stages": chosen_states(state, STATES),
        "name": name,
        "user": user,
        "since_s": None if since is None else past_instant(since, "--since"),
        "place": place,
    }
    filters = {key: value for key, value in given.items() if value}
    # Programs get the jobs themselves.
    which = {"all": str(everything).lower(), "members": str(members or json or csv).lower()}
    client = Client(home)
    found = client.call("GET", f"/jobs?{urlencode({**which, **filters, 'limit': limit}, doseq=True)}")
    found.sort(key=lambda job: job["stage"] not in BEGUN)
    for job in found:
        job["since_s"] = since_s(job, time.time())
    told = [{column: job[column] for column in chosen or COLUMNS} for job in found]
    if json:
        print_json(told)
        return
    if csv:
        print_csv(told, chosen or COLUMNS)
        return
    taken_over = ("slurm", "user") if any(job["slurm"] for job in found) else ()
    print_table(found, chosen or ("id", *taken_over, "name", "stage", "cores", "since_s", "trouble"))
    if len(found) < limit:
        return
    if filters:  # to count what they leave would take the coordinator's time
        print(f"at most {limit:,} are shown; more: --limit")
        return
    count = client.call("GET", f"/jobs/count?{urlencode(which)}")["count"]
    if count > len(found):
        options = f"{' --all' * everything}{' --members' * members} --limit {count}"
        print(f"and {count - len(found):,} more: tenbin jobs{options}")


def info(
    job: Annotated[str, typer.Argument(autocompletion=complete_job)],
    *,
    samples: Annotated[
        bool, typer.Option("--samples", "-s", help="Also cores, memory, I/O and power over time.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the samples as CSV.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Say everything about a job: why it waits, when it should start, and what would start it sooner.

    Of an array: how far it is.
    """
    from tenbin.client.client import Client
    from tenbin.commands.jobs.outcomes import last_error
    from tenbin.commands.jobs.samples import used_now

    check_formats(csv=csv, json=json)
    if csv and not samples:
        raise BadInput("--csv without --samples", f"tenbin history {job} --csv has what it used in all")
    client, told = Client(home), []
    ids = select(client, [job], members=samples).ids
    if csv:
        print_csv([{"id": job_id, **row} for job_id in ids for row in client.job(job_id).samples()], SAMPLED)
        return
    for job_id in ids:
        found = client.job(job_id).info(sooner=True)
        if "members" in found:
            from tenbin.commands.jobs.account import array_account

            told.append(found)
            if not json:
                print(array_account(found))
            continue
        found["stderr_end"] = last_error(client, found)
        runs = found["stage"] in ("running", "stopping")
        rows = client.job(job_id).samples() if samples or runs else []
        found["now"] = used_now(rows) if runs else None
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
    """Print a job's output; with --json both streams, as text.

    Of several jobs, as the members of an array, a line on standard error names each: ==> job 7[3] <==
    """
    import sys

    from tenbin.client.client import Client

    client, stream, told = Client(home), "stderr" if error else "stdout", []
    ids = select(client, [job]).ids
    for job_id in ids:
        if json:
            whole = {name: b"".join(client.job(job_id).output(name, follow)) for name in ("stdout", "stderr")}
            told.append(
                {"id": job_id} | {name: said.decode(errors="replace") for name, said in whole.items()}
            )
            continue
        if len(ids) > 1:
            typer.echo(f"==> job {label(client.job(job_id).info())} <==", err=True)
        for part in client.job(job_id).output(stream, follow):
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
        name = label(found)
        where = f"it wrote to standard error: tenbin logs {name} --error"
        typer.echo(printable(f"tenbin: job {name} {found['stage']}{reason}; {where}"), err=True)


def cancel(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """End jobs: SIGTERM, and SIGKILL after their grace."""
    _change("cancel", which, home, json)


def suspend(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """Pause jobs; their cores are free for others until ``tenbin resume``."""
    _change("suspend", which, home, json)


def resume(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """Let suspended jobs go on, as soon as there is room."""
    _change("resume", which, home, json)


def retry(which: Which, home: HomeOption = None, json: JsonOption = False) -> None:
    """Run jobs that failed, or were killed or cancelled, again, under the same number; of an array those."""
    found = _change("retry", which, home, json)
    if not json:
        count = len(found["ids"])
        told = f"{count:,} job{'s' * (count != 1)} will run again"
        typer.echo(f"{told}; jobs that were cancelled because of a failure stay so, unless named", err=True)


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


def priority(
    which: Which,
    to: Annotated[
        int, typer.Option("--to", help="The higher comes first; 0: as submitted without --priority.")
    ],
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Change the priority of jobs, as if they had been submitted with it; what runs goes on."""
    _change("priority", which, home, json, priority=to)


def wait(
    which: Which,
    timeout: Annotated[
        str | None, typer.Option(help="The longest wait: 90s, 1h30m; exit code 124 then.", metavar="TIME")
    ] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Wait for the end of jobs; exit with the first exit code that is not 0."""
    from tenbin.client.client import Client

    timeout_s = None if timeout is None else duration_s(timeout, "--timeout", least=0)
    client = Client(home)
    ids = select(client, which).ids
    code = wait_for(client, ids, timeout_s, quiet=json)
    if json:
        print_json([client.job(job_id).info() for job_id in ids])
    raise typer.Exit(code)


def wait_for(client: Client, ids: list[int], timeout_s: float | None = None, quiet: bool = False) -> int:
    """Wait for all jobs, and say why a job did not succeed; return the exit code to hand on."""
    import time

    from tenbin.commands.jobs.outcomes import exit_code, outcome
    from tenbin.text import say

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    code, ended = 0, dict[int, dict[str, Any]]()
    for place, job_id in enumerate(ids):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if job_id not in ended:
            ended = {job["id"]: job for job in client.ended(ids[place : place + TOGETHER], 0.0)}
        if job_id in ended and ended[job_id]["stage"] == "done":
            continue
        try:
            found = client.job(job_id).wait(left)
        except TimeoutError:
            typer.echo(f"tenbin: job {label(client.job(job_id).info())} has not ended", err=True)
            return 124
        if not quiet and (sentence := outcome(client, found)):
            say(sentence, error=True)
        code = code or exit_code(found)
    return code


def _change(what: str, which: list[str], home: Any, as_json: bool, **more: str | int) -> dict[str, Any]:
    """Ask for a change of jobs; of ranges and ``all`` it concerns the jobs to which it applies."""
    from tenbin.client.client import Client

    client = Client(home)
    chosen = select(client, which, members=False)
    found = client.change(what, chosen.named, chosen.among, **more)
    if as_json:
        print_json(found)
    else:
        tell_left_out(found)
    return found
