"""``tenbin jobs``, ``info``, ``logs``, ``wait``, and the verbs that change jobs."""

from __future__ import annotations

import inspect
import json as json_module
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import update_wrapper
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from profiles.errors import INTERRUPTED, BadInput
from profiles.quantities import clock, counted, duration, local, number
from tenbin.commands.options import (
    HomeOption,
    JsonOption,
    client_of,
    complete_job,
    complete_place,
    with_parameters,
)
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.option_values import duration_s, past_instant
from tenbin.text import label, print_answer, print_json, printable, ranges, remark, say

if TYPE_CHECKING:
    from tenbin.client.client import Client

# -- selection of jobs, and the jobs that a change has left out --------------------------------------------


class Chosen(NamedTuple):
    """The numbers of the jobs that were selected.

    Attributes:
        named: by a number or ``last``: a change of them is refused if one has ended.
        among: by a range or ``all``: a change leaves out those that have ended.
    """

    named: list[int]
    among: list[int]

    @property
    def ids(self) -> list[int]:
        """List all of them, each once."""
        return list(dict.fromkeys((*self.named, *self.among)))


def select(client: Client, which: Iterable[str], *, members: bool = True) -> Chosen:
    """Find the numbers that selectors mean; the coordinator knows.

    Args:
        members: give the members of an array in place of its number.
    """
    answer = client.call("POST", "/select", {"words": list(which), "members": members})
    for note in answer["notes"]:
        remark(note)
    return Chosen(answer["named"], answer["among"])


def left_out_lines(answer: Mapping[str, Any]) -> list[str]:
    """Write which jobs a change did not apply to; one line for each reason."""
    return [f"left out {job_ranges(labels)}: {reason}" for reason, labels in answer["reasons"].items()]


def job_ranges(labels: Iterable[str]) -> str:
    """Write jobs as people do: ``1-3, 7, 9[2-5,8]``."""
    arrays: dict[str, list[int]] = {}
    for name in labels:
        array, _, index = name.removesuffix("]").rpartition("[")
        arrays.setdefault(array, []).append(int(index))
    single = ranges(arrays.pop("", ()))
    parts = [f"{array}[{ranges(indices).replace(' ', '')}]" for array, indices in arrays.items()]
    return ", ".join([*([single] if single else []), *parts])


# -- tables of jobs: options to choose jobs and columns, and the forms of the answer -----------------------


SHOWN = 50
LONGEST_LINE = 10_000
HEADINGS = {
    "id": "job",
    "since_s": "since",
    "elapsed_s": "elapsed",
    "cpu_s": "CPU\ntime",
    "cpu_efficiency": "CPU\nuse",
    "peak_memory_mb": "used\nMB",
    "memory_asked_mb": "asked\nMB",
    "energy_j": "energy\nJ",
    "gpus_asked": "GPUs",
    "gpus_used": "GPUs\nused",
    "peak_gpu_memory_mb": "GPU\nMB",
    "gpu_energy_j": "GPU\nJ",
    "migrations": "moves",
    "attempts": "tries",
    "code": "exit",
    "expected_start_s": "starts",
    "trouble": "reason",
}

StageOption = Annotated[str | None, typer.Option(help="Only of these: failed,killed.")]
NameOption = Annotated[str | None, typer.Option(help="Only of a name like this: 'fit*'.")]
UserOption = Annotated[str | None, typer.Option(help="Only of this user.")]
PlaceOption = Annotated[
    str | None, typer.Option(help="Only on this device or node.", autocompletion=complete_place)
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV, with a line of names.")]


def check_formats(*, csv: bool, json: bool) -> None:
    """Refuse two forms of one answer."""
    if csv and json:
        raise BadInput("--csv and --json are both given", "give one of them")


def chosen_stages(text: str | None, known: tuple[str, ...]) -> list[str]:
    """Read ``failed,killed``; none: empty."""
    stages = [part.strip() for part in text.split(",")] if text is not None else []
    if unknown := [part for part in stages if part not in known]:
        raise BadInput(f"--stage {unknown[0]!r} is no stage of these jobs", f"one of {', '.join(known)}")
    return stages


def chosen_columns(text: str | None, known: tuple[str, ...], command: str) -> tuple[str, ...]:
    """Read ``id,name``; none: empty. ``help`` prints all, and ends."""
    if text == "help":
        print("\n".join(known))
        raise typer.Exit()
    columns = () if text is None else tuple(part.strip() for part in text.split(","))
    if unknown := [part for part in columns if part not in known]:
        raise BadInput(
            f"--columns {unknown[0]!r} is no column", f"tenbin {command} --columns help lists them"
        )
    return columns


def print_rows(
    rows: list[dict[str, Any]], columns: tuple[str, ...], *, csv: bool = False, json: bool = False
) -> bool:
    """Print these columns of the rows for programs; False: in no such form."""
    chosen = [{column: row[column] for column in columns} for row in rows]
    if json:
        print_json(chosen)
    elif csv:
        print_csv(chosen, columns)
    return json or csv


def print_csv(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows as CSV; lists as JSON, nothing for what is not known; control characters escaped."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (json_module.dumps(row[c]) if isinstance(row[c], list) else row[c] for c in columns)
        writer.writerow("" if value is None else printable(str(value)) for value in values)


def print_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print rows as a table for people, a line each: cut on a terminal, whole elsewhere.

    On a terminal on which the headings do not fit beside each other, each row is some lines of its own.
    """
    from tenbin.terminal import SafeConsole, lay_out

    left = ("name", "user", "stage", "place", "hosts", "starts", "reason", "why")
    headings = [HEADINGS.get(column, column) for column in columns]
    texts = [[printable(cell(row, column)) for column in columns] for row in rows]
    console = SafeConsole()
    if not console.is_terminal:
        console.width = LONGEST_LINE
    if console.width < sum(2 + max(map(len, heading.split("\n"))) for heading in headings):
        for row in texts:
            pairs = zip((heading.replace("\n", " ") for heading in headings), row, strict=True)
            line = ", ".join(f"{heading} {text}" for heading, text in pairs if text not in ("", "-"))
            print("\n".join(textwrap.wrap(line, max(console.width, 10), subsequent_indent="  ")))
        return
    lay_out(console, headings, texts, left)


def age_s(job: dict[str, Any], now: float) -> int:
    """Return the seconds since the job's end, else since its start, else since its submission."""
    begin_s: float = job["end_s"] or job["start_s"] or job["submit_s"]
    return round(now - begin_s)


def start_words(row: dict[str, Any]) -> str:
    """Say when a job should start: ``in 2:00 h``, or with its interval ``in 2:00 h (1:00 h to 4:00 h)``."""
    names, now = ("expected_start_s", "start_low_s", "start_high_s"), time.time()
    waits = [duration(round(max(row[name] - now, 0.0))) for name in names if row[name] is not None]
    return f"in {waits[0]}{f' ({waits[1]} to {waits[2]})' if waits[1:] else ''}" if waits else ""


def cell(row: dict[str, Any], column: str) -> str:
    """Write one value for people."""
    value = row[column]
    if column == "id":
        text = label(row)
    elif column == "trouble":
        counts = ", ".join(f"{stage} {count:,}" for stage, count in row.get("stages", {}).items())
        text = "; ".join(filter(None, (counts, local(row.get("why") or (value if not counts else "")))))
    elif column == "why":
        text = local(value)
    elif column == "expected_start_s":
        text = start_words(row)
    elif value is None or value == []:
        text = "-"
    elif column in INSTANTS:
        text = clock(value, date=True)
    elif column.endswith("_s"):
        text = duration(round(value, 2))
    elif column.endswith("efficiency"):
        text = f"{value:.0%}"
    elif isinstance(value, list):
        text = ", ".join(map(str, value))
    else:
        of = {"energy_j": "emulated", "gpu_energy_j": "gpus_emulated"}.get(column)
        emulated = " (EMULATED)" if of and row[of] else ""
        text = f"{number(value) if isinstance(value, float) else value}{emulated}"
    return text


def known(client: Client, which: Iterable[str]) -> list[int]:
    """Find jobs and arrays that are to be listed; of a single number that is no job there is an error."""
    chosen = select(client, which, members=False)
    for job_id in chosen.named:
        client.job(job_id).info()
    return chosen.ids


# -- the commands ------------------------------------------------------------------------------------------


COLUMNS = (
    *("id", "array", "array_index", "name", "user", "slurm", "stage", "cores", "priority", "place"),
    *("submit_s", "start_s", "end_s", "since_s", "time_limit_s", "code", "held_by_user", "trouble"),
    *("why", "expected_start_s", "start_low_s", "start_high_s"),
)
INSTANTS = ("submit_s", "start_s", "end_s", "start_low_s", "start_high_s")
GPU_COLUMNS = ("gpus_asked", "gpus_used", "peak_gpu_memory_mb", "gpu_energy_j", "gpus_emulated")
BEGUN = ("running", "stopping", "suspended")
UNSUCCESSFUL = ("failed", "cancelled", "killed")
STAGES = ("held", "waiting", *BEGUN, "done", *UNSUCCESSFUL)
SAMPLED = (
    *("id", "at_s", "cpu_s", "memory_mb", "read_mb", "written_mb", "processes", "threads", "energy_j"),
)
TOGETHER = 1000  # jobs of which wait asks at once which have ended
LOOK_S, LONGEST_LOOK_S = 0.2, 1.0  # between two looks at the output of a job; while nothing comes
ONCE_MORE_S = 2.0  # for a second Ctrl-C


Words = typer.Argument(
    help="Numbers of jobs or arrays (7), members of array 7 (7[3], 7[1,5-9]), ranges (3-9: cancel and "
    "the like take those that have not ended), 'last', or 'all' to which it applies.",
    metavar="JOB...",
    autocompletion=complete_job,
)
Which = Annotated[list[str], Words]
OfJobs = Annotated[
    list[str] | None,
    typer.Argument(help="Jobs and arrays: 7, 7[3], 3-9.", metavar="[JOB]...", autocompletion=complete_job),
]
WhichOrName = Annotated[list[str] | None, Words]
OfName = Annotated[
    str | None,
    typer.Option(help="In place of numbers: all to which it applies, of a name like this: 'fit*'."),
]


def jobs(
    which: OfJobs = None,
    *,
    everything: Annotated[bool, typer.Option("--all", "-a")] = False,
    stage: StageOption = None,
    name: NameOption = None,
    user: UserOption = None,
    since: str | None = None,
    place: PlaceOption = None,
    limit: Annotated[int, typer.Option(min=1)] = SHOWN,
    members: Annotated[bool, typer.Option("--members", "-m")] = False,
    columns: str | None = None,
    csv: CsvOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """List the jobs that run, then those that wait, in the order of the queue, and why; an array is one row.

    Those that have ended come last, the newest first. On a terminal reasons are cut: tenbin info has them
    whole.

    Args:
        everything: Also those that have ended.
        since: Also those that have ended since: 2h (ago), yesterday, 2026-11-20.
        limit: Show at most this many, the first ones; jobs that run are always shown.
        members: Each member of an array in a row of its own.
        columns: Only these: id,name,place; 'help' lists all.
    """
    chosen = chosen_columns(columns, COLUMNS + GPU_COLUMNS, "jobs")
    check_formats(csv=csv, json=json)
    since_s = None if since is None else past_instant(since, "--since")
    given = {"stages": chosen_stages(stage, STAGES), "name": name, "user": user, "since_s": since_s}
    filters: dict[str, Any] = {key: value for key, value in {**given, "place": place}.items() if value}
    client = client_of(home)
    if which:
        everything, filters["ids"] = True, known(client, which)
    members = members or json or csv  # programs get the jobs
    query = {**filters, "all": everything, "members": members, "limit": limit, "order": "queue"}
    rows = client.call("POST", "/list", {**query, "reasons": True})
    of_gpus = any(job.get("gpus_asked") for job in rows)
    for job in rows:
        job["since_s"] = age_s(job, time.time())
        job.update({column: job.get(column) for column in GPU_COLUMNS})
    if print_rows(rows, chosen or COLUMNS + GPU_COLUMNS * of_gpus, csv=csv, json=json):
        return
    gpus = ("gpus_asked", "gpus_used") if of_gpus else ()
    taken_over = ("slurm", "user") if any(job["slurm"] for job in rows) else ()
    starts = ("expected_start_s",) if any(job["expected_start_s"] for job in rows) else ()
    shown = ("id", *taken_over, "name", "stage", "cores", *gpus, "since_s", *starts, "trouble")
    print_table(rows, chosen or shown)
    if not rows:
        nothing = "no such job" if filters else "no jobs; the first one: tenbin submit -- CMD..."
        remark(nothing if everything else f"{nothing}; those that have ended: tenbin jobs --all")
    if len(rows) < limit:
        return
    if filters:  # to count what they leave would take the coordinator's time
        print(f"at most {limit:,} are shown; more: --limit")
        return
    count = client.call("GET", f"/jobs/count?all={everything}&members={members}")["count"]
    if count > len(rows):
        more = f"{' --all' * everything}{' --members' * members} --limit {count}"
        print(f"and {count - len(rows):,} more: tenbin jobs{more}")


def info(
    job: Annotated[str, typer.Argument(autocompletion=complete_job)],
    *,
    samples: Annotated[bool, typer.Option("--samples", "-s")] = False,
    csv: bool = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Say everything about a job: why it waits, when it should start, and what would start it sooner.

    Of an array: how far it is.

    Args:
        samples: Also cores, memory, I/O and power over time.
        csv: Print the samples as CSV.
    """
    from tenbin.commands.jobs.account import account, examined, sample_table

    check_formats(csv=csv, json=json)
    if csv and not samples:
        raise BadInput("--csv without --samples", f"tenbin history {job} --csv has what it used in all")
    client, answers = client_of(home), []
    ids = select(client, [job], members=samples).ids
    if csv:
        print_csv([{"id": job_id, **row} for job_id in ids for row in client.job(job_id).samples()], SAMPLED)
        return
    for job_id in ids:
        details, rows = examined(client, job_id, samples=samples)
        answers.append({**details, "samples": rows} if samples else details)
        if not json:
            print(account(details))
        if samples and not json:
            from tenbin.terminal import SafeConsole

            table = sample_table(rows, details["start_s"])
            SafeConsole().print(table if table.row_count else "  no samples: it was too short, or waits")
    if json:
        print_json(answers[0] if len(answers) == 1 else answers)


def logs(
    job: Annotated[str, typer.Argument(autocompletion=complete_job)],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, metavar="N")] = None,
    error: Annotated[bool, typer.Option("--error", "-e")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Print a job's output; with --json both streams, as text.

    Of several jobs, as the members of an array, a line on standard error names each: ==> job 7[3] <==

    Args:
        follow: Go on until the job has ended.
        tail: Begin with the last N lines.
        error: Standard error instead of standard output.
    """
    client, stream, answers = client_of(home), "stderr" if error else "stdout", []
    source: Any = client
    try:
        ids = select(client, [job]).ids
    except TenbinError as silence:
        if silence.exit_code != NO_ANSWER or client.is_remote:
            raise
        from tenbin.client.kept import KeptJobs

        source = KeptJobs(client.home, job, silence)
        ids = source.ids
    for job_id in ids:
        if json:
            output = source.job(job_id).output
            whole = {name: b"".join(output(name, follow, tail)) for name in ("stdout", "stderr")}
            texts = {name: said.decode(errors="replace") for name, said in whole.items()}
            answers.append({"id": job_id, **texts})
            continue
        if len(ids) > 1:
            typer.echo(f"==> job {label(source.job(job_id).info())} <==", err=True)
        for part in source.job(job_id).output(stream, follow, tail):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        if source is client:
            _tell_failure(client, job_id, error)
    if json:
        print_json(answers[0] if len(answers) == 1 else answers)


def _tell_failure(client: Client, job_id: int, error_shown: bool) -> None:
    """Say that a job failed, after its output, and where its standard error is."""
    from tenbin.commands.jobs.account import has_failed, last_error, wait_words

    job = client.job(job_id).info()
    if job["spec"].get("terminal") and job["attempt"]:
        remark(f"job {label(job)} has written to the terminal of tenbin run")
    if not job["attempt"] and job["why"]:
        remark(f"job {label(job)} has not begun: {wait_words(job)}")
    end = f"job {label(job)} {job['stage']}{': ' * bool(job['trouble'])}{local(job['trouble'])}"
    if not (error_shown or job["stdout"] == job["stderr"]) and last_error(client, job):
        remark(f"{end}; it wrote to standard error: tenbin logs {label(job)} --error")
    elif has_failed(job) and job["code"] is None:  # by no act of its program
        remark(end)


def attach(job: Annotated[str, typer.Argument(autocompletion=complete_job)], home: HomeOption = None) -> None:
    """Show a job's output from its beginning, as it comes, until the job has ended; exit with its code.

    Ctrl-C leaves the job, which stays; once more within two seconds it ends the job.
    """
    client = client_of(home)
    ids = select(client, [job]).ids
    if len(ids) != 1:
        raise BadInput(
            f"{job} is {len(ids)} jobs", f"name one of them: tenbin jobs --members; tenbin logs {job}"
        )
    raise typer.Exit(Output(client, ids[0]).attend())


class Output:
    """The output of a job, printed as it comes: its standard output and its standard error.

    A job in the foreground has written to its terminal, and not here.
    """

    def __init__(self, client: Client, job_id: int) -> None:
        from tenbin.commands.jobs.account import wait_words

        self._client, self._job = client, client.job(job_id)
        job = self._job.info()
        self.name = label(job)
        self._has_terminal = bool(job["spec"].get("terminal"))
        self._starts = {} if self._has_terminal else {"stdout": 0, "stderr": 0}
        if job["stdout"] == job["stderr"]:
            self._starts.pop("stderr", None)
        self._wait = wait_words(job)
        self._look_s = LOOK_S
        self._in_line = False  # what was printed last on standard error is no whole line

    def attend(self, once_more_s: float = ONCE_MORE_S) -> int:
        """Print all output until the job has ended, and what Ctrl-C does; return the exit code to hand on.

        Args:
            once_more_s: after a Ctrl-C, for the one that ends the job.
        """
        if self._wait:
            remark(f"job {self.name} {self._wait}")
        if self._has_terminal:
            remark(f"job {self.name} writes to the terminal of tenbin run")
        try:
            return self.print_all()
        except KeyboardInterrupt:
            pass
        # The next one is taken here, and raised nowhere: in a finalizer Python would drop it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        remark(f"job {self.name} stays; Ctrl-C once more ends it")
        again = signal.sigtimedwait([signal.SIGINT], once_more_s)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if again is not None:
            self._job.cancel()
            self.print_all()
        return INTERRUPTED

    def print_all(self) -> int:
        """Print all output until the job has ended, and why it has; return the exit code to hand on."""
        from tenbin.commands.jobs.account import exit_code, outcome

        ended = None
        while ended is None:
            with suppress(TimeoutError):
                ended = self._job.wait(self._look_s)
            self._look_s = min(1.5 * self._look_s, LONGEST_LOOK_S)
            for stream in list(self._starts):
                self._print(stream)
        if sentence := outcome(self._client, ended, shown=True):
            say("\n" * self._in_line + sentence, error=True)
        return exit_code(ended)

    def _print(self, stream: str) -> None:
        file = getattr(sys, stream).buffer
        try:
            while piece := self._client.output(self._job.id, stream, self._starts[stream]):
                self._look_s = LOOK_S
                self._starts[stream] += len(piece)
                file.write(piece)
                file.flush()
                self._in_line = not piece.endswith(b"\n") if stream == "stderr" else self._in_line
        except TenbinError as error:
            if error.exit_code != BadInput.exit_code:
                raise
            del self._starts[stream]  # a pipe or a terminal, which cannot be read again


DONE = {  # in a sentence: 3 jobs ...
    **{"cancel": "told to end", "suspend": "suspended", "resume": "resumed", "retry": "will run again"},
    **{"migrate": "told to move", "priority": "given another priority", "update": "changed"},
}
QUEUE_DONE = {"suspend": "no job is started until: tenbin resume --queue", "resume": "jobs are started again"}
LONGEST_RANGES = 60  # characters


def change_of_jobs(own: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Make a command that changes jobs: beside its own options it has those that say which, and where.

    Of ranges, names and ``all`` it changes the jobs to which it applies.

    Args:
        own: has its name and its help, and returns the change that its own options ask for.
    """
    verb = own.__name__

    def command(
        which: WhichOrName = None,
        *,
        name: OfName = None,
        home: HomeOption = None,
        json: JsonOption = False,
        **options: Any,
    ) -> None:
        wishes = own(**options)
        of_queue = bool(wishes.get("queue"))
        given = (bool(which), name is not None, of_queue).count(True)
        if given != 1:
            what = f"{given} of JOB, --name and --queue are given" if given else "no job is given"
            raise BadInput(what, "give JOB or --name, and a pattern in quotes: --name 'fit*'")
        client = client_of(home)
        chosen = _chosen(client, which or [], name, UNSUCCESSFUL if verb == "retry" else ())
        answer = client.change(verb, chosen.named, chosen.among, **wishes)
        for line in () if json else left_out_lines(answer):
            remark(line)
        print_answer(answer, QUEUE_DONE[verb] if of_queue else _done(verb, answer["ids"]), json)

    signature = with_parameters(
        command, "name", before=inspect.signature(own, eval_str=True).parameters.values()
    )
    update_wrapper(command, own)
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def _chosen(client: Client, which: list[str], name: str | None, stages: tuple[str, ...]) -> Chosen:
    """Find jobs and arrays by words, or all of a name that are in these stages; none: that have not ended."""
    every = bool(stages) and which == ["all"]
    if name is None and not every:
        return select(client, which, members=False)
    rows = client.call("POST", "/list", {"members": False, "name": name or "*", "stages": stages})
    if not rows and not every:
        what = ", ".join(stages) or "has not ended"
        raise BadInput(f"--name {name!r}: no job of such a name ({what})", "see: tenbin jobs --all")
    return Chosen([], [row["id"] for row in rows])


def _done(verb: str, ids: list[int]) -> str:
    """Say what was done: ``3 jobs told to end: 4-6``; an array is one of them, as in lists."""
    if not ids:
        return f"no job {DONE[verb]}"
    names = ranges(ids)
    return f"{counted(len(ids), 'job')} {DONE[verb]}{f': {names}' if len(names) <= LONGEST_RANGES else ''}"


@change_of_jobs
def cancel() -> dict[str, Any]:
    """End jobs: SIGTERM, and SIGKILL after their grace."""
    return {}


@change_of_jobs
def suspend(*, queue: bool = False) -> dict[str, Any]:
    """Pause jobs; their cores are free for others until ``tenbin resume``.

    Args:
        queue: In place of jobs: start none, also after a restart; those that run go on.
    """
    return {"queue": queue}


@change_of_jobs
def resume(*, queue: bool = False) -> dict[str, Any]:
    """Let suspended jobs go on, as soon as there is room.

    Args:
        queue: In place of jobs: start jobs again, after tenbin suspend --queue.
    """
    return {"queue": queue}


@change_of_jobs
def retry() -> dict[str, Any]:
    """Run jobs that failed, or were killed or cancelled, again, under the same number; of an array those.

    'all': all of these. Jobs that were cancelled because of the failure stay so, unless named.
    """
    return {}


@change_of_jobs
def migrate(*, to: Annotated[str, typer.Option(autocompletion=complete_place)]) -> dict[str, Any]:
    """Move running jobs to another device or node: they write a checkpoint here and go on there.

    Args:
        to: Where to, see tenbin nodes.
    """
    return {"to": to}


@change_of_jobs
def priority(*, to: Annotated[int, typer.Option()]) -> dict[str, Any]:
    """Change the priority of jobs, as if they had been submitted with it; what runs goes on.

    Args:
        to: The higher comes first; 0: as submitted without --priority.
    """
    return {"priority": to}


@change_of_jobs
def update(
    *, time: Annotated[str | None, typer.Option(metavar="[+|-]TIME")] = None, priority: int | None = None
) -> dict[str, Any]:
    """Change the limit of jobs that wait or run, as if they had been submitted with it.

    Args:
        time: Limit of the run time from now on: 4h, none; +2h, -30m: more or less than now.
        priority: As tenbin priority --to.
    """
    changes: dict[str, Any] = {} if priority is None else {"priority": priority}
    if time == "none":
        changes["time_s"] = None
    elif time is not None and time[:1] in ("+", "-"):
        changes["more_s"] = duration_s(time[1:]) * (1 if time[0] == "+" else -1)
    elif time is not None:
        changes["time_s"] = duration_s(time)
    if not changes:
        raise BadInput("nothing is to change", "give --time, for instance --time +2h, or --priority")
    return changes


def wait(
    which: Which,
    timeout: Annotated[str | None, typer.Option(metavar="TIME")] = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Wait for the end of jobs; exit with the first exit code that is not 0.

    Args:
        timeout: The longest wait: 90s, 1h30m; exit code 124 then.
    """
    timeout_s = None if timeout is None else duration_s(timeout, "--timeout", least=0)
    client = client_of(home)
    ids = select(client, which).ids
    code = wait_for(client, ids, timeout_s, quiet=json)
    if json:
        print_json([client.job(job_id).info() for job_id in ids])
    raise typer.Exit(code)


def wait_for(client: Client, ids: list[int], timeout_s: float | None = None, quiet: bool = False) -> int:
    """Wait for all jobs, and say why a job did not succeed; return the exit code to hand on."""
    from tenbin.commands.jobs.account import exit_code, outcome

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    code, ended = 0, dict[int, dict[str, Any]]()
    for place, job_id in enumerate(ids):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if job_id not in ended:
            ended = {job["id"]: job for job in client.ended(ids[place : place + TOGETHER], 0.0)}
        if job_id in ended and ended[job_id]["stage"] == "done":
            continue
        try:
            ended_job = client.job(job_id).wait(left)
        except TimeoutError:
            remark(f"job {label(client.job(job_id).info())} has not ended")
            return 124
        if not quiet and (sentence := outcome(client, ended_job)):
            say(sentence, error=True)
        code = code or exit_code(ended_job)
    return code
