"""The report is one page that needs nothing else, drawn by a real browser."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from agent.node_profile.identity import node_kind
from profiles.errors import BadInput
from profiles.files.store import JobStore, Store
from profiles.fits import fit_samples
from profiles.fits.job import fit_phases
from profiles.records import Absent
from tenbin.commands.measure.stored import show
from tenbin.report.page import write_report
from tests.support.job_profiles import bursty, make_job, over_hosts, samples
from tests.support.records import make_coefficient, make_inventory, make_model, make_profile

CUT = """() => [...document.querySelectorAll("figure.picture > svg text")].filter((text) => {
  const own = text.getBoundingClientRect(), all = text.closest("figure > svg").getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1
    || own.bottom > all.bottom + 1;
}).map((text) => text.textContent)"""


def memory_samples(emulated: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        [
            {"round": 0, "emulated": emulated, "kind": "bandwidth", "cores": 1, "cpus": "0", "core": 0}
            | {"numa": "local", "placed": None, "overlap": 1.0, "repetition": i, "bytes": 10**9}
            | {"wall_s": 0.1 * np.exp(rng.normal(0, 0.05)), "thread_cpu_s": 0.1}
            for i in range(12)
        ]
    )


def _saved(store: Store, **changes: object) -> Path:
    samples = memory_samples(bool(changes.get("emulated")))
    profile = make_profile(models=tuple(fit_samples("memory", samples)), samples={"memory": 12})
    return store.save(profile.model_copy(update=changes), {"memory": samples}) / "profile.json"


def _page(tmp_path: Path, **changes: object) -> str:
    write_report(_saved(Store(tmp_path), **changes), tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_the_place_among_nodes_of_its_kind_is_on_card_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, labels = Store(tmp_path / "store"), {"kernel": "triad", "numa": "local", "cores": "2"}
    other_kind = make_inventory(memory_mb=64_000.0)
    for name, gbs, changes in (
        ("n1", 10.0, {}),
        ("n2", 20.0, {}),
        ("n3", 30.0, {}),
        ("n4", 99.0, {"inventory": other_kind}),
        ("n5", 99.0, {"emulated": True}),
    ):
        triad = make_model(make_coefficient(gbs), quantity="stream_bandwidth_gbs", labels=labels)
        path = store.save(make_profile(node=name, models=(triad,), **changes), {}) / "profile.json"
    (path.parents[1] / "20270101T000000Z").mkdir()
    (path.parents[1] / "20270101T000000Z/profile.json").write_text("damaged")
    place = "place 2 of 3 nodes of its kind, +0.0 % beside the others' median"
    write_report(store.find("n2"), tmp_path / "page.html")
    assert place in (tmp_path / "page.html").read_text().replace("&#39;", "'")
    show("n2", store=store.root)
    assert place in " ".join(capsys.readouterr().out.split())


def _words(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_holds_machine_coefficients_and_what_is_absent(tmp_path: Path) -> None:
    absent = Absent(probe="power", what="the curve", reason="no <powercap> here", remedy="use bare metal")
    words = _words(_page(tmp_path, absent=(absent,)))
    assert "Example 9000" in words and "memory_bandwidth_gbs{cores=1,numa=local}" in words
    assert "no &lt;powercap&gt; here" in words and "use bare metal" in words
    assert "EMULATED" not in words


def test_pictures_are_explained_only_where_there_are_some(tmp_path: Path) -> None:
    """Of a GPU whose limits are not changed there is power idle and busy, and no curve."""
    power = make_model(probe="power", quantity="gpu_power_w", labels={"gpu": "gpu-0", "state": "idle"})
    words = _words(_page(tmp_path, models=(make_model(), power)))
    assert "gpu_power_w{gpu=gpu-0,state=idle}" in words
    assert "writes one word in every cache line" in words and "under a power cap" not in words


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    words = _words(_page(tmp_path))
    assert not re.findall(r'(?:src|href)="(?!#)', words)


def test_emulated_and_interrupted_profiles_say_so(tmp_path: Path) -> None:
    words = _words(_page(tmp_path, emulated=True, interrupted=True))
    assert words.count("EMULATED") >= 3 and "Interrupted" in words


def test_the_page_compares_with_the_profile_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before = make_profile(id="20250101T000000Z", models=(make_model(make_coefficient(1.0, 0.9, 1.1)),))
    store.save(before, {})
    path = (
        store.save(make_profile(models=(make_model(make_coefficient(2.0, 1.9, 2.1)),)), {}) / "profile.json"
    )
    write_report(path, tmp_path / "page.html")
    words = _words((tmp_path / "page.html").read_text())
    assert "20250101T000000Z: of 1 coefficients in both, 1 have" in words
    assert "its interval is too narrow" in words


def test_the_page_shows_the_jobs_of_the_nodes_kind(tmp_path: Path) -> None:
    profile, jobs = make_profile(), JobStore(tmp_path)
    path = Store(tmp_path).save(profile, {}) / "profile.json"
    write_report(path, tmp_path / "page.html")
    assert 'id="jobs"' not in (tmp_path / "page.html").read_text()
    runs, windows = bursty(lambda at: 1.6 if at > 0.8 else 1.1)
    phases = fit_phases(runs, windows, "wall", "wall_s")
    assert phases is not None
    here = {"kind": node_kind(profile.inventory), "phases": (phases,)}
    far = over_hosts(samples(), samples(suffers=0.2))
    jobs.save(make_job("stencil", **here), {})
    jobs.save(make_job("exchange", far[0].assign(mpi_share=0.4), far[1], **here), {})
    jobs.save(make_job("elsewhere"), {})
    write_report(path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert 'id="jobs"' in page and "stencil" in page and "elsewhere" not in page
    assert "in bursts" in page and "40%" in page
    assert "Slowed down by comprobe" in page and "over the course of a run" in page


@pytest.mark.parametrize("name", ["profile.json", "./profile.json"])
def test_a_profile_that_lies_in_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shutil.copy(_saved(Store(tmp_path / "store")), tmp_path)
    monkeypatch.chdir(tmp_path)
    write_report(Path(name), tmp_path / "page.html")
    assert "memory_bandwidth_gbs" in (tmp_path / "page.html").read_text()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        write_report(_saved(Store(tmp_path)), tmp_path / "nowhere" / "page.html")


def test_the_page_is_light_and_has_no_script(tmp_path: Path) -> None:
    saved = _saved(Store(tmp_path))
    write_report(saved, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert len(page) < 100_000 and "<script" not in page
    write_report(saved, tmp_path / "page.html", interactive=True)
    heavy = (tmp_path / "page.html").read_text()
    assert 1_000_000 < len(heavy) < 2_500_000 and not re.findall(r'(?:src|href)="(?!#)', _words(heavy))


def test_pictures_are_drawn_anew_after_a_change_and_not_taken_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, page = _saved(Store(tmp_path / "store")), tmp_path / "page.html"
    write_report(path, page)
    drawn = page.read_text()
    (kept,) = (tmp_path / "cache/tenbin/pictures").iterdir()
    pictures = kept.read_text()
    for foreign, text in ((0o600, "torn"), (0o666, pictures.replace("Memory bandwidth", "<b>Not mine"))):
        kept.write_text(text)
        kept.chmod(foreign)
        write_report(path, page)
        assert page.read_text() == drawn and kept.read_text() == pictures
    memory_samples().head(6).to_parquet(path.parent / "samples/memory.parquet")
    write_report(path, page)
    assert "from 6 samples" in page.read_text()
    monkeypatch.setattr("tenbin.report.page.KEPT", 0)
    path.touch()
    write_report(path, page)
    assert list((tmp_path / "cache/tenbin/pictures").iterdir()) == []


def test_a_browser_enlarges_a_picture(tmp_path: Path, browser: Any) -> None:
    write_report(_saved(Store(tmp_path)), tmp_path / "page.html", interactive=True)
    tab, errors = browser.new_page(), list[str]()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.context.set_offline(True)
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.locator(".js-plotly-plot").count() == 0
    tab.locator("figure button").first.click()
    tab.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert tab.locator(".js-plotly-plot").count() == 1 and "cannot be enlarged" not in tab.inner_text("body")
    assert not errors
    tab.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_is_cut_and_all_can_be_reached(tmp_path: Path, browser: Any, width: int, scheme: str) -> None:
    module = pytest.importorskip("axe_playwright_python.sync_playwright")
    absent = Absent(probe="power", what="the curve", reason="no powercap here", remedy="use bare metal")
    _page(tmp_path, absent=(absent,))
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.goto((tmp_path / "page.html").as_uri())
    violations = module.Axe().run(tab).response["violations"]
    assert not [fault["id"] for fault in violations if fault["impact"] in ("serious", "critical")]
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("figure.picture").count() > 0 and tab.evaluate(CUT) == []
    tab.close()


def test_a_damaged_neighbour_costs_the_comparison_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.save(make_profile(id="20250101T000000Z"), {}) / "profile.json").write_text("{")
    assert "Against the profile before" not in _page(tmp_path)
