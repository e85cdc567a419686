"""Exports for other programs: the published schema, and Prometheus text read by Prometheus' own parser."""

from __future__ import annotations

import csv as csv_module
import json

import jsonschema
from prometheus_client.parser import text_string_to_metric_families

from profiles.export import csv, json_schema, prometheus
from tests.support.paths import ROOT
from tests.support.records import make_coefficient, make_model, make_profile

PUBLISHED = ROOT / "docs" / "profile.schema.json"


def test_the_published_schema_is_the_one_in_use() -> None:
    assert PUBLISHED.read_text() == json_schema(), (
        "run: tenbin profile export --format schema -o docs/profile.schema.json"
    )


def test_a_profile_fits_the_published_schema() -> None:
    text = make_profile().model_dump_json()
    jsonschema.validate(json.loads(text), json.loads(PUBLISHED.read_text()))


def test_prometheus_text_holds_values_and_known_limits() -> None:
    profile = make_profile(
        models=(make_model(make_coefficient(2.0, 2.0, None), labels={"load": 'a "quoted" \\ name\n'}),)
    )
    families = {f.name: f for f in text_string_to_metric_families(prometheus(profile))}
    (value,) = families["tenbin_coefficient_value"].samples
    assert value.value == 2.0 and value.labels["node"] == "node" and value.labels["unit"] == "GB/s"
    assert value.labels["subject"] == 'load=a "quoted" \\ name\n'
    assert families["tenbin_coefficient_low"].samples[0].value == 2.0
    assert families["tenbin_coefficient_high"].samples == []


def test_labels_with_commas_can_be_told_apart() -> None:
    model = make_model(labels={"cpus": "0,1", "kind": "same-cache"})
    (row,) = csv_module.DictReader(csv(make_profile(models=(model,))).splitlines())
    assert row["labels"] == 'cpus="0,1",kind=same-cache'
