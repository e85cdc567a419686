"""A check as Prometheus text, for a node exporter's textfile folder."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from profiles.checks.check import EXIT_CODES, Check, Verdict


def prometheus(check: Check) -> str:
    """Write gauges for verdict, figures, losses, and the conditions of a check."""
    registry = CollectorRegistry()

    def gauge(name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"tenbin_check_{name}", words, ("node", *labels), registry=registry)

    verdict = gauge("verdict", "1 for the verdict of the last check, 0 for the others", "verdict")
    for one in Verdict:
        verdict.labels(check.node, one.value).set(one is check.verdict)
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
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
