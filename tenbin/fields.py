"""The fields of a job, each declared once: its type and unit, what it is for, and how users write it.

From here come the options of ``tenbin submit`` and ``tenbin map``, which may also stand in ``#TENBIN``
lines, the keys of job files, the arguments of ``tenbin.submit`` and ``tenbin.Executor``, the descriptions in
the API, and the options before which those of ``#SBATCH`` lines give way. ``JobSpec`` has the same fields
with their bounds; tests hold it and the table of ``docs/job-files.md`` equal to these.

Only the standard library is imported at once: programs and the command line wait for it, and a user's program
may have a ``scheduler.py`` of its own.
"""

# No "from __future__ import annotations": the declarations are read from the types.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

UNITS = {"_s": "seconds", "_mb": "MB"}  # of a field, by the end of its name


@dataclass(frozen=True)
class Option:
    """The way to write a field: an option, and a key in job files, of the same name.

    Attributes:
        help: what it is for; after a bar, how to write it on the command line.
        read: function of ``tenbin/option_values.py`` that makes the value in a JobSpec of what the
            command line or TOML has.
        fields: of the JobSpec, if it is not only that which it is declared at; ``array`` is beside the spec.
        kind: type on the command line. least, most: its bounds, where they are checked there.
        default: what is read where it is not given; None: nothing. otherwise: the default in words.
        metavar: stands for the value in the help.
        name: with hyphens, if it is not that of the field without its unit. letter: its short form.
        sbatch: sbatch's options, before which it goes in a script with both.
    """

    help: str
    read: str = "words"
    fields: tuple[str, ...] = ()
    kind: Any = str
    least: int | None = None
    most: int | None = None
    default: Any = None
    otherwise: str = ""
    letter: str = ""
    metavar: str | None = None
    sbatch: str = ""
    name: str = ""

    @property
    def parameter(self) -> str:
        """Its name as that of a parameter of a function."""
        return self.name.replace("-", "_") + "_" * iskeyword(self.name)

    @property
    def spelling(self) -> tuple[str, ...]:
        """Its name and its letter on the command line; of a flag that is on by default also ``--no-``."""
        if self.default is True:
            return (f"--{self.name}/--no-{self.name}",)
        return (f"--{self.name}", f"-{self.letter}") if self.letter else (f"--{self.name}",)

    @property
    def text(self) -> str:
        """Its help on the command line."""
        default = f" (default: {self.otherwise})" if self.otherwise else ""
        return f"{self.help.replace('|', '')}.{default}"

    def values(self, value: Any) -> dict[str, Any]:
        """Read a value as fields of a JobSpec.

        Raises:
            BadOption: it cannot be read.
            TypeError, ValueError: it is of another type.
        """
        from tenbin import option_values

        result = getattr(option_values, self.read)(value, f"--{self.name}")
        return dict(zip(self.fields, result if len(self.fields) > 1 else (result,), strict=True))


Text = partial(Option, default="")
Whole = partial(Option, read="whole", kind=int)
Range = partial(Option, read="count_range")
Flag = partial(Option, read="flag", kind=bool, default=False)
Duration = partial(Option, metavar="TIME", otherwise="10s")
Instant = partial(Option, metavar="TIME")
Jobs = partial(Option, read="job_numbers", kind=list[str], metavar="JOB", sbatch="dependency")


class JobFields(TypedDict, total=False):
    """The fields that users give; a text beside a type is for programs, where the option's help is not."""

    name: Annotated[str, Text("Name of the job, for people", sbatch="job-name")]
    tasks: Annotated[
        int,
        Range(
            "How many tasks|: 4, or 1-4, from which the policy chooses",
            fields=("tasks", "max_tasks"),
            default="1",
            letter="n",
            sbatch="ntasks nodes ntasks-per-node",
        ),
    ]
    max_tasks: Annotated[int | None, "The most tasks that it can use; ``tasks`` are the fewest then"]
    cores: Annotated[int, Whole("Cores of each task", least=1, default=1, letter="c", sbatch="cpus-per-task")]
    mpi: Annotated[bool, Flag("Start the tasks as ranks, by mpiexec")]
    nodes: Annotated[
        int | None,
        Range("Whole nodes in place of tasks, which fill them|: 2, or 1-4", fields=("nodes", "max_nodes")),
    ]
    max_nodes: Annotated[int | None, "The most nodes that it can use; ``nodes`` are the fewest then"]
    speedup: Annotated[
        Mapping[int, float],
        Option("How fast so many tasks (or nodes) are|: 1=1,2=1.9,4=3.5", "speedups"),
        "Speed of so many tasks (or nodes) over one; empty: as measured, or assumed",
    ]
    load: Annotated[
        Literal["compute", "memory"],
        Text(
            "What limits the job, compute or memory: chooses the measured curves for its size",
            default="compute",
        ),
    ]
    cap_curve: Annotated[
        tuple[float, float] | None,
        Option(
            "Speed under a power cap on each package: full from so many watts on, less such a share of it "
            "for each watt below|: 120,0.004",
            "cap_curve",
            metavar="WATTS,SHARE",
        ),
    ]
    memory_mb: Annotated[
        float | None, Option("Memory of each task|: 500M, 2G", "megabytes", sbatch="mem mem-per-cpu")
    ]
    time_s: Annotated[
        float | None, Option("Limit of the run time|: 90s, 10m, 1.5h, 1:30:00", "seconds", sbatch="time")
    ]
    grace_s: Annotated[float, Duration("Time from SIGTERM to SIGKILL, when the job is ended", "grace_s")]
    device: Annotated[
        str,
        Text(
            "Where devices are scheduled: any, a kind (gpu, cpu), or a name",
            default="any",
        ),
    ]
    gpus: Annotated[
        int | None,
        Option(
            "GPUs of the job, all its tasks together|: 2, or of a kind: a100:1",
            "gpus_and_kind",
            fields=("gpus", "gpu_kind"),
            metavar="[KIND:]N",
            sbatch="gres gpus gpus-per-node gpus-per-task",
        ),
        "GPUs of the job, all its tasks together; None: none, or one if the next two say more",
    ]
    gpu_kind: Annotated[str, "Their kind, by a part of its name; empty: any"]
    gpu_memory_mb: Annotated[
        float | None, Option("GPUs with at least so much memory|: 20G", "megabytes", name="gpus-memory")
    ]
    expect_s: Annotated[
        Mapping[str, float],
        Option("Expected run time|: 10m, or on each device: gpu=1m,cpu=10m", "expected"),
        "Expected run time in seconds, by kind or name of device where they differ; by an empty text: "
        "wherever it runs, on the fewest units and without a power cap",
    ]
    alternatives: Annotated[
        Sequence[Mapping[str, Any]],
        Option(
            "What it may have instead, GPUs only if named|: cores=16,time=3h; repeatable",
            "alternatives",
            kind=list[str],
            default=(),
            metavar="KEY=VALUE,...",
            name="or",
        ),
        "Other ways to run it, each with fields of its own: tasks, cores, memory_mb, time_s, expect_s, "
        "gpus, gpu_kind, gpu_memory_mb",
    ]
    job_profile: Annotated[
        str, Text("Where jobs share nodes: its job profile, by name (tenbin program list)")
    ]
    checkpoint_signal: Annotated[
        int | None,
        Flag(
            "The job uses tenbin.Checkpoint, and can be stopped and moved",
            read="checkpoint_signal",
            name="checkpoint",
        ),
        Option(
            "A signal on which it writes a checkpoint of its own and leaves|: USR1",
            "signal_number",
            metavar="SIGNAL",
        ),
    ]
    checkpoint_code: Annotated[
        int, Whole("Its exit code when it leaves after a checkpoint", least=1, most=125, otherwise="85")
    ]
    move: Annotated[
        bool,
        Flag(
            "Where devices are scheduled: an unmodified OpenCL program can be parked and moved", default=True
        ),
    ]
    priority: Annotated[
        int, Whole("Jobs of a higher priority come before those that wait already", default=0, sbatch="nice")
    ]
    account: Annotated[
        str,
        Option(
            "NAME or NAME=WEIGHT: account of the job, and its weight until the job has ended, "
            "for policies that share between users (las-drf)",
            "account_and_share",
            fields=("account", "share"),
            metavar="NAME[=WEIGHT]",
            name="user-share",
        ),
        "Account of the job, for policies that share between users; empty: whoever runs tenbin",
    ]
    share: Annotated[float | None, "Weight of that account until the job has ended; None: as it is"]
    after: Annotated[
        Sequence[int],
        Jobs("Start only after this job, or all of this array, has succeeded|: 7, 7[3], last; repeatable"),
    ]
    after_any: Annotated[Sequence[int], Jobs("Start only after this job has ended, however|; repeatable")]
    after_not_ok: Annotated[
        Sequence[int], Jobs("Start only after this job has ended without success|; repeatable")
    ]
    after_corr: Annotated[
        Sequence[int],
        Jobs("Of arrays: each member after that of the same index there|; repeatable", metavar="ARRAY"),
    ]
    begin_s: Annotated[
        float | None,
        Instant("Do not start before|: 16:00, now+1h, 2026-12-24T08:00", "begin_s", sbatch="begin"),
        "Do not start before; in seconds since 1970",
    ]
    deadline_s: Annotated[
        float | None,
        Instant("End it at this time if it has not ended, or cancel it", "deadline_s", sbatch="deadline"),
        "End it then if it has not ended, or cancel it; in seconds since 1970",
    ]
    retries: Annotated[
        int, Whole("Try it again so often if it fails by itself", least=0, most=1000, default=0)
    ]
    retry_codes: Annotated[
        Sequence[int],
        Option(
            "Only on these exit codes (128 + signal)|: 1,137", "exit_codes", metavar="CODES", name="retry-on"
        ),
    ]
    retry_pause_s: Annotated[
        float, Duration("First pause before that; each is twice the one before, an hour at most", "seconds")
    ]
    array_index: Annotated[
        int | None, "A number for the command, in TENBIN_ARRAY_INDEX; members of an array have their own"
    ]
    array_limit: Annotated[
        int | None,
        Option(
            "One job for each number|: 1-10, 0-20:5, 1-99%8 (at most 8 at once); see TENBIN_ARRAY_INDEX",
            "array_and_limit",
            fields=("array", "array_limit"),
            sbatch="array",
            name="array",
        ),
        "How many members of the array may run at once; None: any number",
    ]
    env: Annotated[
        Mapping[str, str],
        Option(
            "A variable of its environment|; repeatable",
            "variables",
            kind=list[str],
            default=(),
            metavar="NAME=VALUE",
        ),
        "Variables besides those of whoever submits it",
    ]
    folder: Annotated[
        str, Option("Working directory", kind=Path, otherwise="this one", sbatch="chdir", name="chdir")
    ]
    stdout: Annotated[
        str,
        Text("File for standard output", sbatch="output", name="output"),
        "File for standard output, in the folder or absolute; empty: in the job's own folder",
    ]
    stderr: Annotated[
        str,
        Text("File for standard error", sbatch="error", name="error"),
        "File for standard error, in the folder or absolute; empty: in the job's own folder",
    ]
    terminal: Annotated[
        str, "Socket of the client whose streams it has in place of files (tenbin run); empty: it has files"
    ]
    notify: Annotated[
        str,
        Text(
            "Whom to tell when it has ended: a URL (POST), mail, mail:ADDRESS, or a command of the shell, "
            "with TENBIN_JOB, TENBIN_STATE, TENBIN_EXIT_CODE, ... (docs/run-jobs.md); of an array when all "
            "of it has",
            read="notification",
            default=None,
            metavar="CMD|mail|URL",
        ),
    ]
    requeue: Annotated[
        bool,
        Flag(
            "Run the job again if it is lost with its supervisor", default=True, sbatch="requeue no-requeue"
        ),
    ]
    slurm_variables: Annotated[
        bool, Flag("Set Slurm's variables (SLURM_JOB_ID, ...) also where no Slurm runs the job")
    ]


TYPES: dict[str, Any] = JobFields.__annotations__


def _option(field: str, option: Option) -> Option:
    """Add what follows from the name of the field."""
    stem = next((field.removesuffix(end) for end in UNITS if field.endswith(end)), field)
    return replace(option, name=option.name or stem.replace("_", "-"), fields=option.fields or (field,))


OPTIONS: dict[str, Option] = {
    option.name: option
    for field, hint in TYPES.items()
    for declared in hint.__metadata__
    if isinstance(declared, Option)
    for option in (_option(field, declared),)
}
KEY_OF = {field: option.name for option in reversed(OPTIONS.values()) for field in option.fields}
SBATCH_WORDS = {word: option for option in OPTIONS.values() for word in option.sbatch.split()}


def descriptions() -> Iterator[tuple[str, str]]:
    """Yield each field, and what a program must know of it."""
    for field, hint in TYPES.items():
        text = hint.__metadata__[-1]
        if isinstance(text, Option):
            units = [f" ({unit})" for end, unit in UNITS.items() if field.endswith(end)]
            text = text.help.partition("|")[0] + "".join(units)
        yield field, f"{text}."
