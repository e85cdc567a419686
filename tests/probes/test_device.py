"""The probe device at work: all kinds, what is absent, devices that fail, pictures of the whole."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from probes import device
from probes.device import measure
from probes.device_session import DeviceBench
from probes.run import collect
from profiles.fits import fit_samples
from profiles.records import Settings
from tenbin.report.probes.device import EXPLANATION, figures
from tests.support.labs.components import processes_below
from tests.support.paths import ROOT
from tests.support.records import make_device

EVERYTHING = {"bandwidth": 3, "flops": 1, "launch": 1, "copies": 2, "both": 1}


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Have the probe open sessions of a class of ``odd_sessions``."""
    name: str = getattr(request, "param", "Small")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(device, "SESSION", f"tests.probes.odd_sessions:{name}")
    return name


@pytest.mark.usefixtures("session")
def test_everything_is_measured_once_even_when_late_and_nothing_is_left(key: str) -> None:
    samples, absent = collect("device", Settings(quick=True, budget_s=0.1), measure)
    count = samples[samples["device"] == key].groupby("kind").size().to_dict()
    assert all(count[kind] >= least for kind, least in EVERYTHING.items())
    precisions = set(samples["precision"].dropna()) | {a.what.split()[0] for a in absent}
    assert precisions >= {"half", "single", "double"}
    assert processes_below() == []
    models = {m.title: m for m in fit_samples("device", samples)}
    for quantity in ("device_launch_s", "device_copies_ratio"):
        assert models[f"{quantity}{{device={key}}}"].coefficients[0].value > 0
    assert models[f"device_copy_gbs{{device={key},direction=to_device,memory=pinned}}"]
    assert len(figures(samples, list(models.values()))) == 4 and EXPLANATION


@pytest.mark.parametrize(
    ("session", "reason"),
    [("WrongSums", "sums differ"), ("Dies", "died in 'launches'")],
    indirect=["session"],
)
def test_a_wrong_result_or_a_crash_is_absent_and_the_rest_is_kept(
    key: str, session: str, reason: str
) -> None:
    samples, absent = collect("device", Settings(quick=True, budget_s=0.1), measure)
    records = [a for a in absent if key in a.what and reason in a.reason]
    assert records and all(a.failed for a in records)
    assert ("flops" in set(samples["kind"])) == (session == "Dies")
    assert len(samples[(samples["device"] == key) & (samples["kind"] == "bandwidth")]) == 3
    assert processes_below() == []


def test_sessions_are_those_of_the_device() -> None:
    """In other tests here they are of classes below it."""
    assert resolve_name(device.SESSION) is DeviceBench


def test_new_kinds_of_devices_come_first() -> None:
    names = {"a-0": "x", "a-1": "x", "b-0": "y", "b-1": "y"}
    devices = [make_device(key=key, name=name) for key, name in names.items()]
    assert [d.key for d in device._new_kinds_first(devices)] == ["a-0", "b-0", "a-1", "b-1"]
