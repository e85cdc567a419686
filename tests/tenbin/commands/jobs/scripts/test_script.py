"""Files on the command line of ``tenbin submit``: scripts, programs, and what is neither."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from profiles.errors import BadInput
from tenbin.commands.jobs.scripts import is_script


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scripts_and_programs(folder: Path) -> None:
    (folder / "job.sh").write_text("#!/bin/sh\n")  # need not be executable: sbatch reads it too
    shutil.copy("/bin/true", folder / "prog")
    assert is_script("job.sh") and is_script("./job.sh")
    assert not is_script("./prog") and not is_script("prog")
    (folder / "sleep").write_text("notes")
    (folder / "cat").mkdir()
    for word in ("sleep", "cat", "no-such-program", "./not-made-yet", "a\0b", ""):
        assert not is_script(word)
    assert not is_script("/proc/self/mem")  # no read of its beginning succeeds


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("word", ["m.sh", "./m.sh"])
@pytest.mark.parametrize("content", ["echo hello\n", "", "\n#!/bin/sh\n"])
def test_a_script_without_an_interpreter_is_refused_with_the_remedy(
    folder: Path, word: str, content: str, mode: int
) -> None:
    (folder / "m.sh").write_text(content)
    (folder / "m.sh").chmod(mode)
    with pytest.raises(BadInput) as caught:
        is_script(word)
    assert str(caught.value) == (
        f"{word} is no script: its first line does not begin with #!; "
        f"write #!/bin/sh there, or: tenbin submit -- sh {word}"
    )


def test_other_files_that_could_not_run(folder: Path) -> None:
    (folder / "jobs.toml").write_text("[[job]]\n")
    shutil.copy("/bin/true", folder / "prog")
    (folder / "prog").chmod(0o644)
    os.mkfifo(folder / "pipe")
    for word, remedy in (
        ("jobs.toml", "tenbin submit --file jobs.toml"),
        ("/etc", "name a script or a program"),
        (".", "name a script or a program"),
        ("./pipe", "name a script or a program"),
        ("/dev/null", "name a script or a program"),
        *((("./prog", "chmod +x ./prog"),) if os.geteuid() else ()),
    ):
        with pytest.raises(BadInput) as caught:
            is_script(word)
        assert caught.value.remedy == remedy
