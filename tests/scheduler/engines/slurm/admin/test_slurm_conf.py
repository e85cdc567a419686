"""Lines for slurm.conf: what is kept of the site's, what is measured, and who is taken first."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.clusters import Odd, Value
from profiles.records import Condition, Profile
from scheduler.engines.slurm.admin.slurm_conf import conf_texts, node_lines, read_nodes
from tests.support.records import (
    make_coefficient,
    make_device,
    make_gpu,
    make_inventory,
    make_model,
    make_profile,
)


def node(name: str, gbs: float = 20.0, loop_s: float = 0.01, cores: int = 2, **inventory: Any) -> Profile:
    cpu = make_inventory().cpu.model_copy(update={"cores": cores, "threads": 2 * cores, "sockets": 1})
    loop = Condition(
        probe="memory", round=0, duration_s=1.0, reference_s=loop_s, steal_ratio=0.0, others_ratio=0.0
    )
    few = make_model(make_coefficient(gbs / 2), labels={"cores": "1", "numa": "local"})
    most = make_model(make_coefficient(gbs), labels={"cores": str(cores), "numa": "local"})
    return make_profile(
        node=name,
        inventory=make_inventory(hostname=name, cpu=cpu, **inventory),
        models=(few, most),
        conditions=(loop,),
    )


def settings(*profiles: Profile, odd: tuple[Odd, ...] = (), known: str = "") -> list[dict[str, str]]:
    lines = node_lines({p.node: p for p in profiles}, odd, read_nodes(known))
    return [dict(line.settings) for line in lines]


def test_processors_memory_and_features() -> None:
    (found,) = settings(node("n1", gbs=204.0, cores=8, memory_mb=67_430.0))
    assert (found["CPUs"], found["CoresPerSocket"], found["ThreadsPerCore"]) == ("16", "8", "2")
    mib = 67_430e6 / 2**20
    assert 0.98 * mib < int(found["RealMemory"]) < mib
    assert found["Feature"].split(",")[1] == "tb_mem_200gbs"


def test_what_the_site_has_said_stays_and_old_features_of_ours_go() -> None:
    known = (
        "NodeName=n1 AvailableFeatures=rack3,tb_mem_7gbs,ib Gres=fpga:2(S:0-1) NodeAddr=10.0.0.1 "
        "NodeHostName=blade1 Port=7000"
    )
    (found,) = settings(node("n1"), known=known)
    assert found["Feature"].startswith("rack3,ib,tb_kind_") and "tb_mem_7gbs" not in found["Feature"]
    assert (found["NodeAddr"], found["NodeHostname"], found["Port"]) == ("10.0.0.1", "blade1", "7000")
    assert found["Gres"] == "fpga:2"


def test_the_fastest_first_siblings_alike_and_an_odd_one_by_itself() -> None:
    """Speed is the mean of computing and writing memory: four times slower in one is twice slower."""
    fast = [node(f"f{i}", loop_s=0.01 * (1 + 0.02 * i)) for i in range(3)]
    slow = [node("s", loop_s=0.04, memory_mb=4000.0)]
    weights = [one["Weight"] for one in settings(*fast, *slow)]
    assert weights[:3] == ["100"] * 3 and int(weights[3]) == pytest.approx(200, abs=4)
    lame = Odd(Value("f2", "reference_s", "", 0.04, None, "s"), 0.01, 3, 9.0)
    weights = [one["Weight"] for one in settings(*fast[:2], node("f2", loop_s=0.04), odd=(lame,))]
    assert weights[:2] == ["100", "100"] and int(weights[2]) == pytest.approx(200, abs=4)


def test_gpus_by_nvml_by_opencl_and_last() -> None:
    by_nvml = tuple(make_gpu(index=i, name="NVIDIA H100 80GB") for i in (0, 1))
    device = make_device(key="amd-0", platform="AMD", name="gfx90a", kind="gpu")
    lines = node_lines(
        {"g": node("g", gpus=by_nvml), "a": node("a", opencl=(device,)), "c": node("c")}, (), {}
    )
    text, gres = conf_texts(lines, "title")
    assert "GresTypes=gpu\n" in text
    assert lines[0].settings["Gres"] == "gpu:nvidia_h100_80gb:2"
    assert "NodeName=g Name=gpu Type=nvidia_h100_80gb File=/dev/nvidia1\n" in gres
    assert lines[1].settings["Gres"] == "gpu:gfx90a:1" and "tb_cl_gpu" in lines[1].settings["Feature"]
    assert "NodeName=a Name=gpu Type=gfx90a Count=1\n" in gres
    assert [line.settings["Weight"] for line in lines] == ["1100", "1100", "100"]
    assert conf_texts([lines[2]], "title")[1] == "" and "GresTypes" not in conf_texts([lines[2]], "title")[0]
