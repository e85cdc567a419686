"""Earlier starts, as commands and ``tenbin top`` tell them."""

from __future__ import annotations

import json

from tests.support.coordinator import Up
from tests.support.top_session import Session, play


def test_what_would_start_a_job_sooner_is_told_and_so_it_is(up: Up) -> None:
    up.start("--cores", "2")
    up.client.submit(["sleep", "600"], time_s=3600)
    wide = up.client.submit(["sleep", "600"], cores=2, time_s=1800)
    sentence = "sooner, if submitted again with 1 core in place of 2: at once"
    assert sentence in up.run("info", str(wide.id)).stdout
    told = json.loads(up.run("info", str(wide.id), "--json").stdout)
    (one,) = told["sooner"]
    assert one["fields"] == {"cores": 1} and one["expected_start_s"] < told["expected_start_s"]
    assert "sooner" not in wide.info()  # it costs more than the rest

    async def script(top: Session) -> None:
        await top.shows("2 listed")
        await top.press("G", "e")
        await top.shows(f"all about job {wide.id}", sentence)

    play(up, script)
    done = up.run("submit", "-c", "1", "--time", "30m", "--", "sleep", "600")
    wide.cancel()
    up.until(up.client.job(int(done.stdout)).running)
    assert up.client.job(1).info(sooner=True)["sooner"] == []
    array = up.client.submit_all([{"command": ["true"], "folder": "/"}], arrays={0: [1, 2]})[0]
    assert "sooner" not in up.client.job(array.id - 1).info(sooner=True)
