"""Everything about one job, as text: what it is, what it uses over time, what came of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from profiles.quantities import clock, counted, duration, local, number
from scheduler.jobs.literals import memory_text
from tenbin.errors import TenbinError
from tenbin.text import label, printable, ranges

if TYPE_CHECKING:
    from rich.table import Table

    from tenbin.client.client import Client

AT_ONCE_S = 2.0  # a start that is expected within so long
NO_ENERGY = "energy not known: no counter can be read there, or others shared it (tenbin doctor: power)"


def examined(client: Client, job_id: int, *, samples: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ask all about a job, or an array; return also the samples, if they are wanted or it runs."""
    job = client.job(job_id).info(sooner=True)
    if "members" in job:
        return job, []
    runs = job["stage"] in ("running", "stopping")
    rows = client.job(job_id).samples() if samples or runs else []
    more = {"stderr_end": last_error(client, job), "now": used_now(rows) if runs else None}
    return {**job, **more}, rows


def account(job: dict[str, Any]) -> str:
    """Write what ``GET /jobs/7`` says, of a job or an array, in lines for people."""
    if "members" in job:
        return _array_account(job)
    lines = [f"job {label(job)}: {job['stage']}{': ' + local(job['trouble']) if job['trouble'] else ''}"]
    lines += [f"  stderr ends: {job['stderr_end']}"] if job.get("stderr_end") else []
    lines += [f"  {line}" for line in (*_asked(job), *_expected(job), *_placed(job), *_used(job))]
    lines += [
        f"  {_prediction_and_outcome(forecast)}"
        for forecast in job["forecasts"]
        if forecast["measured"] is not None
    ]
    packed = f"; its folder is packed, see: tenbin logs {job['id']}" if job.get("packed") else ""
    files = f"{job['stdout']}, {job['stderr']}{packed}"
    lines.append(f"  output: {'the terminal of tenbin run' if job['spec'].get('terminal') else files}")
    for event in job["history"]:
        detail = f": {local(event['detail'])}" if event["detail"] else ""
        lines.append(f"  {clock(event['at_s'], date=True)} {event['what']}{detail}")
    return "\n".join(map(printable, lines))


def _array_account(array: dict[str, Any]) -> str:
    """Write how far an array is, and what its members share."""
    counts = ", ".join(f"{stage} {count:,}" for stage, count in array["stages"].items())
    lines = [f"array {array['id']}: {array['members']:,} jobs: {counts}"]
    if array["failed"]:
        lines.append(f"  failed: {array['id']}[{ranges(array['failed']).replace(' ', '')}]")
    lines += [f"  {line}" for line in _asked(array)]
    if limit := array["spec"]["array_limit"]:
        lines.append(f"  at most {limit} run at once")
    if wait := wait_words(array):
        lines.append(f"  {wait}")
    lines.append(f"  submitted {clock(array['submit_s'], date=True)}")
    return "\n".join(map(printable, lines))


def _asked(job: dict[str, Any]) -> list[str]:
    """List what the owner asked for."""
    spec = job["spec"]
    lines = [f"name {spec['name']}"] if spec["name"] else []
    lines += [
        f"{shlex.join(spec['command'])}, in {spec['folder']}",
        f"asked for {ways_words(spec, job.get('alternative'))}",
    ]
    if job["time_limit_s"] != list(_ways(spec))[job.get("alternative") or 0]["time_s"]:
        limit_s = job["time_limit_s"]
        lines.append(f"limit now: {'none' if limit_s is None else duration(limit_s)}")
    if job["priority"]:
        lines.append(f"priority {job['priority']}")
    if spec["account"]:
        weight = f", weight {spec['share']:g}" if spec["share"] else ""
        lines.append(f"counts as {spec['account']}{weight}")
    if spec["deadline_s"] is not None:
        lines.append(f"deadline {clock(spec['deadline_s'], date=True)}")
    return lines


def ways_words(spec: dict[str, Any], chosen: int | None = None) -> str:
    """Write what a job asks for, and what it may have instead: ``1 core, 1 GPU; or 16 cores``."""
    texts = [needs_words(way) for way in _ways(spec)]
    if chosen is not None:
        texts[chosen] += " (chosen)"
    return "; or ".join(texts)


def _ways(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the job as it is, and as each of its alternatives has it (``JobSpec.way``)."""
    yield spec
    alone = {"tasks": 1, "cores": 1, "nodes": None, "max_tasks": None, "max_nodes": None}
    without = dict.fromkeys(("gpus", "gpu_kind", "gpu_memory_mb"))
    for way in spec.get("alternatives", ()):
        yield {
            **spec,
            **alone,
            **without,
            **{name: value for name, value in way.items() if value is not None},
        }


def needs_words(spec: dict[str, Any]) -> str:
    """Write the size of a job, its memory and GPUs, and its time limit: ``4 tasks x 2 cores, 2 GB each``."""
    what, least = ("node", spec["nodes"]) if spec["nodes"] else ("task", spec["tasks"])
    most = spec["max_nodes"] or spec["max_tasks"]
    several = what == "node" or (most or least) > 1
    size = f"{least} to {most} {what}s" if most else counted(least, what)
    parts = [f"{f'{size} x ' if several else ''}{counted(spec['cores'], 'core')}"]
    if spec["memory_mb"]:
        parts.append(f"{memory_text(spec['memory_mb'])} of memory{' each' * several}")
    kind, gpu_mb = spec.get("gpu_kind"), spec.get("gpu_memory_mb")
    if gpus := spec.get("gpus") or int(bool(kind or gpu_mb)):
        of = ", ".join(filter(None, (kind, f"{memory_text(gpu_mb)} each" if gpu_mb else "")))
        parts.append(f"{counted(gpus, 'GPU')}{' in all' * several}{of and f' ({of})'}")
    limit = f"at most {duration(spec['time_s'])}" if spec["time_s"] else "no time limit"
    return f"{', '.join(parts)}; {limit}"


def _expected(job: dict[str, Any]) -> list[str]:
    """List the run time that the owner states, else predictions from earlier runs, and trials."""
    predicted = job.get("predicted") or {}
    stated, predictions = job["spec"]["expect_s"].items(), predicted.get("run_s", {}).items()
    lines = [f"stated by the user to run {number(seconds)} s{_on(device)}" for device, seconds in stated]
    lines += [
        f"expected to run {prediction_words(prediction)}{_on(pool)}: {local(prediction['rule'])}"
        for pool, prediction in predictions
    ]
    lines += map(_tried, predicted.get("tried", ()))
    if unrelated := job.get("from_unrelated_jobs"):
        lines.append(f"from unrelated jobs of yours; not used for planning: {prediction_words(unrelated)}")
    return lines


def _tried(trial: dict[str, Any]) -> str:
    """Write what a trial of the program told."""
    low, value, high = (number(trial[name]) for name in ("low", "value", "high"))
    results = "agree" if trial["agrees"] else "DIFFER: no policy moves it there"
    return (
        f"tried on {trial['pool']} at {clock(trial['at_s'])}: {value} times ({low} .. {high}) as fast as on "
        f"{trial['over']}, results {results}"
    )


def _on(device: str) -> str:
    return f" on {device}" if device else ""


def prediction_words(prediction: dict[str, Any], unit: str = "s") -> str:
    """Write a prediction: its middle, and its 10 and 90 % quantiles, or its bounds."""
    from scheduler.prediction.predictions import ELSEWHERE, TRIED

    middle, low, high = (number(prediction[name]) for name in ("middle", "low", "high"))
    if by := {ELSEWHERE: "the figures of the devices", TRIED: "a trial of the program"}.get(
        prediction["basis"]
    ):
        return f"{middle} {unit} ({low} .. {high} {unit} by {by})"
    return f"{middle} {unit} ({low} .. {high} {unit} in 8 of 10 cases; n = {prediction['n']})"


def _placed(job: dict[str, Any]) -> list[str]:
    """List why the job waits and until when, or where it runs or ran."""
    wait = wait_words(job)
    lines = [wait] if wait else []
    lines += [sooner_words(start) for start in job.get("sooner", ())]
    if job["start_s"] and (place := _place(job)):
        lines.append(f"{place}; attempt {job['attempt']}")
    lines += [local(job["moves"])] if job.get("moves") else []
    if job["start_s"] and job["region"]:
        lines.append(f"region {job['region']}")
    if job["start_s"] and (job["spec"]["max_tasks"] or job["cap_w"] is not None):
        cap = "" if job["cap_w"] is None else f", each node capped at {job['cap_w']:g} W"
        lines.append(f"{job['tasks']} task{'s' if job['tasks'] != 1 else ''}{cap}")
    return lines


def wait_words(job: dict[str, Any]) -> str:
    """Say why a job waits, and when it should start: ``...; starts about 12:03:10``, with its interval."""
    parts = [local(job["why"])] if job["why"] else []
    if at_s := job["expected_start_s"]:
        low_s, high_s = job.get("start_low_s"), job.get("start_high_s")
        within = f" ({clock(low_s)} to {clock(high_s)} in 8 of 10 cases)" if low_s and high_s else ""
        parts.append(f"starts about {clock(at_s)}{within}")
    return "; ".join(parts)


def prospect_words(prospect: Mapping[str, Any]) -> str:
    """Say when a job would start that is not submitted yet, and what it would wait for."""
    at_s = prospect["expected_start_s"]
    if at_s is not None and at_s <= time.time() + AT_ONCE_S:
        return "would start at once"
    start = "when it would start is not known" if at_s is None else f"would start about {clock(at_s)}"
    ahead = f"; {counted(prospect['ahead'], 'job')} before it" if prospect["ahead"] else ""
    return local(prospect["why"]) or start + ahead


def sooner_words(earlier: dict[str, Any]) -> str:
    """Say when a job would start if it were submitted again with a change."""
    at_s = earlier["expected_start_s"]
    when = "at once" if at_s <= time.time() + AT_ONCE_S else f"at {clock(at_s)}"
    told_by = f" ({earlier['told_by']})" if earlier["told_by"] else ""
    return f"sooner, if submitted again with {earlier['change']}: {when}{told_by}"


def _place(job: dict[str, Any]) -> str:
    """Name the device, or the nodes and cores, of the last attempt."""
    nodes = job["hosts"] or ([] if job["devices"] else [f"{job['placement']}{node}" for node in job["nodes"]])
    parts = [f"device {job['placement']}"] if job["devices"] else []
    parts += [", ".join(nodes)] if nodes else []
    cpus = job["cpus"]
    parts += [f"core number{'s' * (len(cpus) > 1)} {ranges(cpus)}"] if cpus else []
    gpus = job.get("gpus") or []
    parts += [f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}"] if gpus else []
    return "; ".join(parts)


def _used(job: dict[str, Any]) -> list[str]:
    """List what the job used, and what held its memory limit."""
    lines, used = _now(job), job["usage"]
    if used:
        peak_mb = used["peak_memory_mb"]
        memory = f"memory {number(peak_mb)} MB at most" if peak_mb else "too short to see its memory"
        lines.append(
            f"ran {used['running_s']:.2f} s, processor {used['user_s'] + used['system_s']:.2f} s, {memory}"
        )
        joules = used.get("energy_j")
        if joules is not None:
            mean = f", {joules / used['running_s']:.1f} W on average" if used["running_s"] > 0 else ""
            lines.append(f"energy {joules:.1f} J{mean}{' (EMULATED)' if used.get('emulated') else ''}")
    lines += _gpus_used(job.get("gpu_use") or {})
    if job["memory_limit_by"]:
        by = job["memory_limit_by"]
        held = "the supervisor, which looks every second" if by == "looking" else f"the kernel ({by})"
        lines.append(f"memory limit held by {held}")
    if used and used.get("energy_j") is None:
        lines.append(NO_ENERGY)
    return lines


def _gpus_used(use: dict[str, Any]) -> list[str]:
    """Say what the job does, or did, with its GPUs."""
    peak_mb, used = use.get("peak_gpu_memory_mb"), use.get("gpus_used")
    if peak_mb is None and used is None:
        return []
    count = counted(use["gpus_asked"], "GPU")
    unknown = f"its use of {count} is not known (not seen for long, or no counter tells it from others')"
    parts = [unknown if used is None else f"used {number(used)} of {count} on average"]
    parts += [] if peak_mb is None else [f"{number(peak_mb)} MB of GPU memory at most"]
    parts += [] if use["gpu_energy_j"] is None else [f"{number(use['gpu_energy_j'])} J of {count}"]
    return [f"{', '.join(parts)}{' (EMULATED)' * use['gpus_emulated']}"]


def _now(job: dict[str, Any]) -> list[str]:
    """List what a running job uses now."""
    now = job.get("now")
    if not now:
        return []
    way = list(_ways(job["spec"]))[job.get("alternative") or 0]
    asked_mb = (way["memory_mb"] or 0) * job["tasks"]
    limit = f" of {number(asked_mb)} MB" if asked_mb else ""
    power = "" if now["power_w"] is None else f"; power {number(now['power_w'])} W"
    memory = f"memory {number(now['memory_mb'])} MB, at most {number(now['peak_memory_mb'])}{limit}"
    rates = f"reads {number(now['read_mb_s'])} MB/s, writes {number(now['written_mb_s'])} MB/s"
    return [f"uses now: {number(now['cores'])} of {counted(job['cores'], 'core')}; {memory}; {rates}{power}"]


def _prediction_and_outcome(forecast: dict[str, Any]) -> str:
    """Write a prediction and its outcome."""
    from scheduler.prediction.predictions import UNITS

    kind, to = forecast["kind"], forecast["detail"].get("to")
    said = f"predicted {number(forecast['predicted'])}"
    if forecast["stated"] is not None:
        said = f"stated by the user {number(forecast['stated'])}"
    values = f"{said}, measured {number(forecast['measured'])}"
    return f"{kind}{f' to {to}' if to else ''}: {values} {UNITS[kind]}"


# -- a job's resource use over time ------------------------------------------------------------------------


LINES = 25


def sample_table(samples: list[dict[str, Any]], start_s: float | None) -> Table:
    """Make at most ``LINES`` lines, each of the span since the line before; memory is its maximum."""
    from tenbin.terminal import table

    metered = any(row["energy_j"] is not None for row in samples)
    columns = ("after", "cores", "memory", "read", "written", "processes", "threads")
    made = table(*columns, *["power"] * metered)
    for before, row in pairwise(_thinned(_from_start(samples, start_s))):
        span = max(row["at_s"] - before["at_s"], 1e-9)
        made.add_row(
            f"{row['at_s'] - (start_s or samples[0]['at_s']):.1f} s",
            f"{(row['cpu_s'] - before['cpu_s']) / span:.2f}",
            f"{row['memory_mb']:.0f} MB",
            f"{number((row['read_mb'] - before['read_mb']) / span)} MB/s",
            f"{number((row['written_mb'] - before['written_mb']) / span)} MB/s",
            str(row["processes"]),
            str(row["threads"]),
            *[f"{number(_power_w(before, row, span))} W"] * metered,
        )
    return made


def used_now(samples: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what a job uses, between its last two samples; None before the second.

    Returns:
        Cores in use, memory now and at most, rates of I/O in MB/s, power in W (None without a meter).
    """
    if len(samples) < 2:
        return None
    before, row = samples[-2:]
    span = max(row["at_s"] - before["at_s"], 1e-9)
    return {
        "cores": (row["cpu_s"] - before["cpu_s"]) / span,
        "memory_mb": row["memory_mb"],
        "peak_memory_mb": max(sample["memory_mb"] for sample in samples),
        "read_mb_s": (row["read_mb"] - before["read_mb"]) / span,
        "written_mb_s": (row["written_mb"] - before["written_mb"]) / span,
        "power_w": _power_w(before, row, span),
    }


def _from_start(samples: list[dict[str, Any]], start_s: float | None) -> list[dict[str, Any]]:
    """Add a row of nothing used at the job's start."""
    if start_s is None or not samples:
        return samples
    return [{**dict.fromkeys(samples[0], 0), "at_s": start_s, "energy_j": None}, *samples]


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the first row, and the last of each group of rows, with the most memory in the group."""
    size = max(-(-(len(rows) - 1) // LINES), 1)
    spans = [rows[begin : begin + size] for begin in range(1, len(rows), size)]
    return rows[:1] + [{**span[-1], "memory_mb": max(row["memory_mb"] for row in span)} for span in spans]


def _power_w(before: dict[str, Any], row: dict[str, Any], span: float) -> float | None:
    if row["energy_j"] is None or before["energy_j"] is None:
        return None
    return float((row["energy_j"] - before["energy_j"]) / span)


# -- outcomes; a failure comes with the last line that the job wrote to stderr -----------------------------


LOST = 125  # exit code of wait for a job that did not succeed and left with none, or with 0
SIGNALLED = 128
TAIL_BYTES = 4096
LONGEST_LINE = 500


def exit_code(job: dict[str, Any]) -> int:
    """Return 0 for a job that succeeded; else its own exit code, 128 + signal, or 125 without either."""
    if job["stage"] == "done":
        return 0
    if job["signal"]:
        return SIGNALLED + int(job["signal"])
    return int(job["code"] or LOST)


def has_failed(job: dict[str, Any]) -> bool:
    """Return True if a job has ended without success, and was not cancelled."""
    from tenbin.client.client import FINAL

    return job["stage"] in FINAL - {"done", "cancelled"}


def last_error(client: Client, job: dict[str, Any]) -> str:
    """Return the last line that a failed job wrote to stderr; "" without one, or if it cannot be read."""
    if not has_failed(job):
        return ""
    try:
        end: bytes = client.call("GET", f"/jobs/{job['id']}/stderr?last={TAIL_BYTES}")
    except TenbinError:
        return ""
    lines = [line.strip() for line in end.decode(errors="replace").splitlines()]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")


def outcome(client: Client, job: dict[str, Any], *, shown: bool = False) -> str:
    """Name the reason why a job did not succeed; "": the job succeeded.

    Args:
        shown: its standard error was shown already.
    """
    if job["stage"] == "done":
        return ""
    trouble, said = local(job["trouble"]), "" if shown else last_error(client, job)
    lines = [f"job {label(job)}: {job['stage']}{': ' if trouble else ''}{trouble}"]
    lines += [f"  stderr ends: {said}"] if said else []
    return "\n".join(map(printable, lines))
