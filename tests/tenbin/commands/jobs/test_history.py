"""History and efficiency, asked of a real coordinator."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

from tenbin.text import printable
from tests.support.coordinator import Up

BUSY_S = 1.5
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"
ODD = 'a,b\n"c"\x1b[31m'


def test_history_filters_and_formats(up: Up) -> None:
    up.start("--cores", "2")
    client, began = up.client, time.monotonic()
    busy = client.submit(["python3", "-c", BUSY], name="busy", memory_mb=500.0, cores=2)
    bad, odd = client.submit(["false"]), client.submit(["true"], name=ODD)
    array = client.call(
        "POST",
        "/jobs",
        {"specs": [{"command": ["true"], "folder": "/"}], "environment": {}, "arrays": {0: [3, 4, 5]}},
    )
    client.ended([busy.id, bad.id, odd.id, *array["ids"]], 60, all=True)
    took_s = time.monotonic() - began
    client.submit(["sleep", "60"], name="runs")
    up.until(lambda: client.call("GET", "/jobs")[0]["stage"] == "running")

    def ids(*options: str) -> list[int]:
        return [row["id"] for row in ask(up, *options)]

    everything = ids()
    assert everything == sorted(everything) and len(everything) == 7
    assert ids("--state", "failed") == ids("--name", "fals?") == [bad.id]
    assert ids("--state", "running") == ids("--name", "runs") == [everything[-1]]
    assert ids("--array", str(array["arrays"][0])) == ids(str(array["arrays"][0])) == array["ids"]
    assert ids(f"{array['arrays'][0]}[4]") == [array["ids"][1]]
    assert ids("--since", "1h") == everything and ids("--until", "yesterday") == []
    assert ids("--since", "2126-01-01") == [everything[-1]]  # it has not ended
    assert ids("--limit", "2") == everything[-2:]
    assert ids("--user", "nobody-of-this-name") == [] and ids("--place", "nowhere") == []
    assert ids("--place", ask(up, "1")[0]["place"]) == everything

    used = ask(up, "--name", "busy")[0]
    assert BUSY_S < used["cpu_s"] < 3.0 and used["cores"] == 2
    assert BUSY_S / (2 * took_s) < used["cpu_efficiency"] < 0.55  # one thread on two cores
    assert used["memory_asked_mb"] == 1 * 500.0 and 0 < used["peak_memory_mb"] < 200

    written = up.run("history", "--csv", "--state", "done,failed").stdout
    rows = list(csv.DictReader(io.StringIO(written, newline="")))
    assert rows == [as_text(row) for row in ask(up, "--state", "done,failed")]
    assert printable(ODD) in [row["name"] for row in rows]
    shown = up.run("history").stdout
    assert "\x1b" not in shown and "7[3]" not in shown and f"{array['arrays'][0]}[3]" in shown

    told = json.loads(up.run("efficiency", "1", "--json").stdout)
    assert told["jobs"] == 1 and told["cpu"]["max"] == used["cpu_efficiency"]
    assert "CPU time" in up.run("efficiency", str(array["arrays"][0])).stdout
    cpu, memory, _ = csv.DictReader(io.StringIO(up.run("efficiency", "1", "--csv").stdout))
    assert (cpu["share"], cpu["jobs"], float(cpu["max"])) == ("cpu", "1", used["cpu_efficiency"])
    assert memory["share"] == "memory" and float(memory["median"]) == used["memory_efficiency"]
    samples = list(csv.DictReader(io.StringIO(up.run("info", "1", "--samples", "--csv").stdout)))
    asked = json.loads(up.run("info", "1", "--samples", "--json").stdout)["samples"]
    assert samples == [as_text({"id": 1, **row}) for row in asked] and samples
    refused = up.run("info", "1", "--csv")
    assert refused.returncode == 2 and "tenbin history 1 --csv" in refused.stderr


def test_bad_input_is_one_line(up: Up) -> None:
    up.start("--cores", "1")
    for options in (["--state", "odd"], ["--columns", "id,odd"], ["--since", "odd"], ["--csv", "--json"]):
        said = up.run("history", *options)
        assert said.returncode == 2 and len(said.stderr.splitlines()) == 1 and not said.stdout
    up.client.submit(["sleep", "60"])
    said = up.run("efficiency", "1")
    assert said.returncode == 2 and "none of these jobs has run and ended" in said.stderr


def test_info_says_what_a_running_job_uses(up: Up) -> None:
    up.start("--cores", "1")
    up.client.submit(["python3", "-c", "while True: pass"], memory_mb=400.0)
    up.until(lambda: json.loads(up.run("info", "1", "--json").stdout)["now"])
    assert "  uses now: " in (said := up.run("info", "1").stdout) and " of 400 MB; reads " in said
    assert ask(up)[0]["cpu_s"] > 0


def ask(up: Up, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(up.run("history", "--json", *options).stdout)
    return found


def as_text(row: dict[str, Any]) -> dict[str, str]:
    """Write a row's values as CSV has them."""
    return {
        key: "" if value is None else printable(json.dumps(value) if isinstance(value, list) else str(value))
        for key, value in row.items()
    }
