"""joblib's ``Parallel`` by jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

joblib = pytest.importorskip("joblib")
from tenbin.client.joblib import register  # noqa: E402


@pytest.fixture(autouse=True)
def backend() -> Iterator[None]:
    register()
    yield
    joblib.parallel.BACKENDS.pop("tenbin", None)


def test_parallel(home: Path) -> None:
    with joblib.parallel_config(backend="tenbin", n_jobs=2, home=home):
        assert joblib.Parallel()(joblib.delayed(lambda n: n * n)(n) for n in range(6)) == [0, 1, 4, 9, 16, 25]
        found = joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(2))
        assert os.getpid() not in found
        ordered = joblib.Parallel(return_as="generator")(joblib.delayed(pow)(2, n) for n in range(3))
        assert list(ordered) == [1, 2, 4]


def test_an_error_ends_the_rest(home: Path) -> None:
    with joblib.parallel_config(backend="tenbin", n_jobs=-1, home=home):
        assert joblib.effective_n_jobs() == 2
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, n - 2) for n in range(5))
        assert joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(3)) == [0, 1, 2]
