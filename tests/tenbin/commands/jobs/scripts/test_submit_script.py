"""Scripts submitted by the command line to a real coordinator: what runs, and what it finds."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts import LARGEST, read_script
from tests.support.coordinator import Up
from tests.support.programs import tenbin

SCRIPT = """#!/bin/sh
# A comment, and an empty line

#SBATCH --job-name=fit -c 2   # two cores
#SBATCH --mem=100M --mail-type=END
#SBATCH -o out_%x_%a.txt -t 10
#TENBIN --time 5m --env "WHO=two words"
echo "$1|$2|$3|$WHO|$SLURM_JOB_ID|$SLURM_CPUS_PER_TASK|$SLURM_ARRAY_TASK_ID|$SLURM_SUBMIT_DIR|${0##*/}"
echo wrong >&2
#SBATCH --no-such-option
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a script to the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_it_was_at_its_submission(up: Up, script: Path, tmp_path: Path) -> None:
    up.start("--cores", "2")
    blocker = up.client.submit(["sleep", "600"], cores=2)
    done = up.run("submit", "job.sh", "--steps", "7", "-c")  # these three are the script's
    assert done.returncode == 0 and done.stdout == "2\n", done.stderr
    assert "job.sh, line 5: #SBATCH --mail-type is left out" in done.stderr
    script.write_text("#!/bin/sh\nexit 1\n")
    up.kill()
    up.start("--cores", "2")
    blocker.cancel()
    assert up.client.job(2).result(30) == 0
    output = (tmp_path / "out_fit_0.txt").read_text()
    assert output == f"--steps|7|-c|two words|2|2||{tmp_path}|job.sh\nwrong\n"
    spec = up.client.job(2).info()["spec"]
    assert (spec["cores"], spec["time_s"], spec["memory_mb"]) == (2, 300, 104.8576)
    assert len(list((up.home / "scripts").glob("*/job.sh"))) == 1


def test_the_command_line_goes_before_the_lines_and_arrays_have_slurms_variables(
    up: Up, script: Path, tmp_path: Path
) -> None:
    up.start("--cores", "2")
    done = up.run("submit", "-c", "1", "--array", "3,5", "--env", "WHO=me", "--wait", "--json", "job.sh", "a")
    ids = json.loads(done.stdout)["ids"]
    assert done.returncode == 0 and len(ids) == 2
    for job_id, index in zip(ids, (3, 5), strict=True):
        first = (tmp_path / f"out_fit_{index}.txt").read_text().splitlines()[0]
        assert first == f"a|||me|{job_id}|1|{index}|{tmp_path}|job.sh"
    assert len(list((up.home / "scripts").glob("*/job.sh"))) == 1  # kept once for all


def test_words_after_dashes_are_a_program(up: Up, script: Path) -> None:
    up.start("--cores", "2")
    script.chmod(0o755)
    done = up.run("submit", "--wait", "--", "./job.sh")
    assert done.returncode == 0 and "#SBATCH" not in done.stderr
    info = up.client.job(1).info()
    assert info["spec"]["command"] == ["./job.sh"] and info["spec"]["cores"] == 1
    assert not (up.home / "scripts").exists()


def test_no_variables_of_the_submitter(
    up: Up, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN", "mine")
    monkeypatch.setenv("NAMED", "yes")
    up.start("--cores", "2")
    for value, expected in (("NONE", "||"), ("NAMED,MORE=1", "|yes|1"), ("ALL,MORE=2", "mine|yes|2")):
        script.write_text(f'#!/bin/sh\n#SBATCH --export={value}\necho "$OWN|$NAMED|$MORE"; echo $HOME\n')
        done = up.run("submit", "--wait", "job.sh")
        assert done.returncode == 0, done.stderr
        told = done.stdout.partition("\n")[2].splitlines()
        assert told[0] == expected and told[1], value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#TENBIN --tim 5\n", "job.sh, line 2: #TENBIN: No such option: --tim"),
        ("#TENBIN -c 0\n", "job.sh, line 2: #TENBIN: Invalid value for '--cores'"),
        ("#TENBIN -c 2\n#TENBIN --time soon\n", "job.sh, line 3: #TENBIN --time 'soon' is no duration"),
        ("#TENBIN word\n", "job.sh, line 2: #TENBIN: 'word' is no option"),
        ("#TENBIN --json\n", "job.sh, line 2: #TENBIN: --json is not of the job"),
        ("#TENBIN --help\n", "job.sh, line 2: #TENBIN: --help is no option of a job"),
        ("#TENBIN --name 'a\n", "job.sh, line 2: #TENBIN: No closing quotation"),
        (
            "#SBATCH -N 2\n#TENBIN --nodes 2\n#SBATCH --mem=1G",
            "job.sh, line 4: #SBATCH --mem=1G: of whole nodes",
        ),
        ("echo\r\n", "DOS line breaks"),
        ("\0", "zero byte"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(script: Path, text: str, words: str) -> None:
    script.write_bytes(b"#!/bin/sh\n" + text.encode())
    done = tenbin("submit", "--dry-run", "job.sh")
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_what_is_refused_can_be_left_out_by_name_or_overruled(script: Path) -> None:
    lines = ["#!/bin/sh", "#SBATCH --exclusive -C fast", "#SBATCH -N 2 --gres=shard:1"]
    for more in (["#TENBIN --ignore-sbatch exclusive,constraint --ignore-sbatch gres -n 3"], []):
        script.write_text("\n".join(lines + more))
        done = tenbin("submit", "--dry-run", "job.sh")
        assert done.returncode == (0 if more else 2), done.stderr
    options = ("--ignore-sbatch", "exclusive,constraint", "-n", "3", "--gpus", "1")
    assert "3 tasks x 1 core, 1 GPU in all" in tenbin("submit", "--dry-run", *options, "job.sh").stdout
    done = tenbin("submit", "--dry-run", "--ignore-sbatch", "exclusive", "--", "true")
    assert done.returncode == 2 and "--ignore-sbatch without a script" in done.stderr


def test_of_a_huge_file_no_more_is_read_than_a_script_may_have(script: Path) -> None:
    with script.open("r+b") as file:
        file.truncate(6 << 30)  # sparse
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="more than 4 MiB"):
            read_script(str(script))
        assert tracemalloc.get_traced_memory()[1] < 3 * LARGEST
    finally:
        tracemalloc.stop()
