"""Output of jobs, from a program."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tenbin.client.client import lines, pieces
from tests.support.coordinator import Up


@given(st.text(alphabet="aé€\n\r😀"), st.lists(st.integers(0, 40)))
def test_lines_are_those_of_the_whole_text(text: str, cuts: list[int]) -> None:
    data, places = text.encode(), [0, *sorted(cuts), None]
    parts = [data[a:b] for a, b in pairwise(places)]
    found = list(lines(parts))
    assert "".join(found) == text
    assert all(line.endswith("\n") for line in found[:-1])
    assert all("\n" not in line[:-1] and line for line in found)


def test_what_is_not_utf_8_is_replaced() -> None:
    assert list(lines([b"a\xff\nb\xe2", b"\x82"])) == ["a�\n", "b�"]


def test_nothing_is_lost_that_is_written_before_the_end() -> None:
    written, looks = [b"one"], iter([False, True])

    def has_ended() -> bool:
        written.append(b" more")
        return next(looks)

    found = b"".join(pieces(lambda start: b"".join(written)[start : start + 2], has_ended, follow=True))
    assert found == b"one more more"


def test_output_of_a_job(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    script = "echo out; echo err >&2; while ! [ -e go ]; do sleep 0.02; done; printf 'grün\\377'"
    job = up.client.submit(["sh", "-c", script], folder=str(tmp_path))
    followed = job.logs(follow=True)
    assert next(followed) == "out\n"
    assert job.stdout() == "out\n" and list(job.logs()) == ["out\n"] and not job.done()
    (tmp_path / "go").touch()
    assert list(followed) == ["grün�"] and job.done()
    assert job.stdout() == "out\ngrün�" and job.stderr() == "err\n"
    assert list(job.logs(stream="stderr")) == ["err\n"]
    assert list(job.output()) == ["out\ngrün".encode() + b"\xff"]
