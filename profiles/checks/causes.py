"""Causes of the changes that a check found, by their pattern: a table of rules, tried in order.

Figures of a check are corrected for time without a processor. So a program that takes processor time does not
slow arithmetic down in them, but it does take memory bandwidth and caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiles.card import BUSY, CHECKPOINT_MB
from profiles.checks.check import Cause, Change, CheckConditions, Consumer, slower
from profiles.jobs import JobProfile
from profiles.models import predict_time
from profiles.quantities import Difference
from profiles.records import Profile

HOT_C = 90.0
ALIKE = 0.5  # the clock explains a loss of speed if it lost at least this share of it
# Of their time in which slices have their processor. 60 checks of a quiet virtual machine had 0.993 or
# more, those under quotas of 1 and 0.6 of its two processors 0.87 to 0.925.
# Others that use less than ``BUSY`` may take 0.05.
LEAST_SHARE = 0.93
MEMORY = ("memory", "NUMA node", "transparent huge pages")  # facts that explain slower memory


@dataclass(frozen=True)
class Losses:
    """Losses by part of the machine, 0 where nothing is worse.

    Attributes:
        speed, clock: of all cores on average. core, core_clock: of the slowest beside the others.
        one_core, all_cores: bandwidth. far, near: latency beyond the caches, and in them.
    """

    speed: float
    clock: float
    core: float
    core_clock: float
    one_core: float
    all_cores: float
    far: float
    near: float
    storage: float
    messages: float
    network: float
    slowest: str


@dataclass(frozen=True)
class Case:
    """All that the rules look at."""

    losses: Losses
    differences: Sequence[Difference]
    conditions: CheckConditions
    disturbed: bool

    def differs(self, *facts: str) -> str:
        """Say how the first of these facts differs (of some only the beginning is named); "" if none does."""
        return next((str(d) for d in self.differences if d.fact.startswith(facts)), "")


def explain(
    changes: Sequence[Change],
    differences: Sequence[Difference],
    conditions: CheckConditions,
    *,
    disturbed: bool,
) -> list[Cause]:
    """Name the causes, the surest first; every loss has one, if only "unknown"."""
    case = Case(losses(changes), differences, conditions, disturbed)
    rules = (_processor_time, _limited, _clock, _core, _memory, _near, _storage, _messages)
    causes = [cause for rule in rules for cause in rule(case)]
    causes += [] if disturbed else _devices(changes, case)
    if not causes and any(change.state == "worse" for change in changes):
        causes = [Cause(name="unknown", sentence="no rule explains what is worse", remedy="see the figures")]
    return causes


def losses(changes: Sequence[Change]) -> Losses:
    """Sort the losses by part of the machine, the largest of each."""

    def worst(*quantities: str, **labels: str) -> float:
        return max(
            (
                c.loss_ratio
                for c in changes
                if c.state == "worse" and c.quantity in quantities and labels.items() <= c.labels.items()
            ),
            default=0.0,
        )

    several = [c for c in changes if c.quantity == "stream_bandwidth_gbs" and c.labels.get("cores") != "1"]
    cores = [c for c in changes if c.quantity in ("compute_core_ratio", "compute_core_clock_ratio")]
    storage = {c.quantity for c in changes if c.quantity.startswith("storage_")}
    return Losses(
        speed=worst("compute_gflops"),
        clock=worst("compute_clock_ghz"),
        core=worst("compute_core_ratio"),
        core_clock=worst("compute_core_clock_ratio"),
        one_core=worst("stream_bandwidth_gbs", cores="1"),
        all_cores=max((c.loss_ratio for c in several if c.state == "worse"), default=0.0),
        far=worst("access_latency_ns", level="memory"),
        near=max(worst("access_latency_ns", level=f"L{n}") for n in (1, 2, 3)),
        storage=worst(*storage),
        messages=worst("message_latency_s", scope="node"),
        network=worst("message_latency_s", scope="hosts"),
        slowest=next((c.note for c in cores if c.state == "worse" and c.note), ""),
    )


def _processor_time(case: Case) -> Iterator[Cause]:
    """Name who uses the processors."""
    if not case.disturbed:
        return
    c, loss = case.conditions, case.losses
    if c.others_processors > BUSY * c.processors or c.consumers:
        who = _who(c.consumers)
        much = f"{c.others_processors:.2g} of {c.processors} processors"
        sentence = f"something takes processor time, {much}: {who or 'processes that lived shortly'}"
        remedy = "check again when it has ended, or stop it"
        yield Cause(name="processor-time", sentence=sentence, remedy=remedy)
        if who and max(loss.one_core, loss.all_cores, loss.far) > loss.speed and not case.differs(*MEMORY):
            yield Cause(
                name="memory-neighbour", sentence=f"something takes memory bandwidth: {who}", remedy=remedy
            )
    else:
        share = f"{c.steal_ratio:.1%}".replace("%", " %")
        yield Cause(
            name="stolen-time",
            sentence=f"the hypervisor gave {share} of the processor time to other guests",
            remedy="ask for dedicated processors, or check at another hour",
        )


def _who(consumers: Sequence[Consumer]) -> str:
    return ", ".join(f"{c.name} (pid {c.pid} of {c.user}, {c.processors:.2f} processors)" for c in consumers)


def _limited(case: Case) -> Iterator[Cause]:
    """Find a limit of processor time: nobody else ran, and the slices had to wait."""
    share = case.conditions.cpu_share_ratio
    if case.disturbed or share is None or share >= LEAST_SHARE:
        return
    quota = case.differs("CPU quota")
    yield Cause(
        name="cpu-quota",
        sentence=f"processor time is limited to {100 * share:.0f} %{f' ({quota})' if quota else ''}",
        remedy="see the control group's cpu.max, or cpu.cfs_quota_us",
    )


def _clock(case: Case) -> Iterator[Cause]:
    """Find why all cores are slower together."""
    speed, clock, c = case.losses.speed, case.losses.clock, case.conditions
    if not max(speed, clock):
        return
    if clock < ALIKE * speed:
        sentence = "all cores compute slower at the same clock: others share them (hyperthreads, a host)"
        yield Cause(name="shared-cores", sentence=sentence, remedy="see who uses the other hardware threads")
        return
    if c.throttled or (c.temperature_c or 0.0) >= HOT_C:
        degrees = f" ({c.temperature_c:.0f} degrees)" if c.temperature_c else ""
        yield Cause(name="heat", sentence=f"the clock is lower: heat{degrees}", remedy="see fans and dust")
    elif governor := case.differs("governor", "turbo", "maximum frequency"):
        yield Cause(name="governor", sentence=f"the clock is lower: {governor}", remedy="set it back")
    elif cap := case.differs("cap of", "power zone"):
        yield Cause(name="power-cap", sentence=f"the clock is lower: {cap}", remedy="tenbin profile restore")
    else:
        sentence = "the clock is lower: a power cap, the firmware, or the host of a virtual machine"
        yield Cause(name="clock", sentence=sentence, remedy="see the caps: tenbin doctor")


def _core(case: Case) -> Iterator[Cause]:
    """Find one core that is slower than the others."""
    if not max(case.losses.core, case.losses.core_clock):
        return
    name = case.losses.slowest or "one core"
    if case.losses.core_clock:
        sentence = f"{name} alone has a lower clock"
    else:
        sentence = f"{name} alone is slower at the same clock: something shares it"
    yield Cause(name="one-core", sentence=sentence, remedy="see interrupts and what is bound to it")


def _memory(case: Case) -> Iterator[Cause]:
    """Find why memory is slower; not where the clock explains it, or processes that were named."""
    part = case.losses
    worst = max(part.one_core, part.all_cores, part.far)
    if not worst or max(part.speed, part.clock) >= worst or (case.disturbed and not case.differs(*MEMORY)):
        return
    if lost := case.differs(*MEMORY[:2]):
        yield Cause(name="memory-lost", sentence=f"memory is slower: {lost}", remedy="see dmesg")
    elif pages := case.differs("transparent huge pages"):
        yield Cause(name="huge-pages", sentence=f"memory is slower: {pages}", remedy="set it back")
    elif part.far and not max(part.one_core, part.all_cores):
        sentence = "only single accesses to memory are slower: huge pages are short, or memory is far"
        yield Cause(name="far-memory", sentence=sentence, remedy="see free huge pages and NUMA balancing")
    else:
        sentence = "memory is slower, arithmetic is not: another guest of the host, or a lost module"
        yield Cause(name="memory", sentence=sentence, remedy="see dmesg; check at another hour")


def _near(case: Case) -> Iterator[Cause]:
    part = case.losses
    if part.near > max(part.clock, part.speed) and not case.disturbed:
        sentence = "the caches answer later at the same clock: others share the core"
        yield Cause(name="shared-cores", sentence=sentence, remedy="see who uses the other hardware threads")


def _storage(case: Case) -> Iterator[Cause]:
    if case.losses.storage:
        why = case.differs("storage") or "a limit, another user, or a failing disk"
        remedy = "see iostat -x, smartctl, io.max"
        yield Cause(name="storage", sentence=f"storage is slower: {why}", remedy=remedy)


def _messages(case: Case) -> Iterator[Cause]:
    part = case.losses
    if part.network:
        why = case.differs("interface", "queue of", "PCIe link") or "the link, or its other users"
        remedy = "see ethtool, tc qdisc, and the switch"
        yield Cause(name="link", sentence=f"messages to other hosts are slower: {why}", remedy=remedy)
    explained = max(part.speed, part.one_core, part.all_cores, part.near)
    if part.messages > explained and not case.disturbed:
        sentence = "messages between cores are slower, and nothing else explains it"
        yield Cause(name="messages", sentence=sentence, remedy="see which MPI is in use, and its settings")


def _devices(changes: Sequence[Change], case: Case) -> Iterator[Cause]:
    """Name each OpenCL device that is slower; its note is its name."""
    names = {c.note or c.labels["device"]: c.labels["device"] for c in changes if "device" in c.labels}
    for name, device in names.items():
        worse = [c for c in changes if c.state == "worse" and c.labels.get("device") == device]
        if worse:
            why = case.differs(f"cap of {name}", name, "PCIe link")
            sentence = slower(name, max(change.loss_ratio for change in worse)) + (f": {why}" if why else "")
            remedy = "set it back" if why else "see its cooling, caps and link: nvidia-smi -q"
            yield Cause(name="device", sentence=sentence, remedy=remedy)


# -- consequences for what is predicted of jobs on the node ------------------------------------------------


MEMORY_BOUND = 1.1  # slow-down beside memprobe from which on a job is said to live on memory
MOST_NAMED = 5


def consequences(changes: Sequence[Change], profile: Profile | None, jobs: Sequence[JobProfile]) -> list[str]:
    """Say in sentences what no longer holds; empty where nothing is worse."""
    lost = losses(changes)
    return [
        *_of_speed(max(lost.speed, lost.clock), jobs),
        *_of_memory(max(lost.one_core, lost.all_cores), lost.far, jobs),
        *_of_storage(changes, profile),
        *_of_messages(max(lost.messages, lost.network)),
    ]


def _longer(loss: float) -> str:
    """Turn a loss of speed into the time that it adds."""
    return f"{100 * (1 / (1 - min(loss, 0.99)) - 1):.0f} %"


def _of_speed(loss: float, jobs: Sequence[JobProfile]) -> Iterator[str]:
    if loss:
        yield f"Run times: programs that compute take up to {_longer(loss)} longer here than elsewhere."
        capped = [job.name for job in jobs if job.caps is not None]
        if capped:
            yield f"Caps: the speeds under caps of {_names(capped)} were measured at the full clock."


def _of_memory(bandwidth: float, latency: float, jobs: Sequence[JobProfile]) -> Iterator[str]:
    if not max(bandwidth, latency):
        return
    bound = [job.name for job in jobs if _slowdown(job) >= MEMORY_BOUND]
    whom = _names(bound) if bound else "jobs that live on memory"
    longer = _longer(bandwidth) if bandwidth else f"{100 * latency:.0f} %"
    yield f"Run times: {whom} take up to {longer} longer here."
    yield "Pairs: two jobs that fit beside each other by their profiles may not fit here any more."


def _slowdown(job: JobProfile) -> float:
    """Return the largest slow-down beside memprobe; 1 where it was not measured."""
    curve = job.sensitivity_by()
    return max((level.slowdown.value for level in curve.levels), default=1.0) if curve else 1.0


def _of_storage(changes: Sequence[Change], profile: Profile | None) -> Iterator[str]:
    for quantity, model_name, what in (
        ("storage_write_mbs", "checkpoint_s", "a checkpoint"),
        ("storage_read_mbs", "restart_s", "a restart"),
    ):
        change = next((c for c in changes if c.quantity == quantity and c.state == "worse"), None)
        if change is None:
            continue
        model = profile.find(model_name, storage=change.labels["storage"]) if profile else None
        before = predict_time(model, CHECKPOINT_MB) if model is not None else None
        if before is None:
            yield f"Moves: {what} takes up to {_longer(change.loss_ratio)} longer here."
            continue
        after = before.value / (1 - min(change.loss_ratio, 0.99))
        yield f"Moves: {what} of 1 GB, predicted in {before.value:.2g} s, takes up to {after:.2g} s."


def _of_messages(loss: float) -> Iterator[str]:
    if loss:
        yield "Run times: jobs whose ranks send many messages take longer here."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
