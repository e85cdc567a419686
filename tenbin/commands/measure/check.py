"""``tenbin profile check``: whether this node still is the machine that was measured."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput, UserError
from profiles.quantities import Better, better, duration, number, readable_unit
from tenbin.commands import options
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.option_values import duration_s, names
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_answer, remark

if TYPE_CHECKING:
    from profiles.checks.check import Change, Check, CheckStore
    from profiles.checks.verdict import Reference
    from profiles.records import Profile, Settings
    from tenbin.client.client import Client

# -- a quiet moment ----------------------------------------------------------------------------------------


POLL_S = 0.5
CHECK_S = 180.0  # a check and its beginning; if this process is killed, jobs start again after that time


@contextmanager
def quiet_moment(home: Path | None, wait_s: float) -> Iterator[str]:
    """Hold the starts of jobs on this node, and wait at most ``wait_s`` for those that run.

    Yields:
        Who was asked, and the answer, as a sentence; "" if nobody was.
    """
    client = options.client_of(home)
    if client.is_remote:
        yield ""
        return
    try:
        client.call("POST", f"/hold?seconds={wait_s + CHECK_S:g}")
    except TenbinError as error:
        yield "" if error.exit_code == NO_ANSWER else f"the coordinator gave no quiet moment: {error}"
        return
    try:
        left = _wait(client, wait_s)
        yield f"the coordinator holds new jobs; {left or 'no'} jobs run beside the check"
    finally:
        with suppress(TenbinError):
            client.call("POST", "/hold?seconds=0")


def _wait(client: Client, wait_s: float) -> int:
    """Wait for running jobs; return how many still run."""
    end_s = time.monotonic() + wait_s
    while True:
        stages = client.call("GET", "/status")["jobs"]
        left = sum(stages.get(stage, 0) for stage in ("running", "stopping"))
        if not left or time.monotonic() >= end_s:
            return int(left)
        time.sleep(POLL_S)


# -- the command -------------------------------------------------------------------------------------------


SIBLINGS = "siblings"
MOST_BASELINE = 50


def _complete_against(incomplete: str) -> list[str]:
    return [SIBLINGS] * SIBLINGS.startswith(incomplete) + options.complete_selector(incomplete)


def check(
    *,
    quick: bool = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="PROFILE|siblings", autocompletion=_complete_against, show_default=False),
    ] = None,
    baseline: Annotated[int, typer.Option(min=1, max=MOST_BASELINE)] = 1,
    storage: Annotated[Path | None, typer.Option(show_default=False)] = None,
    hosts: Annotated[str | None, typer.Option(show_default=False)] = None,
    wait: Annotated[str, typer.Option(metavar="TIME")] = "0s",
    log: bool = False,
    prometheus: Annotated[Path | None, typer.Option(dir_okay=False, show_default=False)] = None,
    store: options.StoreOption = None,
    home: options.HomeOption = None,
    json: options.JsonOption = False,
) -> None:
    """Check that this node still is the machine that was measured, in half a minute: what changed, and why.

    Each check is kept, and the next ones are held against those since the last profile. Of checks of an
    unchanged machine at most 1 % say "changed", and 0.5 % for each OpenCL device. Eight earlier checks are
    needed; with more of them smaller losses are told. A quick check that finds a loss looks once more before
    it says so. At most 160 MiB are written to storage, 96 MiB with --quick.

    Exit codes: 0 as it was, 1 changed for the worse, 2 bad input, 3 it cannot be told (others use the
    machine, or too few earlier checks).

    [bold]Examples[/bold]

      tenbin profile check --quick --baseline 8

      tenbin profile check --quick --log

      tenbin profile check --against siblings --json

    Args:
        quick: About 8 s in place of 30, 3 in place of 8 for each OpenCL device; finds less.
        against: What to hold it against: the checks that followed a profile (default: this node's last), or
            'siblings': the other nodes of its kind in the store.
        baseline: Make so many checks one after the other, for the first ones after a profile.
        storage: Folder whose storage is measured (default: the profile's).
        hosts: Also messages from the first of these hosts (this one) to the second.
        wait: Where a coordinator runs here, it starts no job meanwhile; wait at most so long for the jobs
            that run.
        log: Print one line, for logs and Slurm's reasons.
        prometheus: Also write the result as Prometheus text to this file, for a node exporter.
    """
    from profiles.checks.check import EXIT_CODES, CheckStore, Verdict
    from profiles.checks.verdict import give_verdict, together

    if log and json:
        raise BadInput("--log and --json exclude each other", "leave one of them out")
    if prometheus is not None:
        options.ensure_writable("--prometheus", prometheus)
    wait_s = duration_s(wait, "--wait", least=0)
    own = options.stored_profiles(store).newest_whole(socket.gethostname())
    chosen = own if against in (None, SIBLINGS) else options.stored_profiles(store).load(against or "")
    checks = CheckStore(store)
    settings = _settings(own, storage, hosts, quick=quick)
    options.stored_profiles(store).prepare()
    disturbed = 0
    with options.terminated_as_interrupted():
        for number in range(baseline):
            with quiet_moment(home, wait_s) as quiet:
                made = _make(settings, own, quiet=quiet, number=(number, baseline))
                reference = _reference(checks, made, chosen, against)
                if quick and (doubtful := _doubtful(give_verdict(made, reference))):
                    again = settings.model_copy(update={"only": doubtful})
                    made = together(made, _make(again, own, quiet=quiet, number=(number, baseline)))
            done = _judged(made, reference, own, store)
            checks.append(done)
            disturbed += done.verdict is Verdict.DISTURBED
    if baseline > 1 and disturbed:
        remark(f"{baseline} checks, {disturbed} disturbed: these do not count; repeat them when all is quiet")
    if prometheus is not None:
        from profiles.export import prometheus_of_check as as_prometheus

        options.write_output("--prometheus", prometheus, as_prometheus(done))
    print_answer(done, line(done) if log else partial(print_check, done), json)
    raise typer.Exit(EXIT_CODES[done.verdict])


def _settings(profile: Profile | None, storage: Path | None, hosts: str | None, *, quick: bool) -> Settings:
    from profiles.records import Settings

    folders: tuple[Path, ...] = (options.storage_folder(storage),) if storage is not None else ()
    if not folders and profile is not None:
        folders = profile.settings.storage[:1]
    named = names(hosts, "--hosts")
    if hosts and len(named) != 2:
        raise BadInput(f"--hosts {hosts}: two hosts are needed", "name this one and another: --hosts a,b")
    return Settings(quick=quick, storage=folders, hosts=named)


def _make(settings: Settings, profile: Profile | None, *, quiet: str, number: tuple[int, int]) -> Check:
    from agent.node_check import make_check

    options.restore_leftovers()
    which = f"check {number[0] + 1} of {number[1]}: " if number[1] > 1 else ""

    def tell(doing: str) -> None:
        remark(f"{which}{doing}")

    settings = settings.model_copy(update={"seed": number[0] + 1})
    return make_check(settings, profile.id if profile else None, tell, quiet)


def _doubtful(check: Check) -> tuple[str, ...]:
    """Choose what is measured once more; of devices the slower ones only, because Slurm waits a minute."""
    from probes.registry import BATTERY, DEVICES
    from profiles.checks.check import Verdict

    if check.verdict is not Verdict.CHANGED:
        return ()
    worse = {change.labels.get("device", "") for change in check.changes if change.state == "worse"}
    devices = tuple(sorted(worse - {""}))
    return (*((DEVICES, *devices) if devices else ()), *(() if check.only_devices else (BATTERY,)))


def _reference(checks: CheckStore, made: Check, profile: Profile | None, against: str | None) -> Reference:
    """Choose what the check is held against."""
    from agent.node_profile.identity import amounts_of, deciding_facts
    from profiles.checks.verdict import Reference

    if against == SIBLINGS:
        others = [checks.of_node(node) for node in checks.nodes() if node != made.node]
        alike = [[c for c in several if c.kind == made.kind] for several in others]
        alike = [several for several in alike if several]
        return Reference(f"{len(alike)} siblings", siblings=alike)
    if profile is None:
        since = [c for c in checks.of_node(made.node) if c.profile is None]
        facts, amounts = dict(since[0].facts) if since else {}, _amounts(since)
        return Reference("earlier checks", checks=since, facts=facts, amounts=amounts)
    since = [c for c in checks.of_node(profile.inventory.hostname) if c.profile == profile.id]
    known = deciding_facts(profile.inventory)  # with all folders of that profile
    facts = dict(since[0].facts if since else made.facts)  # a profile does not know all of them
    facts |= {k: v for k, v in known.items() if k in made.facts or not k.startswith("storage ")}
    amounts = {**(_amounts(since) or made.amounts), **amounts_of(profile.inventory)}
    return Reference(f"checks since profile {profile.id}", checks=since, facts=facts, amounts=amounts)


def _amounts(checks: Sequence[Check]) -> dict[str, float]:
    """Return the amounts of the first check that has them: those of earlier releases have none."""
    return next((check.amounts for check in checks if check.amounts), {})


def _judged(made: Check, reference: Reference, profile: Profile | None, store: Path | None) -> Check:
    from profiles.checks.causes import consequences
    from profiles.checks.verdict import give_verdict
    from profiles.files.store import JobStore, load_job

    done = give_verdict(made, reference)
    jobs = []
    for path in JobStore(store).newest(made.kind).values() if made.kind else ():
        try:
            jobs.append(load_job(path))
        except UserError:  # a damaged one is told by 'tenbin program list'
            continue
    return done.model_copy(update={"consequences": tuple(consequences(done.changes, profile, jobs))})


# -- a check as people read it: a table, or one line for logs ----------------------------------------------


VERDICT_STYLES = {"pass": "green", "changed": "red", "disturbed": "yellow", "unknown": "dim"}
STATE_STYLES = {"worse": "bold red", "better": "bold green", "same": "", "unknown": "dim"}
STATED = ("worse", "better")
SHORT = 3  # changes in a line for logs
TITLES = {  # in the order of the table
    "compute_gflops": "arithmetic of a core",
    "compute_core_ratio": "slowest core",
    "compute_clock_ghz": "clock of the cores",
    "compute_core_clock_ratio": "slowest clock",
    "stream_bandwidth_gbs": "memory, {kernel}, cores: {cores}",
    "access_latency_ns": "latency in {level}",
    "message_latency_s": "message of {size}",
    "storage_read_mbs": "storage, read",
    "storage_write_mbs": "storage, write",
    "storage_random_read_p50_s": "storage, 4 KiB read",
    "storage_fsync_p50_s": "storage, 4 KiB fsync",
    "device_product_gflops": "{device}, product",
    "device_bandwidth_gbs": "{device}, memory {kernel}",
    "device_copy_gbs": "{device}, {direction}",
}
COLUMNS = ("", "now", "was", "unit", "change", "95 %", "tells")
ORDER = list(TITLES)
LONGEST_DEVICE = 12  # characters of an identity: GPU-1a2b3c4d, 0000:3b:00.0
MOST_TOLD = 1.0  # larger losses are not worth a number


def title(quantity: str, labels: dict[str, str], note: str = "") -> str:
    """Name a figure for people; a device by the note of its figures."""
    form = TITLES.get(quantity, quantity)
    if "device" in labels:
        labels = {**labels, "device": note or labels["device"][:LONGEST_DEVICE]}
        labels["direction"] = f"copy {labels.get('direction', '').partition('_')[0]} it"
    if labels.get("numa", "local") != "local":
        form += ", NUMA node {numa}"
    if "hosts" in labels:
        form += " to {hosts}"
    try:
        return form.format(**labels)
    except KeyError:
        return f"{quantity} {' '.join(labels.values())}".strip()


def signed(ratio: float) -> str:
    """Write a change with its sign: bandwidth -8.1 %, latency +12 %."""
    return f"{100 * ratio:+.1f} %"


def line(check: Check) -> str:
    """Write a check in one line, for logs and for the reason of a drained node."""
    parts = [f"tenbin check: {check.node} {check.verdict.value}: {check.reason}"]
    parts += [f"{title(f.quantity, f.labels)} {signed(f.change_ratio)}" for f in check.findings[:SHORT]]
    parts += [cause.sentence for cause in check.causes]
    if check.false_alarm_ratio is not None:
        parts.append(f"false alarms at most {100 * check.false_alarm_ratio:g} %")
    return "; ".join(parts)


def print_check(check: Check) -> None:
    """Print verdict, figures, causes and consequences."""
    console = SafeConsole()
    kind = "quick check" if check.quick else "check"
    took = duration(round(check.conditions.duration_s, 1))
    style = VERDICT_STYLES[check.verdict]
    console.plain(f"{check.node}: {kind} in {took}, against {check.against}")
    console.plain(f"{check.verdict.value.upper()}: {check.reason}", style=style)
    if check.changes:
        console.print(_table(check))
    for heading, sentences in (
        ("since", list(_since(check))),
        ("why", ["; ".join(filter(None, (c.sentence, c.remedy))) for c in check.causes]),
        ("differs", check.differences),
        ("means", check.consequences),
        ("not told", list(_not_told(check))),
        ("not measured", [f"{a.what}: {a.reason}" for a in check.absent]),
        ("quiet", [check.conditions.quiet] if check.conditions.quiet else []),
    ):
        for sentence in sentences:
            console.plain(f"  {heading}: {sentence}")
    console.plain(f"  {_power(check)}", style="dim")


def _table(check: Check) -> object:
    compared = ("was", "change", "95 %", "tells") if any(c.p is not None for c in check.changes) else ()
    columns = [column for column in COLUMNS if column in (*compared, "", "now", "unit")]
    made = table(*columns, left=("", "unit"), padding=(0, 1, 0, 0))
    for c in sorted(check.changes, key=_place):
        of_device = "device" in c.labels
        known = c.p is not None and c.low is not None and c.high is not None
        way = 1 if better(c.quantity) is Better.LOWER else -1
        limits = sorted(100 * way * loss for loss in (c.low or 0.0, c.high or 0.0))
        scale, unit = readable_unit(c.unit, c.now)
        note = f" ({c.note})" if c.note and c.state == "worse" and not of_device else ""
        cells = {"": f"  {_title(c)}{note}", "now": number(scale * c.now), "unit": unit}
        cells["tells"] = _detectable(c.tells_ratio)
        if known:
            cells |= {"was": number(scale * c.was), "change": signed(c.change_ratio)}
            cells["95 %"] = f"{limits[0]:+.0f} .. {limits[1]:+.0f}"
        made.add_row(*(cells.get(column, "") for column in columns), style=STATE_STYLES[c.state])
    return made


def _since(check: Check) -> Iterator[str]:
    """Say of each change when it was first seen."""
    for c in sorted(check.changes, key=_place):
        if c.since and c.state in STATED:
            yield f"{c.since.astimezone():%Y-%m-%d %H:%M}: {_title(c)}"


def _not_told(check: Check) -> Iterator[str]:
    """Say of each figure of a device how many checks tell a loss of ``DEVICE_LOSS``, if one does not."""
    from profiles.checks.figures import DEVICE_LOSS, WINDOW

    for c in sorted(check.changes, key=_place):
        alone, in_window = c.tells_ratio, c.tells_in_window_ratio
        if "device" in c.labels and alone is not None and in_window is not None and alone > DEVICE_LOSS:
            loss = f"{_title(c)}: a loss of {100 * DEVICE_LOSS:.0f} %"
            if in_window <= DEVICE_LOSS:
                yield f"{loss} shows in {WINDOW} checks in a row"
            else:
                yield f"{loss} does not show; its checks differ too much, {100 * in_window:.0f} % would"


def _title(change: Change) -> str:
    return title(change.quantity, change.labels, change.note)


def _place(change: Change) -> tuple[int, str]:
    known = change.quantity in ORDER
    return ORDER.index(change.quantity) if known else len(ORDER), _title(change)


def _detectable(tells_ratio: float | None) -> str:
    if tells_ratio is None:
        return ""
    return f">{100 * MOST_TOLD:.0f} %" if tells_ratio > MOST_TOLD else f"{100 * tells_ratio:.0f} %"


def _power(check: Check) -> str:
    """Say the rate of false alarms, and the losses that are told."""
    from profiles.checks.check import Verdict

    known = [c for c in check.changes if c.tells_ratio is not None]
    if check.verdict is Verdict.DISTURBED:
        return "it does not count: make it again when the machine is quiet; tenbin doctor names who is busy"
    if not known or check.false_alarm_ratio is None:
        return (
            "not compared yet: the first checks after a profile only learn what is usual; "
            "make them now: tenbin profile check --quick --baseline 8"
        )
    rate = f"{100 * check.false_alarm_ratio:g} %"
    references = max(c.references for c in known)
    return (
        f"of checks of an unchanged machine at most {rate} say 'changed' ({len(known)} figures together); "
        f"'tells': the loss that one check finds here in 95 of 100 cases, at a device in 99, by {references} "
        "earlier checks"
    )
