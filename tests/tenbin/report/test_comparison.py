"""Two profiles on a page: the sentences, the machines, what matters first; text from elsewhere stays text."""

from __future__ import annotations

import re

from profiles.records import Condition, Model, Profile
from tenbin.report.comparison import page
from tests.support.records import make_coefficient, make_inventory, make_model, make_profile

NASTY = "<script>alert(1)</script>"


def model(quantity: str, value: float, probe: str, *, share: float = 0.01, **labels: str) -> Model:
    coefficient = make_coefficient(value, (1 - share) * value, (1 + share) * value)
    return make_model(coefficient, quantity=quantity, probe=probe, labels=labels)


def machine(node: str, gbs: float, ns: float, **changes: object) -> Profile:
    triad = {"kernel": "triad", "numa": "local"}
    models = (
        model("access_latency_ns", 1.0, "streams", level="L1"),
        model("access_latency_ns", ns, "streams", level="memory"),
        model("stream_bandwidth_gbs", gbs, "streams", cores="2", **triad),
        model("compute_clock_ghz", 3.0, "compute", load="vector", cores="2"),
        model("storage_read_mbs", 900.0, "storage", storage=f"/{node}"),
    )
    return make_profile(node=node, **{"models": models, **changes})


def words(html: str) -> str:
    """Strip style and tags; runs of blanks are one."""
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL).split())


def test_the_page_says_who_is_better_at_what() -> None:
    newer = make_inventory(kernel="6.8.0")
    html = page(machine("old", 80, 100), machine("new", 100, 150, inventory=newer, fingerprint="beef"))
    said = words(html)
    assert "B (new) is surely better at memory bandwidth by 25 % (23 to 27 %)." in said
    assert "A (old) is surely better at memory latency by 33 %" in said
    assert "kernel 6.1.0 -&gt; 6.8.0" in said and "fingerprints f00d and beef" in said
    assert "A: storage=/old B: storage=/new" in said  # not quite the same thing was measured
    assert "4 coefficients are in both profiles; of 2 the difference is sure" in said
    assert "<script" not in html and not re.findall(r'(?:src|href)="(?!#)', html) and len(html) < 60_000


def test_what_matters_comes_first() -> None:
    html = page(machine("a", 80, 100), machine("b", 100, 150))
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles[:4] == [
        "Which is better at what",
        "The machines",
        "At a glance",
        "How to read the differences",
    ]
    assert titles[4] == "Memory streams and latency"  # the only probe with a sure difference
    streams = html[html.index("<h2>Memory streams") :]
    order = [streams.index(name) for name in ("{level=memory}", "stream_bandwidth_gbs{", "{level=L1}")]
    assert order == sorted(order)  # 50 % and 25 % apart, and equal


def test_disturbed_and_drifting_machines_are_named() -> None:
    def condition(reference_s: float, others: float) -> Condition:
        return Condition(
            probe="memory",
            round=0,
            duration_s=10,
            reference_s=reference_s,
            steal_ratio=0,
            others_ratio=others,
        )

    calm = machine("a", 80, 100, conditions=(condition(0.010, 0.0),))
    busy = machine("b", 80, 100, conditions=(condition(0.015, 0.6),))
    said = words(page(calm, busy))
    assert "B: DISTURBED" in said and "A: DISTURBED" not in said and "1.50 times as long in B" in said


def test_text_from_elsewhere_stays_text() -> None:
    one = machine(
        NASTY, 80, 100, fingerprint=NASTY, inventory=make_inventory(kernel=NASTY, distribution=NASTY)
    )
    other = machine(f"b{NASTY}", 100, 100, models=(model("stream_bandwidth_gbs", 1.0, NASTY, kernel=NASTY),))
    for html in (page(one, other), page(other, one), page(one, one)):
        assert "<script" not in html and "&lt;script&gt;" in html


def test_nothing_in_common_is_a_page_too() -> None:
    said = words(page(make_profile(models=()), machine("b", 80, 100)))
    assert "no main figure in common" in said and "0 coefficients are in both" in said
