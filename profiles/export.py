"""Profiles and checks in the forms other programs read: JSON schema, CSV, and Prometheus text."""

from __future__ import annotations

import csv as csv_module
import io
import json

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from profiles.checks.check import EXIT_CODES, Check, Verdict
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
        labels = _subject(model.labels)
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
        subject = _subject(model.labels)
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


# -- a check, for a node exporter's textfile folder --------------------------------------------------------


def prometheus_of_check(check: Check) -> str:
    """Write gauges for verdict, figures, losses, and the conditions of a check."""
    registry = CollectorRegistry()

    def gauge(name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"tenbin_check_{name}", words, ("node", *labels), registry=registry)

    verdict = gauge("verdict", "1 for the verdict of the last check, 0 for the others", "verdict")
    for possible in Verdict:
        verdict.labels(check.node, possible.value).set(possible is check.verdict)
    gauge("exit_code", "exit code of the last check").labels(check.node).set(EXIT_CODES[check.verdict])
    when = gauge("created_timestamp_seconds", "when the last check was made", "id")
    when.labels(check.node, check.id).set(check.created.timestamp())
    others = gauge("others_processors", "processors that others kept busy meanwhile")
    others.labels(check.node).set(check.conditions.others_processors)
    subject = ("quantity", "subject", "unit")
    value = gauge("value", "value of a figure", *subject)
    for figure in check.figures:
        value.labels(check.node, figure.quantity, _subject(figure.labels), figure.unit).set(figure.value)
    loss = gauge("loss_ratio", "loss against the reference, above 0 where it became worse", *subject)
    tells = gauge("tells_ratio", "the least loss that one check finds in 95 of 100 cases", *subject)
    for change in check.changes:
        if change.tells_ratio is not None:
            about = (check.node, change.quantity, _subject(change.labels), change.unit)
            loss.labels(*about).set(change.loss_ratio)
            tells.labels(*about).set(change.tells_ratio)
    causes = gauge("cause", "1 for each cause that was found", "cause")
    for cause in check.causes:
        causes.labels(check.node, cause.name).set(1)
    return generate_latest(registry).decode()


def _subject(labels: dict[str, str]) -> str:
    """Write ``cores=1,kernel=copy``; a value with a comma in quotes: ``cpus="0,1"``."""
    quoted = {name: f'"{value}"' if "," in value else value for name, value in labels.items()}
    return ",".join(f"{name}={value}" for name, value in sorted(quoted.items()))
