"""Faults injected for real: each is found, and named rightly.

Where others use the machine meanwhile, the cause is named all the same, and the exit code is that of a
disturbed check.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from agent.node_check import make_check
from probes.registry import BATTERY, CHECKS
from profiles.checks.check import EXIT_CODES, Check, CheckStore, Figure, Verdict, stamp
from profiles.checks.figures import LEAST_REFERENCES
from profiles.checks.verdict import Reference, give_verdict, is_disturbed
from profiles.records import Settings
from tests.support.labs.components import require
from tests.support.labs.network_lab import NetLab, netlab, require_netlab
from tests.support.programs import TENBIN

pytestmark = [pytest.mark.measures, pytest.mark.slow]

QUICK_S = 4.0
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SPIN = "while True: pass"


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")
        patch.setitem(CHECKS, BATTERY, replace(CHECKS[BATTERY], quick_s=QUICK_S))
        yield patch


@pytest.fixture(scope="module")
def storage() -> Path:
    folder = Path.home() / ".cache" / "tenbin-test-check"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def lab(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetLab]:
    require_netlab()
    with netlab(tmp_path_factory.mktemp("lab")) as made:
        for name, value in made.env.items():
            patched.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def past(lab: NetLab, storage: Path) -> list[Check]:
    """Make the reference: of the machine as it is one check, and others that differ by 2 % of noise."""
    check = made(storage, lab)
    rng = np.random.default_rng(1)
    checks = []
    for number in range(LEAST_REFERENCES):
        created = check.created - timedelta(hours=LEAST_REFERENCES - number)
        figures = tuple(noisy(figure, float(np.exp(rng.normal(0, 0.02)))) for figure in check.figures)
        about = {"id": stamp(created), "created": created, "verdict": Verdict.PASS}
        checks.append(check.model_copy(update={**about, "figures": figures}))
    return checks


def noisy(figure: Figure, factor: float) -> Figure:
    rounds = tuple(value * factor for value in figure.rounds)
    return figure.model_copy(update={"value": figure.value * factor, "rounds": rounds})


def made(storage: Path, lab: NetLab | None = None) -> Check:
    hosts = lab.hosts if lab is not None else ()
    return make_check(Settings(quick=True, storage=(storage,), hosts=hosts), None)


def judged(check: Check, past: list[Check]) -> Check:
    return give_verdict(check, Reference("", checks=past, facts=past[0].facts))


def unfit(check: Check) -> int:
    """Return the exit code of a check that finds a fault: that of a disturbed one where others were there."""
    return EXIT_CODES[Verdict.DISTURBED if is_disturbed(check.conditions) else Verdict.CHANGED]


def names(check: Check) -> list[str]:
    return [cause.name for cause in check.causes]


@contextmanager
def running(code: str) -> Iterator[int]:
    """Run a program on the last CPU that this process may use."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", code]) as process:
        try:
            time.sleep(1.0)
            yield process.pid
        finally:
            process.kill()


def test_a_program_that_takes_a_core_is_named_and_is_no_alarm(
    patched: pytest.MonkeyPatch, storage: Path
) -> None:
    with running(SPIN) as pid:
        check = give_verdict(made(storage), Reference(""))
    assert (check.verdict, EXIT_CODES[check.verdict]) == (Verdict.DISTURBED, 3)
    assert names(check)[0] == "processor-time"
    assert f"(pid {pid} of " in check.causes[0].sentence
    assert check.conditions.others_processors > 0.3


def test_a_shaped_link_and_huge_pages_that_are_off_are_named(
    past: list[Check], storage: Path, lab: NetLab
) -> None:
    require(os.access(HUGE_PAGES, os.W_OK), "transparent huge pages that can be switched off")
    before = HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    HUGE_PAGES.write_text("never")
    lab.shape(100)
    try:
        check = judged(made(storage, lab), past)
    finally:
        HUGE_PAGES.write_text(before)
        for number in range(1, len(lab.hosts) + 1):
            tc = f"ip netns exec {lab.prefix}n{number} tc qdisc del dev eth0 root".split()
            subprocess.run(tc, check=False)
    assert f"transparent huge pages {before} -> never" in check.differences
    worse = {change.quantity for change in check.changes if change.state == "worse"}
    if worse & {"access_latency_ns", "stream_bandwidth_gbs"}:  # a small effect on some machines
        assert "huge-pages" in names(check)
    if is_disturbed(check.conditions) and "link" not in names(check):  # ranks that wait for a processor
        pytest.skip(f"others use this machine: {check.conditions.consumers}")
    assert EXIT_CODES[check.verdict] == unfit(check)
    assert "link" in names(check)


Group = Callable[[str, dict[str, str]], Path]


@pytest.fixture
def group() -> Iterator[Group]:
    """Make control groups (version 1), which are removed at the end."""
    with ExitStack() as stack:

        def make(controller: str, values: dict[str, str]) -> Path:
            folder = Path("/sys/fs/cgroup") / controller / f"tenbin-test-{os.getpid()}"
            require(
                os.access(folder.parent, os.W_OK) and (folder.parent / "cgroup.procs").exists(), controller
            )
            folder.mkdir()
            stack.callback(folder.rmdir)
            for name, value in values.items():
                (folder / name).write_text(value)
            return folder

        yield make


def check_inside(folder: Path, store: Path, storage: Path) -> tuple[int, Check]:
    """Run ``tenbin check`` inside a control group."""
    command = [*TENBIN, "check", "--quick", "--json", "--storage", str(storage)]
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, str(folder), *command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TENBIN_STORE": str(store)},
    )
    if "another profile is measuring" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout, done.stderr
    return done.returncode, Check.model_validate_json(done.stdout)


def keep(store: Path, past: list[Check]) -> None:
    for check in past:
        CheckStore(store).append(check)


def test_a_cap_on_processor_time_is_found(group: Group, tmp_path: Path, storage: Path) -> None:
    """By a quota, as the emulated power caps work."""
    folder = group("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"})
    code, check = check_inside(folder, tmp_path, storage)
    assert check.facts["CPU quota"] == "1 processors"
    assert code == unfit(check)
    if not is_disturbed(check.conditions):  # else the slices wait for the others as well
        assert names(check) == ["cpu-quota"]


def test_a_slow_disk_is_found(group: Group, past: list[Check], tmp_path: Path, storage: Path) -> None:
    device = storage.stat().st_dev
    require(os.major(device), "storage with a device of its own")
    limit = f"{os.major(device)}:{os.minor(device)} {20 << 20}"
    folder = group("blkio", {f"blkio.throttle.{way}_bps_device": limit for way in ("read", "write")})
    keep(tmp_path, past)
    code, check = check_inside(folder, tmp_path, storage)
    assert code == unfit(check)
    assert "storage" in names(check)
    assert any(sentence.startswith("Moves: ") for sentence in check.consequences)
