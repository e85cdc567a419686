"""Snapshots of what users and running jobs rely on: a change is seen, and stands in the changelog.

``TENBIN_SNAPSHOTS=write`` writes the files in ``tests/data/snapshots`` anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from agent.attempts.folder import Attempt
from probes.registry import PROBES
from profiles.export import prometheus as profile_metrics
from profiles.export import prometheus_of_check as check_metrics
from profiles.models import FORMS
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.engine import LocalEngine
from scheduler.evaluations import EVALUATIONS
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import GENERATORS, PREFIX, READERS, load
from scheduler.workloads.generators import power_sets
from tenbin.cli import ALIASES, COMMANDS, OLD_NAMES, app
from tenbin.server.api import JobEnds, make_api
from tenbin.server.descriptions import prometheus
from tests.support.checks import make_check
from tests.support.paths import DATA, ROOT, SHARED_DATA
from tests.support.records import make_profile

SNAPSHOTS = DATA / "snapshots"
LOGS = SHARED_DATA
WRITE = os.environ.get("TENBIN_SNAPSHOTS") == "write"
FLOORS = ("agent", "probes", "profiles", "scheduler", "tenbin")
# A cluster and workloads for each kind of machine that a policy says it suits.
MACHINES = {
    "counted": (parse_cluster("128"), ("lublin,jobs=300,load=0.9", "k-mix,days=1,largest=128")),
    "classes": (parse_cluster("512xgpu+512xcpu"), ("migration,jobs=300",)),
    "nodes": (parse_cluster("16xnode[cpu=1,memory=1]"), ("multiresource,jobs=300",)),
    "power": (power_sets.small_machine(), ("power-set1,jobs=60", "power-set2,jobs=60,source=lublin")),
    "sharing": (parse_cluster("16xnode[cores=4]"), ("kernels,jobs=60,tasks=8",)),
}


def check(name: str, now: str) -> None:
    """Compare with the snapshot of that name."""
    file = SNAPSHOTS / name
    if WRITE:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now)
    assert now == file.read_text(), f"{file.name} has changed; if that is meant: TENBIN_SNAPSHOTS=write"


def test_help() -> None:
    """Help of each command and of its parameters, however a terminal shows it, and all other names."""
    others = [f"tenbin {name}: tenbin {now}" for name, now in {**ALIASES, **OLD_NAMES}.items()]
    check("help.txt", "\n".join([*pages(typer.main.get_command(app), "tenbin"), *others, ""]))


def pages(command: Any, name: str) -> Iterator[str]:
    """Visit a command and all below it."""
    yield f"{name}\n{command.help}\n"
    for parameter in command.params:
        words = ", ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"  {words}: {getattr(parameter, 'help', None) or ''}"
    yield ""
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from pages(below, f"{name} {word}")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    journal = Journal(tmp_path)
    engine = LocalEngine(tmp_path, tmp_path / "report", Cluster((Pool("core", 1),)), [[0]])
    try:
        yield Coordinator(journal, engine, "easy")
    finally:
        engine.close()
        journal.close()


def test_interface_of_the_coordinator(coordinator: Coordinator) -> None:
    schema = make_api(coordinator, JobEnds(), lambda: None).openapi()
    schema["info"].pop("version")
    check("openapi.json", json.dumps(schema, indent=1, sort_keys=True) + "\n")


def test_names_of_metrics(coordinator: Coordinator) -> None:
    text = prometheus(coordinator).decode() + profile_metrics(make_profile())
    text += check_metrics(make_check())
    names = sorted(set(re.findall(r"^# TYPE (.+)$", text, re.M)))
    check("metrics.txt", "\n".join(names) + "\n")


def test_tables_of_the_journal(coordinator: Coordinator) -> None:
    with sqlite3.connect(coordinator.journal.store / "journal.sqlite") as db:
        number = db.execute("PRAGMA user_version").fetchone()[0]
        query = "SELECT sql FROM sqlite_master WHERE sql NOTNULL ORDER BY name"
        tables = [row[0] for row in db.execute(query)]
    check("journal.txt", "\n".join([f"version {number}", *tables]) + "\n")


def test_names_in_the_folder_of_an_attempt(coordinator: Coordinator) -> None:
    """After a job with output, a limit of memory and samples; and the fields of its files."""
    coordinator.submit([JobSpec(command=("sleep", "1.2"), folder="/", memory_mb=1000)], {"PATH": "/bin"})
    while coordinator.job_table.entries:
        coordinator.turn()
    job = coordinator.journal.store / "jobs" / "1"
    folder = job / "attempt-1"
    until_settled(folder)
    found = (path.name for path in (*job.iterdir(), *folder.iterdir()))
    names = sorted(re.sub(r"-\d+$", "-N", name) for name in found if not name.startswith("."))
    fields = {name: outline(json.loads((folder / name).read_text())) for name in files(folder)}
    names.remove("group") if "group" in names else None  # only where a control group may be made
    check("attempt.json", json.dumps({"names": names, "fields": fields}, indent=1, sort_keys=True) + "\n")


def until_settled(folder: Path) -> None:
    import time

    while Attempt(folder).lives():
        time.sleep(0.01)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.json"))


def outline(found: Any) -> Any:
    """Return the names of the fields, without their values."""
    return {name: outline(value) for name, value in found.items()} if isinstance(found, dict) else ""


@pytest.mark.parametrize("policy", POLICIES)
def test_schedules(policy: str) -> None:
    """A hash of each schedule: who ran where, from when to when.

    Libraries of other versions may break ties in another way.
    """
    found = {name: version(name) for name in ("numpy", "scipy", "deap")}
    kept = SNAPSHOTS / "schedules" / f"{policy}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    if WRITE:
        known = {}
    if any(known.get(name, one) != one for name, one in found.items()):
        pytest.skip("the snapshot was made with other versions of numpy, scipy or deap")
    suits = create(policy).suits
    for kind, (cluster, workloads) in MACHINES.items():
        if kind in suits:
            texts = workloads if policy != "parm-ga" else ("power-set1,jobs=6",)
            found |= {text: schedule(policy, f"{PREFIX}{text}", cluster) for text in texts}
    if "counted" in suits and LOGS.exists():
        found["KTH"] = schedule(policy, str(LOGS / "KTH-SP2-1996-2.swf.gz"), parse_cluster("100"))
    if "KTH" not in found and "KTH" in known:  # without the logs the others are still looked at
        found["KTH"] = known["KTH"]
    check(f"schedules/{policy}.json", json.dumps(found, indent=1, sort_keys=True) + "\n")


def schedule(policy: str, workload: str, cluster: Cluster) -> str:
    work = load(workload, cluster, 1)
    arrivals = work.arrivals
    if workload.endswith(".gz"):
        arrivals = islice(cast(Iterable[Arrival], arrivals), 3000)
    record = OutcomeRecorder()
    Simulator(cluster, arrivals, create(policy, 1), work.settings, sinks=[record]).run()
    parts = [
        (one.job.id, one.how, kind, at.pool, at.units, at.nodes, at.cap_w, start, end)
        for one in record.outcomes
        for kind, at, start, end in one.segments
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def started_modules() -> set[str]:
    """Find the modules that the code starts by ``python -m``."""
    code = [file.read_text() for floor in FLOORS for file in (ROOT / floor).rglob("*.py")]
    found = {name for text in code for name in re.findall(r'"-m",\s*"([a-z_0-9.]+)"', text)}
    return found - {"mpi4py"}


@pytest.mark.parametrize("name", sorted(started_modules()))
def test_modules_that_are_started_by_name_are_there(name: str) -> None:
    assert find_spec(name) is not None
    assert 'if __name__ == "__main__"' in source(name) or find_spec(f"{name}.__main__")


def source(name: str) -> str:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text()


def test_what_the_registries_name_is_there() -> None:
    for probe in PROBES.values():
        assert callable(probe.load())
    for policy in POLICIES.values():
        assert policy.load()
    for place in (*GENERATORS.values(), *(reader.place for reader in READERS.values())):
        module, attribute = place.split(":")
        assert getattr(import_module(module), attribute)
    for module in EVALUATIONS.values():
        assert callable(import_module(module).evaluate)
    for form, module in FORMS.items():
        assert callable(import_module(module, "profiles.models").fit)
        assert form == "linear" or callable(import_module(module, "profiles.models").predict)
    for place in filter(None, (place for place, _ in COMMANDS.values())):
        module, attribute = place.split()[0].split(":")
        assert getattr(import_module(f"tenbin.commands.{module}"), attribute)
