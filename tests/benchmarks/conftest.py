"""A coordinator for benchmarks, as the tests have it."""

from tests.coordinator.conftest import up

__all__ = ["up"]
