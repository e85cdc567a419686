"""The store loses nothing: whole or not at all, damage named, emulated apart from measured."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pandas as pd
import pytest

from profiles.errors import BadInput
from profiles.files.store import Store, load, read_table, samples, set_label
from tests.support.records import make_coefficient, make_model, make_profile

TABLE = pd.DataFrame({"round": [0, 0], "emulated": [False, False], "wall_s": [1.0, 2.0]})


def test_what_is_saved_is_loaded_back_unchanged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    profile = make_profile()
    folder = store.save(profile, {"memory": TABLE})
    assert store.load("last") == profile
    pd.testing.assert_frame_equal(samples(folder / "profile.json")["memory"], TABLE)


def test_profiles_of_earlier_releases_have_in_words_what_now_has_a_field(tmp_path: Path) -> None:
    notes = ("", "rounds differ", "1600 iterations; widened: rounds differ")
    model = make_model(*(make_coefficient(note=note) for note in notes))
    origin = "20251224T180000Z, refitted from 15 checkpoints and 15 restarts of jobs"
    stored = make_profile(models=(model,), origin=origin).model_dump(mode="json")
    del stored["refit_of"]
    for coefficient in stored["models"][0]["coefficients"]:
        del coefficient["rounds_differ"]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(stored))
    profile = load(path)
    assert [c.rounds_differ for c in profile.models[0].coefficients] == [False, True, True]
    assert profile.refit_of == "20251224T180000Z"


def test_selectors(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for identity, node in (("20260101T000000Z", "a"), ("20260102T000000Z", "b"), ("20260103T000000Z", "a")):
        store.save(make_profile(id=identity, node=node), {})
    assert store.load("last").id == "20260103T000000Z"
    assert store.load("b").id == "20260102T000000Z"
    assert store.load("20260101").node == "a"
    assert store.load(str(store.find("b"))).node == "b"
    with pytest.raises(
        BadInput, match=r"matches several profiles \(a 20260103T000000Z, b 20260102T000000Z, a "
    ):
        store.load("2026")
    with pytest.raises(BadInput, match="matches no profile"):
        store.load("c")


def test_a_label_finds_one_profile_or_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for identity, node in (("20260101T000000Z", "a"), ("20260102T000000Z", "b")):
        store.save(make_profile(id=identity, node=node), {})
    set_label(store.find("a"), "before")
    set_label(store.find("a"), "before")
    assert store.load("before").node == "a"
    for text, said in (
        ("b", "is the name of a node"),
        ("2026", "begins an id"),
        ("before", "is that of a 2026"),
    ):
        with pytest.raises(BadInput, match=said):
            set_label(store.find("b"), text)
    set_label(store.find("a"), "")
    set_label(store.find("b"), "before")
    assert store.load("before").node == "b"


def test_an_empty_store_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="tenbin profile"):
        Store(tmp_path).load()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "", "damaged"),
        (lambda text: text.replace('"duration_s": 1.0', '"duration_s": "long"'), "field duration_s"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 7'), "schema_version is 7"),
        (lambda text: text.replace('"seed": 1', '"sed": 1'), "field settings.sed"),
        (lambda text: text.replace('"unit": "GB/s"', '"unit": null'), "field models.0.coefficients.0.unit"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(
    tmp_path: Path, damage: Callable[[str], str], message: str
) -> None:
    path = Store(tmp_path).save(make_profile(), {}) / "profile.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    with pytest.raises(BadInput) as raised:
        load(path)
    assert str(path) in str(raised.value) and message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_emulated_and_measured_never_share_a_node(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(make_profile(id="20260101T000000Z"), {})
    with pytest.raises(BadInput, match="never mix"):
        store.save(make_profile(id="20260102T000000Z", emulated=True), {})
    assert [p.parent.name for p in store.paths()] == ["20260101T000000Z"]


def test_a_damaged_profile_does_not_keep_a_new_one_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.save(make_profile(id="20260101T000000Z"), {}) / "profile.json").write_text("{")
    store.save(make_profile(id="20260102T000000Z"), {})
    assert store.load("last").id == "20260102T000000Z"


def test_a_failed_save_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.save(make_profile(id="20260101T000000Z"), {})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        store.save(make_profile(id="20260102T000000Z"), {"memory": TABLE})
    assert sorted(p.name for p in (tmp_path / "node").iterdir()) == ["20260101T000000Z"]


def test_a_profile_is_not_overwritten_by_another_of_the_same_second(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(make_profile(duration_s=1.0), {"memory": TABLE})
    with pytest.raises(BadInput):
        store.save(make_profile(duration_s=2.0), {"memory": TABLE})
    assert store.load().duration_s == 1.0


def test_others_may_not_change_profiles_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "data" / "tenbin")
        store.prepare()
        path = store.save(make_profile(), {"memory": TABLE}) / "profile.json"
        set_label(path, "before")
    finally:
        os.umask(before)
    below = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {"profile.json", "memory.parquet", "label"} <= {part.name for part in below}
    assert [part for part in below if part.stat().st_mode & 0o022] == []


def test_a_store_in_a_folder_that_a_group_shares_is_the_groups(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    before = os.umask(0o002)
    try:
        store = Store(tmp_path / "store")
        store.prepare()
        profile = store.save(make_profile(), {"memory": TABLE})
    finally:
        os.umask(before)
    folders = [tmp_path / "store", profile.parent, profile, profile / "samples"]
    assert [folder.stat().st_mode & 0o7777 for folder in folders] == [0o2775] * 4


def test_samples_are_read_by_no_other_thread() -> None:
    """Of several groups of rows: pyarrow reads a single one in the thread of its caller in any case."""
    readers = set()

    class Source(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            readers.add(threading.get_ident())
            return super().read(size)

    table = pd.DataFrame({"index": range(20), "device": ["pocl-0"] * 20})
    pd.testing.assert_frame_equal(read_table(Source(table.to_parquet(row_group_size=5))), table)
    assert readers == {threading.get_ident()}
