"""A Slurm cluster for the tests of this folder and those below it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.labs.slurm_lab import SlurmLab, short_slurmlab


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the log of Slurm's daemons and of the coordinator to a failure: the lab is gone afterwards."""
    report = yield
    values = getattr(item, "funcargs", {})
    if report.failed and isinstance(lab := values.get("lab"), SlurmLab):
        report.sections.append(("Slurm's logs", lab.told(8000)))
        logs = Path(values.get("tmp_path", lab.folder)).glob("coordinator.log")
        report.sections += [("coordinator's log", log.read_text()[-8000:]) for log in logs]
    return report


@pytest.fixture(scope="package")
def _cluster() -> Iterator[SlurmLab]:
    """Bring up a cluster, which is gone before tests of other folders look for processes left behind."""
    with short_slurmlab() as lab:
        yield lab


@pytest.fixture
def lab(_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Yield an idle Slurm cluster of three nodes, 2 CPUs and 2000 MB each; the environment leads to it."""
    for name, value in _cluster.env.items():
        monkeypatch.setenv(name, value)
    yield _cluster
    _cluster.mend()
