"""Fixtures that any test may need."""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from probes.mpi.runner import MpiInstall, find_mpi
from profiles.errors import Unavailable
from tests.support.amounts import DRILL, examples
from tests.support.labs.components import require
from tests.support.labs.machines import Pristine, Tree
from tests.support.labs.network_lab import NetLab, netlab, require_netlab

gc.disable()  # until all tests are found: what that makes stays to the end

pytest_plugins = ["tests.support.coordinator", "tests.support.viewer"]

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would not reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored

settings.register_profile(
    "tests",
    max_examples=examples(300),
    deadline=None,
    derandomize=not DRILL,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("tests")

os.environ["TENBIN_SHARE"] = "1"  # tests run side by side, and each of their coordinators has all cores

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # PoCL fails if two build one kernel at once
    os.environ["POCL_CACHE_DIR"] = f"{tempfile.gettempdir()}/pocl-{os.getuid()}-{worker}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Say how a worker ended that was not to end yet: its signal, as a negative number, tells who did it."""
    if error:
        status = node.gateway._io.popen.wait(timeout=10)
        free_mb = psutil.virtual_memory().available // 10**6
        print(f"\n{node.gateway.id} ended with {status}; {free_mb} MB of memory are free")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without tests that measure where only those run."""
    if config.option.markexpr == "measures" and collection_path.suffix == ".py":
        return "mark.measures" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what computes: each test that no marker says to measure."""
    for item in items:
        if not any(mark.name in ("computes", "measures") for mark in item.iter_markers()):
            item.add_marker("computes")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = mixed(items)


def pytest_collection_finish() -> None:
    """Leave what imports and pytest have made out of later searches for garbage."""
    gc.freeze()
    gc.enable()


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files in the order in which workers take them: first those whose tests may take ten minutes.

    Then files of tests that wait for a cluster and files with slow tests, one after each few others; only
    quick ones are left for the very end, so that all workers end at about the same time.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[float, list[list[pytest.Item]]] = {}  # by the share of the way at which the last one begins
    for path, group in files.items():
        slow = any(item.get_closest_marker("slow") for item in group)
        share = 0.0 if is_long(group) else 0.6 if "slurm" in path.parts else 0.5 if slow else 1.0
        kinds.setdefault(share, []).append(group)
    found = [
        (share * (place + 1) / len(groups), group)
        for share, groups in kinds.items()
        for place, group in enumerate(groups)
    ]
    return [item for _, group in sorted(found, key=lambda one: one[0]) for item in group]


def is_long(group: list[pytest.Item]) -> bool:
    return any(mark.args[0] >= 600 for item in group for mark in item.iter_markers("timeout"))


class Faults(logging.Handler):
    """Keeps what a coordinator in this process has survived."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.getMessage().startswith("a fault of tenbin's"):
            self.seen.append(f"{record.getMessage()}\n{logging.Formatter().formatException(record.exc_info)}")


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """No fault is hidden, although a coordinator goes on; where faults are meant, a test file has its own."""
    faults = Faults()
    logging.getLogger("tenbin").addHandler(faults)
    yield
    logging.getLogger("tenbin").removeHandler(faults)
    assert not faults.seen, "\n".join(faults.seen)


@pytest.fixture
def own_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the node: what is measured here need not be right, and others may be measuring."""
    monkeypatch.setattr("agent.measured_node.NAME", f"tenbin-{os.getpid()}")


@pytest.fixture(scope="session")
def mpi() -> MpiInstall:
    """Find the MPI of this environment."""
    try:
        return find_mpi()
    except Unavailable as error:
        require(False, str(error))
        raise


@pytest.fixture(scope="module")
def two_hosts(mpi: MpiInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetLab]:
    """Join two hosts by a link, for tests of MPI between them."""
    require_netlab()
    with netlab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    """Make each machine of ``tests.support.labs.machines`` once, for tests that only read it."""
    made: dict[str, Tree] = {}

    def make(machine: Callable[[Path], Tree]) -> Tree:
        name = machine.__name__
        if name not in made:
            made[name] = machine(tmp_path_factory.mktemp(name))
        return made[name]

    return make
