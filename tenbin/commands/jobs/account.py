"""Everything about one job, as text."""

from __future__ import annotations

import shlex
import time
from typing import Any

from profiles.instants import clock, local
from scheduler.prediction.predictions import ELSEWHERE, TRIED, UNITS
from tenbin.commands.jobs.selection import ranges
from tenbin.text import label, number, printable

AT_ONCE_S = 2.0  # a start that is expected within so long


def account(job: dict[str, Any]) -> str:
    """Write what ``GET /jobs/7`` says in lines for people."""
    lines = [f"job {label(job)}: {job['stage']}{': ' + local(job['trouble']) if job['trouble'] else ''}"]
    lines += [f"  stderr ends: {job['stderr_end']}"] if job.get("stderr_end") else []
    lines += [f"  {line}" for line in (*_asked(job), *_expected(job), *_placed(job), *_used(job))]
    lines += [f"  {_prediction_and_outcome(one)}" for one in job["forecasts"] if one["measured"] is not None]
    packed = f"; its folder is packed, see: tenbin logs {job['id']}" if job.get("packed") else ""
    lines.append(f"  output: {job['stdout']}, {job['stderr']}{packed}")
    for event in job["history"]:
        detail = f": {local(event['detail'])}" if event["detail"] else ""
        lines.append(f"  {clock(event['at_s'], date=True)} {event['what']}{detail}")
    return "\n".join(map(printable, lines))


def array_account(array: dict[str, Any]) -> str:
    """Write how far an array is, and what its members share."""
    counts = ", ".join(f"{stage} {count:,}" for stage, count in array["stages"].items())
    lines = [f"array {array['id']}: {array['members']:,} jobs: {counts}"]
    if array["failed"]:
        lines.append(f"  failed: {array['id']}[{ranges(array['failed']).replace(' ', '')}]")
    lines += [f"  {line}" for line in _asked(array)]
    if limit := array["spec"]["array_limit"]:
        lines.append(f"  at most {limit} run at once")
    lines.append(f"  submitted {clock(array['submit_s'], date=True)}")
    return "\n".join(map(printable, lines))


def _asked(job: dict[str, Any]) -> list[str]:
    """List what the owner asked for."""
    spec = job["spec"]
    lines = [f"{shlex.join(spec['command'])}, in {spec['folder']}"]
    if job["priority"]:
        lines.append(f"priority {job['priority']}")
    if spec["account"]:
        weight = f", weight {spec['share']:g}" if spec["share"] else ""
        lines.append(f"counts as {spec['account']}{weight}")
    if spec["deadline_s"] is not None:
        lines.append(f"deadline {clock(spec['deadline_s'], date=True)}")
    return lines


def _expected(job: dict[str, Any]) -> list[str]:
    """List the run time that the owner states, else predictions from earlier runs, and trials."""
    predicted = job.get("predicted") or {}
    stated, told = job["spec"]["expect_s"].items(), predicted.get("run_s", {}).items()
    lines = [f"stated by the user to run {number(seconds)} s{_on(device)}" for device, seconds in stated]
    lines += [
        f"expected to run {prediction_words(found)}{_on(pool)}: {local(found['rule'])}"
        for pool, found in told
    ]
    lines += map(_tried, predicted.get("tried", ()))
    if unrelated := job.get("from_unrelated_jobs"):
        lines.append(f"from unrelated jobs of yours; not used for planning: {prediction_words(unrelated)}")
    return lines


def _tried(one: dict[str, Any]) -> str:
    """Write what a trial of the program told."""
    low, value, high = (number(one[name]) for name in ("low", "value", "high"))
    results = "agree" if one["agrees"] else "DIFFER: no policy moves it there"
    return (
        f"tried on {one['pool']} at {clock(one['at_s'])}: {value} times ({low} .. {high}) as fast as on "
        f"{one['over']}, results {results}"
    )


def _on(device: str) -> str:
    return f" on {device}" if device else ""


def prediction_words(found: dict[str, Any], unit: str = "s") -> str:
    """Write a prediction: its middle, and its 10 and 90 % quantiles, or its bounds."""
    middle, low, high = (number(found[name]) for name in ("middle", "low", "high"))
    if by := {ELSEWHERE: "the figures of the devices", TRIED: "a trial of the program"}.get(found["basis"]):
        return f"{middle} {unit} ({low} .. {high} {unit} by {by})"
    return f"{middle} {unit} ({low} .. {high} {unit} in 8 of 10 cases; n = {found['n']})"


def _placed(job: dict[str, Any]) -> list[str]:
    """List why the job waits and until when, or where it runs or ran."""
    lines = [local(job["why"])] if job["why"] else []
    if job["expected_start_s"]:
        lines.append(f"should start at {clock(job['expected_start_s'])}")
    lines += [sooner_words(one) for one in job.get("sooner", ())]
    if job["start_s"] and (place := _place(job)):
        lines.append(f"{place}; attempt {job['attempt']}")
    lines += [local(job["moves"])] if job.get("moves") else []
    if job["start_s"] and job["region"]:
        lines.append(f"region {job['region']}")
    if job["start_s"] and (job["spec"]["max_tasks"] or job["cap_w"] is not None):
        cap = "" if job["cap_w"] is None else f", each node capped at {job['cap_w']:g} W"
        lines.append(f"{job['tasks']} task{'s' if job['tasks'] != 1 else ''}{cap}")
    return lines


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
    parts += [f"cores {', '.join(map(str, job['cpus']))}"] if job["cpus"] else []
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
    if job["memory_limit_by"]:
        by = job["memory_limit_by"]
        held = "the supervisor, which looks every second" if by == "looking" else f"the kernel ({by})"
        lines.append(f"memory limit held by {held}")
    return lines


def _now(job: dict[str, Any]) -> list[str]:
    """List what a running job uses now."""
    now = job.get("now")
    if not now:
        return []
    asked_mb = (job["spec"]["memory_mb"] or 0) * job["tasks"]
    asked = f" of {number(asked_mb)} MB" if asked_mb else ""
    power = "" if now["power_w"] is None else f"; power {number(now['power_w'])} W"
    memory = f"memory {number(now['memory_mb'])} MB, at most {number(now['peak_memory_mb'])}{asked}"
    rates = f"reads {number(now['read_mb_s'])} MB/s, writes {number(now['written_mb_s'])} MB/s"
    return [f"uses now: {number(now['cores'])} of {job['cores']} cores; {memory}; {rates}{power}"]


def _prediction_and_outcome(forecast: dict[str, Any]) -> str:
    """Write a prediction and its outcome."""
    kind, to = forecast["kind"], forecast["detail"].get("to")
    said = f"predicted {number(forecast['predicted'])}"
    if forecast["stated"] is not None:
        said = f"stated by the user {number(forecast['stated'])}"
    values = f"{said}, measured {number(forecast['measured'])}"
    return f"{kind}{f' to {to}' if to else ''}: {values} {UNITS[kind]}"
