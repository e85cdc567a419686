"""A cluster on page and terminal: of sixteen nodes two are slow; a node and a pair were not measured."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from profiles.clusters import ClusterStore, Refused, Survey
from profiles.files.store import Store
from profiles.records import Profile
from tenbin.commands.measure.cluster import judged, show_cluster
from tenbin.report.comparison import cluster_page
from tests.support.records import make_coefficient, make_model, make_profile

NODES = [f"node{i:02}" for i in range(16)]


def cluster() -> tuple[Survey, dict[str, Profile]]:
    random = np.random.default_rng(1)
    profiles, pairs = {}, []
    for i, name in enumerate(NODES):
        gbs = 200.0 * (0.82 if i == 7 else 1.0) * (1 + 0.01 * random.normal())
        most = make_model(
            make_coefficient(gbs, 0.98 * gbs, 1.02 * gbs), labels={"cores": "64", "numa": "local"}
        )
        profiles[name] = make_profile(node=name, models=(most,))
        for other in NODES[:i]:
            if (i, other) == (5, "node03"):
                continue
            of = {"scope": "hosts", "ranks": "2", "hosts": f"{name},{other}"}
            value = 12.0 * (0.5 if 11 in (i, NODES.index(other)) else 1.0) * (1 + 0.01 * random.normal())
            width = make_coefficient(value, 0.98 * value, 1.02 * value)
            named = {
                "probe": "network",
                "quantity": "network_bandwidth_gbs",
                "labels": of | {"size": "8 MiB"},
            }
            pairs.append(make_model(width, **named))
    survey = Survey(
        id="20260101T000000Z",
        cluster="lab",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        duration_s=1.0,
        tenbin_version="0.1.0",
        nodes={name: profiles[name].id for name in NODES},
        refused=(Refused(node="node16", reason="it is down (<smoke>)", remedy="put it out"),),
        models=tuple(pairs),
    )
    return survey, profiles


SLOW = "node07 writes memory 18 % slower than its siblings (cores=64 numa=local)"
FAR = "node11 moves large messages 50 % slower than its siblings (to other nodes)"


def sentences(text: str) -> list[str]:
    """With whole tens of per cent, as the noise has it."""
    return [re.sub(r"1[6-9] %", "18 %", re.sub(r"(49|5[01]) %", "50 %", line)) for line in text.split("\n")]


def test_the_odd_nodes_are_named_and_no_other() -> None:
    survey, profiles = cluster()
    _, odd, _ = judged(survey, profiles)
    assert sorted(sentences("\n".join(map(str, odd)))) == [SLOW, FAR]


def test_the_page() -> None:
    survey, profiles = cluster()
    text = cluster_page(survey, *judged(survey, profiles))
    assert "node07 writes memory" in text and "it is down (&lt;smoke&gt;)" in text and "put it out" in text
    assert text.count('<figure class="picture') == 2  # nodes, and bandwidth between pairs; no latency
    assert "node07, memory_bandwidth_gbs cores=64 numa=local" in text  # under the pointer
    assert not re.findall(r'(?:src|href)="(?!#)', text) and "<script" not in text


def test_one_node_has_no_siblings(capsys: pytest.CaptureFixture[str]) -> None:
    survey, profiles = cluster()
    survey = survey.model_copy(update={"nodes": {"node00": survey.nodes["node00"]}, "models": ()})
    alone = {"node00": profiles["node00"]}
    text = cluster_page(survey, *judged(survey, alone))
    show_cluster(survey, alone, json=False)
    for said in (text, capsys.readouterr().out):
        assert "odd" not in said.lower() and "1 nodes" not in said and "1 node," in said.replace("lab: ", "")


def test_the_table_and_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    survey, profiles = cluster()
    show_cluster(survey, profiles, json=False)
    said = capsys.readouterr().out
    assert "node07" in said and "node16: it is down (<smoke>)" in said
    assert "bandwidth between 119 pairs" in said  # too many for a square
    show_cluster(survey, profiles, json=True)
    told = json.loads(capsys.readouterr().out)
    assert {one["value"]["node"] for one in told["odd"]} == {"node07", "node11"}


def test_the_store_keeps_surveys_apart_from_profiles(tmp_path: Path) -> None:
    survey, profiles = cluster()
    for profile in profiles.values():
        Store(tmp_path).save(profile, {})
    kept = ClusterStore(tmp_path)
    kept.save(survey, {})
    kept.save(survey.model_copy(update={"id": "20250101T000000Z"}), {})
    assert kept.load("lab") == kept.load() == survey
    assert kept.profiles(survey) == profiles
    assert len(Store(tmp_path).paths()) == 16
