"""What every test may need."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from probes.mpi.launchers import MpiInstall, find_mpi
from profiles.errors import Unavailable
from tests.machines import Pristine, Tree

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would not reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests that measure nothing, beside those of whole folders (below): several may run at once.
# A test that differs from its file says so: pytest.mark.computes, pytest.mark.measures.
COMPUTING = {
    *("test_cap_keeper", "test_checkpoint", "test_checkpoint_fit", "test_cli", "test_cluster_report"),
    "test_compare",
    *("test_device_facts", "test_direct_io", "test_doctor", "test_downey", "test_examples", "test_export"),
    *("test_fits", "test_generations", "test_inventory", "test_job_fit", "test_journal", "test_knee"),
    "test_lack_of_fit",
    *("test_late_writes", "test_limits", "test_linear", "test_loads", "test_lock", "test_memory_plan"),
    *("test_mpi", "test_network", "test_obituary", "test_opencl", "test_pairs", "test_placements"),
    *("test_powercap", "test_profiler", "test_report", "test_siblings", "test_stats", "test_store"),
    *("test_snapshots", "test_terminal", "test_text", "test_trust"),
}
if (
    "PYTEST_XDIST_WORKER" in os.environ
):  # two processes that build the same kernel at once are too much for PoCL
    os.environ["POCL_CACHE_DIR"] = (
        f"{tempfile.gettempdir()}/pocl-{os.getuid()}-{os.environ['PYTEST_XDIST_WORKER']}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        quiet = item.path.stem in COMPUTING or item.path.parent.name in ("scheduler", "coordinator", "slurm")
        if quiet and item.get_closest_marker("measures") is None:
            item.add_marker("computes")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = mixed(items)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files of tests that wait for a cluster, one after each few that compute: workers take them in order."""
    files: dict[bool, dict[Path, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        files[item.path.parent.name == "slurm"].setdefault(item.path, []).append(item)
    found: list[tuple[float, list[pytest.Item]]] = []
    for kind, share in ((True, 0.6), (False, 1.0)):  # those that wait are not left for the very end
        groups = list(files[kind].values())
        found += [(share * place / len(groups), group) for place, group in enumerate(groups)]
    return [item for _, group in sorted(found, key=lambda one: one[0]) for item in group]


def require(condition: object, reason: str) -> None:
    """Skip the test where a component is missing; on CI (env ``CI``) a missing component is a failure."""
    if condition:
        return
    if os.environ.get("CI"):
        pytest.fail(f"missing on CI: {reason}")
    pytest.skip(reason)


def processes_below() -> list[psutil.Process]:
    """Every process that the tests' own has started and that is left, also one that nobody has waited for.

    Without multiprocessing's tracker, which an earlier test may have started: it stays as long as the tests.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.ZombieProcess:  # a NoSuchProcess too, but still there
            words = []
        except psutil.NoSuchProcess:
            continue
        if not any("resource_tracker" in word for word in words):
            found.append(child)
    return found


@pytest.fixture
def own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not that of the node: what is measured here need not be right, and others may be measuring."""
    monkeypatch.setattr("agent.lock.default_lock_file", lambda: tmp_path / "lock")


@pytest.fixture(scope="session")
def mpi() -> MpiInstall:
    """The MPI of this environment."""
    try:
        return find_mpi()
    except Unavailable as error:
        require(False, str(error))
        raise


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    """A machine of ``tests.machines``, made once; for tests that only look at it."""
    made: dict[str, Tree] = {}

    def make(machine: Callable[[Path], Tree]) -> Tree:
        name = machine.__name__
        if name not in made:
            made[name] = machine(tmp_path_factory.mktemp(name))
        return made[name]

    return make
