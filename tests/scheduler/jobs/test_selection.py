"""Jobs that are selected by a filter or by their numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import FINAL, Entry, Stage
from scheduler.jobs.job_list import JobFilter, Selector, Span, entry_reading, read_selector
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement

# Words that select jobs, read.


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


# Filters of jobs: what the journal looks at cheaply leaves out no job that meets the conditions.


NAMES = ("fit", "fit 1", 'a"b', "ä[3]", "back\\\\slash", "")
PATTERNS = ("fit", "fit*", "*1", 'a"?', "ä[[]3]", "[f]it", "*\\\\*", "?", "[", "sleep", "nothing")
PLACES = ("core", "core0", "core1", "n-ä", "node7", "7", "nowhere")
USER = "me"
READING = entry_reading(USER)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """Jobs of each stage with each name, some in arrays, some that were never placed."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    entries = []
    for number in range(1, 241):
        spec = JobSpec(command=("/bin/sleep", "1"), folder="/", name=NAMES[number % len(NAMES)])
        entry = Entry(number, spec, "", submit_s=float(number), stage=list(Stage)[number % len(Stage)])
        if number % 5 == 0:
            entry.array, entry.array_index = 200 + number % 3, number
        if number % 4:
            entry.placement = Placement("core", 1, ((number % 2, 1),))
        if number % 7 == 0:
            entry.hosts = ["n-ä", "node7"]
        entry.end_s = 1000.0 + number if entry.stage.final else None
        entries.append(entry)
    journal.commit((), added=entries)
    yield journal
    journal.close()


def maybe(*values: object) -> st.SearchStrategy[object]:
    """Draw None, or one of the values."""
    return st.none() | st.sampled_from(values)


@given(
    st.builds(
        JobFilter,
        ids=st.none() | st.frozensets(st.integers(1, 250)),
        stages=st.frozensets(st.sampled_from(Stage)),
        name=maybe(*PATTERNS),
        user=maybe(USER, "you"),
        since_s=maybe(1000.0, 1100.0),
        until_s=maybe(0.0, 100.0),
        place=maybe(*PLACES),
        array=maybe(200, 201, 9),
        single=st.booleans(),
    )
)
def test_the_journal_leaves_out_nothing(journal: Journal, wanted: JobFilter) -> None:
    meant = [entry.id for entry in wanted.choose(journal.entries(), READING) if entry.stage in FINAL]
    found = [entry.id for entry in wanted.choose(journal.ended(wanted, USER), READING)]
    assert found == meant[::-1]
