"""A profile in the forms other programs read: JSON schema, CSV, and Prometheus text."""

from __future__ import annotations

import csv as csv_module
import io
import json

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from profiles.records import Profile, Record

CSV_COLUMNS = (
    *("node", "id", "probe", "quantity", "labels", "coefficient", "value", "low", "high", "unit", "n"),
    *("quality", "emulated", "note"),
)


def json_schema(record: type[Record] = Profile) -> str:
    """Write the schema of ``profile.json``, of a node or of a job (``profiles.jobs.JobProfile``)."""
    schema = record.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def csv(profile: Profile) -> str:
    """Write a line for each coefficient; what is not known is empty."""
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for model in profile.models:
        labels = ",".join(f"{name}={value}" for name, value in sorted(model.labels.items()))
        for c in model.coefficients:
            about = (profile.node, profile.id, model.probe, model.quantity, labels)
            measured = (c.name, c.value, c.low, c.high, c.unit, c.n, c.quality)
            writer.writerow((*about, *measured, model.emulated, c.note))
    return text.getvalue()


def prometheus(profile: Profile) -> str:
    """Write Prometheus text: gauges for the values of all coefficients, their limits, and the profile.

    An open side of an interval is left out, as Prometheus has no null.
    """
    registry = CollectorRegistry()
    names = ("node", "probe", "quantity", "subject", "coefficient", "unit", "emulated")
    gauges = {
        part: Gauge(
            f"tenbin_coefficient_{part}", f"{words} of a fitted coefficient", names, registry=registry
        )
        for part, words in (("value", "value"), ("low", "lower 95 % limit"), ("high", "upper 95 % limit"))
    }
    for model in profile.models:
        subject = ",".join(f"{k}={v}" for k, v in sorted(model.labels.items()))
        for c in model.coefficients:
            about = (profile.node, model.probe, model.quantity, subject)
            labels = (*about, c.name, c.unit, str(model.emulated).lower())
            for part, gauge in gauges.items():
                if (value := getattr(c, part)) is not None:
                    gauge.labels(*labels).set(value)
    created = Gauge(
        "tenbin_profile_created_timestamp_seconds",
        "when the profile was measured",
        ("node", "id", "fingerprint", "tenbin_version"),
        registry=registry,
    )
    created.labels(profile.node, profile.id, profile.fingerprint, profile.tenbin_version).set(
        profile.created.timestamp()
    )
    return generate_latest(registry).decode()
