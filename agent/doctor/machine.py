"""Checks that concern every probe: usable CPUs, causes of varying speed, virtualisation."""

from __future__ import annotations

from collections.abc import Iterator

from agent.doctor.finding import Case, Finding, limited, ok
from agent.inventory.files import read
from agent.node_profile.fingerprint import explain
from probes.topology import cpu_list
from profiles.records import Profile

# Clocks that are read by a system call, or over a slow bus, each time.
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit", "xen"}

_PERFORMANCE = "as root: echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"


def check(case: Case) -> Iterator[Finding]:
    yield from _usable(case)
    yield from _threads_and_kinds(case)
    yield from _frequency(case)
    yield from _clock(case)
    yield from _around(case)


def changes(case: Case, last: Profile) -> Iterator[Finding]:
    """Say how the machine, drivers included, has changed since its last profile; checkpoint folders apart."""
    then, now = (i.model_copy(update={"storage": ()}) for i in (last.inventory, case.inventory))
    if found := explain(then, now):
        what = f"its last profile ({last.id}) is stale: the machine has changed since"
        yield limited("machine", what, "; ".join(found), "profile it again: tenbin profile")


def _usable(case: Case) -> Iterator[Finding]:
    cpu, limits = case.inventory.cpu, case.inventory.limits
    outside = (
        "start tenbin outside of what sets the limit, or take the profile as one of this part of the node"
    )
    if limits.threads is not None:
        yield limited(
            "machine",
            f"only {limits.threads} of {cpu.threads} logical CPUs can be measured",
            "this process's affinity mask (taskset, a cpuset, a batch job) leaves no more",
            outside,
        )
    if limits.quota_cores is not None:
        yield limited(
            "machine",
            f"CPU time is limited to {limits.quota_cores:g} of {cpu.threads} logical CPUs",
            "a control group sets a quota; when it is used up everything stands still until the next period",
            outside,
        )
    if limits.memory_mb is not None:
        yield limited(
            "machine",
            f"only {limits.memory_mb:.0f} of {case.inventory.memory_mb:.0f} MB of memory can be used",
            "a control group sets a limit, and kills what goes beyond",
            outside,
        )
    offline = _offline(case)
    if offline:
        yield limited(
            "machine",
            f"{len(offline)} CPUs are offline and are not measured",
            "the kernel was told so",
            f"as root: echo 1 > /sys/devices/system/cpu/cpu{offline[0]}/online",
        )
    if limits.threads is None and limits.quota_cores is None and not offline:
        yield ok("machine", f"all {cpu.threads} logical CPUs can be used")


def _offline(case: Case) -> tuple[int, ...]:
    """List the CPUs that are offline, without those that are off because SMT was switched off."""
    folder = case.roots.sysfs / "devices/system/cpu"
    if read(folder / "smt/control") in ("off", "forceoff"):
        return ()
    there = cpu_list(read(folder / "present"))
    return tuple(cpu for cpu in cpu_list(read(folder / "offline")) if cpu in there)


def _threads_and_kinds(case: Case) -> Iterator[Finding]:
    cpu = case.inventory.cpu
    if cpu.smt:
        yield limited(
            "machine",
            f"SMT is on: {cpu.threads} threads on {cpu.cores} cores",
            "two threads of one core share its units, so each is slower than alone; the probes count cores "
            "and use one thread of each",
            "nothing to do; jobs that gain nothing from it run steadier with: "
            "echo off > /sys/devices/system/cpu/smt/control",
        )
    if len(cpu.core_kinds) > 1:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(cpu.core_kinds.items()))
        yield limited(
            "machine",
            f"the cores are of different kinds: {kinds}",
            "a curve over 1..n cores bends where it comes to the slower kind, and an unpinned load wanders",
            "measure one kind at a time: taskset -c <its CPUs> tenbin profile",
        )


def _frequency(case: Case) -> Iterator[Finding]:
    cpu = case.inventory.cpu
    if cpu.governor is None:
        reason = (
            "the hypervisor decides it" if case.virtual else "no frequency driver: the firmware decides it"
        )
        remedy = "" if case.virtual else "let the operating system control power in the firmware's setup"
        yield limited("machine", "clock frequency and turbo cannot be seen", reason, remedy)
    elif cpu.governor != "performance":
        yield limited(
            "machine",
            f"the frequency governor is {cpu.governor}",
            "after a pause a core starts slowly, so short measurements vary",
            _PERFORMANCE,
        )
    else:
        yield ok("machine", "the frequency governor is performance")
    if cpu.turbo:
        intel = (case.roots.sysfs / "devices/system/cpu/intel_pstate/no_turbo").exists()
        switch = "echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo" if intel else (
            "echo 0 > /sys/devices/system/cpu/cpufreq/boost"
        )  # fmt: skip
        yield limited(
            "machine",
            "turbo is on",
            "the clock depends on temperature and on how many cores are busy",
            f"leave it on if jobs run so; for the steadiest figures, as root: {switch}",
        )


def _clock(case: Case) -> Iterator[Finding]:
    clock = case.inventory.tuning.clock_source
    if clock in _SLOW_CLOCKS:
        yield limited(
            "machine",
            f"the clock is {clock}",
            "each reading costs a microsecond or more, so short times are coarse",
            "see why the kernel gave up the processor's own: dmesg | grep -i -e tsc -e clocksource",
        )
    elif clock is not None:
        yield ok("machine", f"the clock ({clock}) is read without a system call")


def _around(case: Case) -> Iterator[Finding]:
    i = case.inventory
    if case.virtual:
        yield limited(
            "machine",
            f"this is a virtual machine ({i.virtualisation})",
            "neighbours on the same hardware share its caches and memory, unseen from here",
            "measure more than once and compare: tenbin compare; better on the bare machine",
        )
    if i.container != "none":
        yield limited(
            "machine",
            f"this is a container ({i.container})",
            "it shows the host's processors and hides some of its devices and files",
            "measure on the host, or take the profile as one of jobs in such containers",
        )
    if i.tuning.numa_balancing and len(i.numa) > 1:
        yield limited(
            "machine",
            "the kernel moves memory between NUMA nodes by itself",
            "pages that a probe has placed may move while it measures",
            "as root: sysctl kernel.numa_balancing=0",
        )
    if i.tuning.huge_pages == "never":
        yield limited(
            "machine",
            "transparent huge pages are off",
            "large areas of memory then cost a page fault and a table entry every 4 KiB",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
