"""Measured profiles as costs and power of a simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from profiles.errors import BadInput
from profiles.files.store import Store
from profiles.fits.power import fit
from profiles.models import linear
from profiles.records import Model, OpenCLDevice, Profile, Quality
from scheduler.model.clusters import parse_cluster
from scheduler.model.costs import LinearCost
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, Stop
from scheduler.prediction.profiles import caps_of, measured_cluster, with_power
from scheduler.simulator.trace import SimulationSettings
from tests.support.paths import ROOT
from tests.support.records import make_coefficient, make_device, make_inventory, make_model, make_profile
from tests.tenbin.commands.test_simulate import tenbin

VM = ROOT / "docs" / "measurements" / "vm-epyc-2core.json"


def model(quantity: str, labels: dict[str, str], **values: float) -> Model:
    coefficients = [make_coefficient(value, name=name, unit="s") for name, value in values.items()]
    form = "constant" if len(values) == 1 else "linear"
    return make_model(*coefficients, probe="checkpoint", quantity=quantity, labels=labels, form=form)


def checkpoints(device: str, factor: float = 1.0) -> list[Model]:
    """Table 3 of paper A, times ``factor``, with a K of 0.5 s."""
    where = {"device": device, "storage": "/scratch"}
    return [
        model("checkpoint_s", where, alpha_C=0.015 * factor, beta_C=0.92 * factor),
        model("restart_s", where, alpha_R=0.0097 * factor, beta_R=0.18 * factor),
        model("compile_s", {"device": device, "cache": "cold"}, K=9.0),
        model("compile_s", {"device": device, "cache": "warm"}, K=0.5),
    ]


def device(key: str, kind: str) -> OpenCLDevice:
    return make_device(key=key, name=key, kind=kind)


def power(idle_package_w: float | None = 15.0) -> list[Model]:
    """Make the fit of a node: 24 W at rest (15 W of it the packages), 64 W under load, knee 52 W."""
    rows: list[dict[str, Any]] = [{"kind": "idle", "total_w": 24.0, "package_w": idle_package_w}] * 8
    for cap in (25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0, 60.0):
        ratio = 1 - 0.025 * max(52 - cap, 0)
        common = {"load": "compute", "package_w": min(cap, 52.0)}
        rows.append(
            {"kind": "cap", "cap_w": cap, "speed_ratio": ratio, "held": True, "total_w": 60.0, **common}
        )
        rows.append({"kind": "reference", "cap_w": 90.0, "speed_ratio": 1.0, "total_w": 64.0, **common})
    return fit(pd.DataFrame(rows).assign(emulated=False))


def profile(models: Sequence[Model], **changes: Any) -> Profile:
    devices = (device("nv-0", "gpu"), device("pocl-0", "cpu"))
    return make_profile(models=tuple(models), inventory=make_inventory(opencl=devices), **changes)


TWO = parse_cluster("4xgpu+8xcpu")
BOTH = profile([*checkpoints("pocl-0"), *checkpoints("nv-0", 2.0)])


def test_classes_find_their_devices_by_kind_or_name() -> None:
    found = measured_cluster(TWO, {"gpu": BOTH, "cpu": BOTH})
    assert found.costs.checkpoint == {"gpu": LinearCost(0.03, 1.84), "cpu": LinearCost(0.015, 0.92)}
    assert found.costs.restart == {
        "gpu": LinearCost(0.0194, 0.36 + 0.5),
        "cpu": LinearCost(0.0097, 0.18 + 0.5),
    }
    job = Job(1, 0.0, memory_mb=1000.0, stop=Stop.CHECKPOINT)
    assert found.costs.stop_s(job, "cpu") == pytest.approx(15.92)
    assert found.costs.restart_s(job, "cpu") == pytest.approx(10.38)
    named = measured_cluster(parse_cluster("4xnv-0+2xcpu"), {"nv-0": BOTH, "cpu": BOTH})
    assert named.costs.checkpoint["nv-0"] == LinearCost(0.03, 1.84)
    assert (
        "nv-0 on /scratch: checkpoint 0.03 s/MB + 1.84 s" in found.notes[0]
        and "(K 0.5 incl" in found.notes[0]
    )
    settings = SimulationSettings(seed=3).with_measured(found)
    assert (settings.costs, settings.planned_costs, settings.seed) == (found.costs, None, 3)
    assert settings.profiles["gpu"] is BOTH


def test_quantiles_of_a_cost_are_those_of_new_observations() -> None:
    """Of a line over many samples whose scatter grows with the size: 1 s and 0.002 s/MB."""
    chance = np.random.default_rng(2)
    mb = chance.uniform(0.0, 4000.0, 2000)
    names = linear.Names("alpha_C", "beta_C")
    seconds = 5.0 + 0.01 * mb + (1.0 + 0.002 * mb) * chance.standard_normal(2000)
    where = {"device": "pocl-0", "storage": "/scratch"}
    line = linear.fit(
        mb.tolist(),
        seconds.tolist(),
        probe="checkpoint",
        quantity="checkpoint_s",
        x_name="memory_mb",
        names=names,
        labels=where,
    )
    _, *others = checkpoints("pocl-0")
    costs = measured_cluster(parse_cluster("9"), {"node": profile([line, *others])}).costs
    for size in (0.0, 1000.0, 4000.0):
        job = Job(1, 0.0, memory_mb=size, stop=Stop.CHECKPOINT)
        low, middle, high = costs.move_s(job, "node", "node")
        true = stats.norm(middle, 1.0 + 0.002 * size)
        assert true.cdf(low) == pytest.approx(0.1, abs=0.05) and true.cdf(high) == pytest.approx(
            0.9, abs=0.05
        )


def test_a_twin_is_believed_to_be_like_its_twin() -> None:
    """The probe measures one of several identical devices."""
    twin = device("pocl-0", "cpu").model_copy(update={"key": "pocl-1", "global_memory_mb": 2.0})
    devices = (device("pocl-0", "cpu"), twin, device("other-0", "cpu"))
    inventory = make_inventory(opencl=devices)
    found = make_profile(models=tuple(checkpoints("pocl-0")), inventory=inventory)
    cluster = Cluster((Pool("pocl-0", 1), Pool("pocl-1", 1), Pool("other-0", 1)))
    costs = measured_cluster(cluster, dict.fromkeys(("pocl-0", "pocl-1", "other-0"), found)).costs
    assert costs.checkpoint["pocl-0"] == costs.checkpoint["pocl-1"] == LinearCost(0.015, 0.92)
    assert costs.begin_s == {"pocl-0": 0.5, "pocl-1": 0.5} and "other-0" not in costs.checkpoint


def test_the_storage_that_checkpoints_will_lie_on(tmp_path: Path) -> None:
    near, far = checkpoints("pocl-0"), checkpoints("pocl-0", 2.0)
    near = [m.model_copy(update={"labels": m.labels | {"storage": str(tmp_path)}}) for m in near[:2]]
    both = profile([*far, *near])
    one = parse_cluster("1xpocl-0")
    for folder, offset in ((None, 1.84), (Path("/proc/x"), 1.84), (tmp_path / "jobs" / "new", 0.92)):
        assert measured_cluster(one, {"pocl-0": both}, folder).costs.checkpoint["pocl-0"].offset == offset


def test_one_class_takes_the_only_device() -> None:
    one = profile(checkpoints("pocl-0"))
    assert measured_cluster(parse_cluster("9"), {"node": one}).costs.checkpoint == {
        "node": LinearCost(0.015, 0.92)
    }
    with pytest.raises(BadInput, match=r"node: .*no checkpoint costs.*devices measured: pocl-0, nv-0"):
        measured_cluster(parse_cluster("9"), {"node": BOTH})
    with pytest.raises(BadInput, match=r"gpu: .*no checkpoint costs.*devices measured: pocl-0"):
        measured_cluster(parse_cluster("9xgpu"), {"gpu": one})


def test_what_a_profile_lacks_is_told() -> None:
    found = measured_cluster(TWO, {"gpu": profile(checkpoints("pocl-0")), "cpu": BOTH})
    assert found.costs.checkpoint.keys() == {"cpu"}
    assert "gpu: node (20260101T000000Z): no checkpoint costs, checkpoints are free" in found.notes[0]
    assert all("no power" in note for note in found.notes[1::2])
    lines = [m for m in checkpoints("pocl-0") if m.quantity != "restart_s"]
    with pytest.raises(BadInput, match="without those of restart"):
        measured_cluster(parse_cluster("9xcpu"), {"cpu": profile(lines)})
    with pytest.raises(BadInput, match=r"gp=.*no such class; the cluster has gpu, cpu"):
        measured_cluster(TWO, {"gp": BOTH})


def test_poor_negative_and_emulated_numbers() -> None:
    poor = make_coefficient(-0.004, name="beta_C", unit="s", quality=Quality.POOR)
    first, *rest = checkpoints("pocl-0")
    first = first.model_copy(update={"coefficients": (first.coefficients[0], poor), "emulated": True})
    found = measured_cluster(parse_cluster("9"), {"node": profile([first, *rest])})
    assert found.costs.checkpoint["node"] == LinearCost(0.015, 0.0)
    assert found.notes[0].endswith("poor: beta_C; EMULATED")


def test_the_packages_own_idle_power_is_not_counted_twice() -> None:
    pool, note = with_power(Pool("node", 2), profile(power()))
    assert (pool.base_w, pool.idle_w, pool.peak_w) == (9.0, 24.0, 55.0)
    assert pool.power_w(1, None) == 64.0  # as measured under load
    assert pool.power_w(1, 15.0) == 24.0  # packages that draw what they draw at rest: as measured at rest
    assert pool.caps_w == (25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 55.0)
    assert "base 9 W (at rest 24 W, of which the packages 15 W lie within the caps), 55 W more" in note


def test_power_that_cannot_be_taken() -> None:
    plain = Pool("node", 2)
    old = [m for m in power() if m.quantity != "beside_packages_w"]
    assert with_power(plain, profile(old))[0] == plain and "contains" in with_power(plain, profile(old))[1]
    assert [m.quantity for m in power(None)] == [m.quantity for m in old]
    stated = Pool("node", 2, base_w=3.0)
    assert with_power(stated, profile(power())) == (stated, "power as the cluster's description states it")
    no_caps = profile([m for m in power() if m.quantity != "power_speed_ratio"])
    assert caps_of(no_caps) == () and "no caps" in with_power(plain, no_caps)[1]
    tight = Cluster((plain,), 20.0)
    with pytest.raises(BadInput, match="a budget of 20 W is not enough for one unit"):
        measured_cluster(tight, {"node": profile(power())})


def test_command_takes_a_stored_profile(tmp_path: Path) -> None:
    Store(tmp_path).save(profile([*checkpoints("pocl-0"), *power()]), {})
    common = (
        "-p",
        "easy",
        "-w",
        "generator:lublin,jobs=50",
        "-c",
        "64",
        "--store",
        str(tmp_path),
        "--profile",
    )
    done = tenbin(*common, "last", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [note.split(": ")[2].split(" ")[0] for note in found["measured"]] == ["pocl-0", "power"]
    (result,) = found["results"]
    held_s = result["energy_j"] / 64.0  # every unit in use draws 64 W
    assert held_s == pytest.approx(result["utilisation_ratio"] * 64 * result["makespan_s"], rel=1e-6)
    idle_s = 64 * result["makespan_s"] - held_s
    assert result["machine_energy_j"] - result["energy_j"] == pytest.approx(24.0 * idle_s, rel=1e-6)
    table = tenbin(*common, f"node={tmp_path}/node/20260101T000000Z")
    assert "checkpoint 0.015 s/MB" in " ".join(table.stdout.split())
    wrong = tenbin(*common, "cpu=last")
    assert wrong.returncode == 2 and "no such class" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_a_real_profile() -> None:
    machine = Profile.model_validate_json(VM.read_text())
    found = measured_cluster(parse_cluster("16"), {"node": machine})
    job = Job(1, 0.0, memory_mb=4096.0, stop=Stop.CHECKPOINT, estimate_kind=EstimateKind.EXACT)
    assert found.costs.stop_s(job, "node") == pytest.approx(4096 * 0.00054 + 0.0017, rel=0.01)
    assert "no power" in found.notes[1] and not found.cluster["node"].has_power
