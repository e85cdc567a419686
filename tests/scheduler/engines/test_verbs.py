"""Each verb of the queue on each engine: a user sees the same, however jobs are run."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenbin
from tests.support.coordinator import Up

START = {
    "local": ("--cores", "2"),
    "slurm": ("--engine", "slurm", "--unit", "1", "--lease", "3"),
}
# Notes its beginning, waits until it may go, notes its end.
NOTES = (
    "echo $TENBIN_ARRAY_INDEX >>begun; until [ -e go ]; do sleep 0.05; done; echo $TENBIN_ARRAY_INDEX >>ended"
)


class Queue(Up):
    """A coordinator that the tests of an engine share, and that is started again with the same options."""

    def __init__(self, home: Path, options: tuple[str, ...]) -> None:
        super().__init__(home)
        self.options = options
        self.start(*options)

    def start_again(self) -> None:
        self.kill()
        self.start(*self.options)

    def say(self, *words: str, code: int = 0) -> str:
        """Run a command and return what it prints."""
        done = self.run(*words)
        assert done.returncode == code, (words, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    def refuse(self, *words: str) -> str:
        """Run a command that is refused, by one line that is returned."""
        done = self.run(*words)
        assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, (words, done)
        return done.stderr

    def ask(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.say(*words, "--json", code=code))

    def shell(self, folder: Path, body: str, *options: str) -> str:
        """Submit a line of shell, and return the number of the job or array."""
        return self.say("submit", "--chdir", str(folder), *options, "--", "sh", "-c", body).strip()

    def stages(self, array: str) -> dict[str, int]:
        """Return how many members of the array are in each stage."""
        found: dict[str, int] = self.client.job(int(array)).info()["stages"]
        return found


@pytest.fixture(scope="module", params=START)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Yield a coordinator on each engine."""
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "slurm":
            cluster = request.getfixturevalue("_cluster")
            for name, value in cluster.env.items():
                environment.setenv(name, value)
        found = Queue(tmp_path_factory.mktemp(request.param) / "home", START[request.param])
        yield found
        found.sweep()
        if request.param == "slurm":
            cluster.mend()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    """Yield the coordinator; jobs that a failed test leaves are cancelled."""
    yield shared
    left = [job["id"] for job in shared.client.call("GET", "/jobs")]
    if left:
        shared.client.call("POST", "/cancel", {"ids": left})
        shared.client.ended(left, 60, all=True)


def lines(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []


def test_no_more_members_run_at_once_than_asked_for(queue: Queue, tmp_path: Path) -> None:
    body = (
        "mkdir at-$TENBIN_ARRAY_INDEX; ls -d at-* | wc -l >>counts; "
        + NOTES
        + "; rmdir at-$TENBIN_ARRAY_INDEX"
    )
    array = queue.shell(tmp_path, body, "--array", "1-6%2", "--name", "limited")
    queue.until(lambda: len(lines(tmp_path / "begun")) == 2, 60)
    queue.until(lambda: queue.stages(array).get("running") == 2, 60)
    row = next(line for line in queue.say("jobs").splitlines() if line.split()[0] == array)
    assert "limited" in row and "running 2" in row
    assert "at most 2 run at once" in queue.say("info", array)
    (tmp_path / "go").touch()
    queue.say("wait", array)
    assert set(lines(tmp_path / "counts")) <= {"1", "2"}
    assert lines(tmp_path / "begun") == lines(tmp_path / "ended") == list("123456")
    assert queue.stages(array) == {"done": 6}


def test_members_are_suspended_resumed_and_cancelled(queue: Queue, tmp_path: Path) -> None:
    """Of those that run, and of those that wait."""
    array = queue.shell(tmp_path, NOTES, "--array", "1-8")
    queue.until(lambda: len(lines(tmp_path / "begun")) >= 2, 60)
    queue.say("suspend", f"{array}[1,7-8]")
    queue.until(lambda: queue.stages(array).get("suspended") == 3, 60)
    assert f"left out {array}[1,7-8]: is suspended already" in queue.run("suspend", array).stderr
    queue.until(lambda: queue.stages(array) == {"suspended": 8}, 60)
    queue.say("cancel", f"{array}[2,8]")
    queue.until(lambda: queue.stages(array).get("cancelled") == 2, 60)
    queue.say("resume", f"{array}[1]", f"{array}[3-7]")
    (tmp_path / "go").touch()
    assert "cancelled" in queue.run("wait", array).stderr
    assert queue.stages(array) == {"done": 6, "cancelled": 2}
    assert (
        lines(tmp_path / "ended") == list("134567") and max(Counter(lines(tmp_path / "begun")).values()) == 1
    )


def test_retry_runs_again_what_failed(queue: Queue, tmp_path: Path) -> None:
    body = (
        "echo $TENBIN_GENERATION; echo $TENBIN_ARRAY_INDEX >>begun; "
        "[ $((TENBIN_ARRAY_INDEX % 2)) = 0 ] || [ -e mended ] || exit 4"
    )
    array = queue.shell(tmp_path, body, "--array", "1-4")
    queue.say("wait", array, code=4)
    assert queue.stages(array) == {"done": 2, "failed": 2}
    (tmp_path / "mended").touch()
    assert queue.say("retry", array).startswith("2 jobs will run again: ")
    queue.say("wait", array)
    assert lines(tmp_path / "begun") == ["1", "1", "2", "3", "3", "4"]
    assert queue.say("logs", array).split() == ["1", "2", "1", "1", "2", "1"]  # of all attempts
    assert f"array {array} has no job that ended without success" in queue.refuse("retry", array)
    single = queue.shell(tmp_path, "exit 5")
    queue.say("wait", single, code=5)
    queue.say("retry", single)
    queue.say("wait", single, code=5)
    assert queue.ask("info", single)["attempt"] == 2


def test_jobs_are_tried_again_by_exit_code(queue: Queue, tmp_path: Path) -> None:
    body = "echo x >>$0; [ $(wc -l <$0) = 3 ] || exit 7"
    options = ("--retries", "3", "--retry-pause", "0.1s", "--retry-on")
    again = queue.say(
        "submit", "--chdir", str(tmp_path), *options, "7", "--", "sh", "-c", body, "again"
    ).strip()
    other = queue.say(
        "submit", "--chdir", str(tmp_path), *options, "8", "--", "sh", "-c", body, "other"
    ).strip()
    queue.say("wait", again)
    queue.say("wait", other, code=7)
    assert lines(tmp_path / "again") == ["x"] * 3 and lines(tmp_path / "other") == ["x"]


def test_jobs_wait_for_others_and_for_a_time(queue: Queue, tmp_path: Path) -> None:
    first = queue.shell(tmp_path, "exit $((TENBIN_ARRAY_INDEX - 1))", "--array", "1-2")
    then = {
        kind: queue.shell(tmp_path, "true", f"--{kind}", first)
        for kind in ("after", "after-any", "after-not-ok")
    }
    members = queue.shell(tmp_path, "true", "--array", "1-2", "--after-corr", first)
    late = queue.shell(tmp_path, "date +%s.%N", "--begin", "now+2s")
    ended = queue.shell(tmp_path, "sleep 600", "--deadline", "now+8s")
    assert queue.ask("wait", late)[0]["stage"] == "done"
    asked_s = queue.ask("info", late)["spec"]["begin_s"]
    assert float(queue.say("logs", late)) >= asked_s
    ends = {kind: queue.client.job(int(job)).wait(60)["stage"] for kind, job in then.items()}
    assert ends == {"after": "cancelled", "after-any": "done", "after-not-ok": "done"}
    queue.client.job(int(members)).wait(60)
    assert queue.stages(members) == {"done": 1, "cancelled": 1}
    assert queue.client.job(int(ended)).wait(60)["trouble"] == "it reached its deadline"


def test_scripts_and_names_of_outputs(queue: Queue, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --array=3-4 --job-name=fit\n#SBATCH --output=%x-%A-%2a.out\n"
        "#SBATCH --mail-type=END\n#TENBIN --env WHO=me\necho $WHO $1 $TENBIN_ARRAY_INDEX\n"
    )
    words = ("submit", "--chdir", str(tmp_path), str(script), "word")
    done = queue.run(*words)
    assert done.returncode == 0 and "line 4: #SBATCH --mail-type is left out" in done.stderr
    queue.say("wait", array := done.stdout.strip())
    for index in (3, 4):
        assert (tmp_path / f"fit-{array}-0{index}.out").read_text() == f"me word {index}\n"
    script.write_text("#!/bin/bash\n#SBATCH --constraint=fast\ntrue\n")
    before = queue.client.call("GET", "/jobs/count?all=true")
    assert "line 2: #SBATCH --constraint" in queue.refuse(*words)
    assert queue.client.call("GET", "/jobs/count?all=true") == before
    number = queue.shell(
        tmp_path, "echo out; echo err >&2", "--output", "%j.out", "--error", "%x.err", "--name", "n"
    )
    queue.say("wait", number)
    assert (tmp_path / f"{number}.out").read_text() == "out\n" and (tmp_path / "n.err").read_text() == "err\n"


def test_lists_by_filters(queue: Queue, tmp_path: Path) -> None:
    array = queue.shell(tmp_path, NOTES, "--array", "1-2", "--name", "filter array")
    bad = queue.shell(tmp_path, "exit 3", "--name", "filter bad")
    held = queue.shell(tmp_path, "true", "--begin", "now+1h", "--name", "filter held")
    queue.until(lambda: len(lines(tmp_path / "begun")) == 2, 60)

    def numbers(*options: str) -> list[str]:
        written = queue.say("jobs", "--csv", "--columns", "id,stage", "--name", "filter*", *options)
        return [row["id"] for row in csv.DictReader(io.StringIO(written))]

    members = [str(int(array) + 1), str(int(array) + 2)]
    queue.until(lambda: queue.stages(array) == {"running": 2}, 60)
    assert [one for one in numbers() if one != bad] == [*members, held]  # it may have ended, or run
    assert [one for one in numbers("--stage", "running") if one != bad] == members
    assert numbers("--stage", "held") == [held]
    place = queue.client.job(int(members[0])).info()["place"]
    assert members[0] in numbers("--place", place) and numbers("--place", "nowhere") == []
    (tmp_path / "go").touch()
    queue.say("wait", array)
    queue.say("wait", bad, code=3)
    assert numbers("--stage", "failed") == [bad] and sorted(numbers("--stage", "done")) == members
    first, *ended = numbers("--since", "1h")
    assert first == held and sorted(ended) == sorted([*members, bad])
    queue.say("cancel", held)


def test_what_jobs_use(queue: Queue, tmp_path: Path) -> None:
    busy = (
        "import os, time\nkept = bytearray(60_000_000)\nwhile not os.path.exists('go'): sum(range(100_000))"
    )
    options = ("--memory", "400M", "--time", "1h", "--chdir", str(tmp_path))
    job = queue.say("submit", *options, "--", "python3", "-c", busy).strip()
    queue.until(lambda: queue.ask("info", job)["now"], 60)
    assert "uses now: " in queue.say("info", job)
    queue.until(lambda: (queue.ask("history", job)[0]["cpu_s"] or 0) > 0.5, 60)
    (tmp_path / "go").touch()
    queue.say("wait", job)
    used = queue.ask("history", job)[0]
    assert used["stage"] == "done" and used["cpu_s"] > 0.5 and 60 < used["peak_memory_mb"] < 300
    assert used["memory_asked_mb"] == 400 and used["time_limit_s"] == 3600 and used["place"]
    told = queue.ask("history", "--efficiency", job)
    assert told["jobs"] == 1 and told["memory"]["max"] == used["memory_efficiency"]
    assert any("--time" in sentence for sentence in told["advice"])
    with io.StringIO(queue.say("history", job, "--csv")) as written:
        assert [row["id"] for row in csv.DictReader(written)] == [job]


def test_map(queue: Queue) -> None:
    arguments = ["two  words", "a\nb", "é", "", "-n", "*"]
    told = queue.say("map", "-k", "--", "printf", "[%s]", "{}", ":::", *arguments)
    assert told == "".join(f"[{argument}]" for argument in arguments)
    done = queue.run("map", "-j", "1", "--", "sh", "-c", "exit $1", "sh", "{}", ":::", "0", "3", "4")
    assert done.returncode == 2 and done.stderr.count("failed: exit code") == 2


def test_functions(queue: Queue) -> None:
    with tenbin.Executor(home=queue.home) as executor:
        assert list(executor.map(lambda n: n * n, range(5))) == [0, 1, 4, 9, 16]
        divided, killed = executor.submit(lambda: 1 / 0), executor.submit(os.kill, 0, signal.SIGKILL)
        with pytest.raises(ZeroDivisionError):
            divided.result()
        with pytest.raises(tenbin.NoResult, match="SIGKILL"):
            killed.result()
    assert not any((queue.home / "functions").iterdir())


def test_output_is_followed(queue: Queue, tmp_path: Path) -> None:
    body = "echo one; until [ -e go ]; do sleep 0.05; done; echo two; echo err >&2"
    job = queue.client.submit(["sh", "-c", body], folder=str(tmp_path))
    followed = job.logs(follow=True)
    assert next(followed) == "one\n" and not job.done()
    (tmp_path / "go").touch()
    assert list(followed) == ["two\n"] and job.stderr() == "err\n" and job.stdout() == "one\ntwo\n"


def test_a_restart_in_the_middle_of_an_array(queue: Queue, tmp_path: Path) -> None:
    """Each member runs once, and not too many at once; what waits for it still does."""
    array = queue.shell(tmp_path, NOTES, "--array", "1-7%2", "--retries", "1", "--retry-pause", "0.1s")
    then = queue.shell(tmp_path, "wc -l <ended", "--after", array)
    queue.until(lambda: len(lines(tmp_path / "begun")) == 2, 60)
    queue.start_again()
    (tmp_path / "go").touch()
    queue.until(lambda: len(lines(tmp_path / "ended")) >= 4, 60)
    queue.start_again()
    queue.say("wait", array, then)
    assert lines(tmp_path / "begun") == lines(tmp_path / "ended") == list("1234567")
    assert queue.say("logs", then).strip() == "7" and queue.stages(array) == {"done": 7}
