"""docs/run-jobs.md, typed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.typed_pages import LESS, Block, blocks, matches, type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_jobs(tmp_path: Path) -> None:
    type_in("run-jobs", tmp_path, running=False)


def test_a_page_is_read_as_it_is_written() -> None:
    page = "```sh\none\n```\n```text\n1 ... 2\n```\n```sh needs=Slurm\ntwo\n```\n```python\nthree\n```\n"
    first, second = Block("one\n", "1 ... 2\n"), Block("python3 - <<'END'\nthree\nEND\n", None)
    assert list(blocks(page)) == [first, second]
    assert matches("1 ... 2", "1  x\ny 2\n") and matches("...", "") and not matches("1 ... 2", "1 x 3")
    assert (
        matches("1.5 s", "2.0e-05 s")
        and matches("1.5 s", "20 us")
        and not matches("1.5 s", "2 MB")
        and not matches("2 s", "3 s")
    )


def test_what_gets_less_work_is_on_a_page() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert all(more in text for more, _ in LESS)
