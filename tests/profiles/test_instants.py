"""Instants in the zone of who reads, against zones written down by hand."""

from __future__ import annotations

import time

from profiles.quantities import clock, local, stamp
from tests.support.zones import zone

AT_S = 1_783_641_600.0  # 2026-07-10 00:00:00 in UTC


def test_a_sentence_is_made_in_one_zone_and_read_in_another() -> None:
    with zone("Asia/Tokyo"):
        sentence = f"begins at {stamp(AT_S)}, fit-2026-07-10"
        assert sentence == "begins at 2026-07-10T00:00:00Z, fit-2026-07-10"
        assert local(sentence) == "begins at 2026-07-10 09:00:00, fit-2026-07-10"
    with zone("America/New_York"):
        assert local(sentence) == "begins at 2026-07-09 20:00:00, fit-2026-07-10"
        assert local(f"{stamp(AT_S)} or {stamp(AT_S + 61)}") == "2026-07-09 20:00:00 or 2026-07-09 20:01:01"


def test_words_of_users_are_left_as_they_are() -> None:
    with zone("Asia/Tokyo"):
        for words in (
            "/runs/2026-07-10T00:00:00Z/go.sh: not found",
            "x-2026-07-10T00:00:00Z.log",
            "2026-02-30T08:00:00Z",
        ):
            assert local(words) == words
        assert local(f"since {stamp(AT_S)}.") == "since 2026-07-10 09:00:00."


def test_the_date_is_there_where_it_is_not_today() -> None:
    now_s = time.time()
    for name in ("UTC", "Asia/Tokyo", "America/New_York"):
        with zone(name):
            noon_s = time.mktime((*time.localtime(now_s)[:3], 12, 0, 0, 0, 0, -1))
            assert clock(noon_s) == "12:00:00"
            assert clock(noon_s, date=True) == time.strftime("%Y-%m-%d 12:00:00", time.localtime(now_s))
            for days in (-3, 3):
                other_s = time.mktime((*time.localtime(now_s + days * 86_400)[:3], 12, 0, 0, 0, 0, -1))
                assert clock(other_s) == time.strftime("%Y-%m-%d 12:00:00", time.localtime(other_s))
                assert local(stamp(other_s)) == clock(other_s)
