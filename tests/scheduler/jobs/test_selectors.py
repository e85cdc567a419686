"""Words that select jobs, read."""

import pytest

from profiles.errors import BadInput
from scheduler.jobs.selectors import Selector, Span, read_selector


@pytest.mark.parametrize(
    ("word", "selector"),
    [
        ("all", Selector("all")),
        ("7", Selector(spans=(Span(7, 7, True),))),
        ("3-9", Selector(spans=(Span(3, 9, False),))),
        ("7[3]", Selector(array=7, spans=(Span(3, 3, True),))),
        ("7[1,5-9]", Selector(array=7, spans=(Span(1, 1, True), Span(5, 9, False)))),
    ],
)
def test_good_words(word: str, selector: Selector) -> None:
    assert read_selector(word) == selector


@pytest.mark.parametrize(
    "word",
    ["", "x", "-1", "1-", "9-3", "7[", "7[]", "7[3", "7[a]", "7[1,]", "[3]", "7[9-3]", "1,2"],
)
def test_words_that_select_nothing(word: str) -> None:
    with pytest.raises(BadInput):
        read_selector(word)
