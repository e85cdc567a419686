"""The Slurm cluster of the engines' tests, which is gone when the benchmarks of this folder are done."""

from tests.scheduler.engines.conftest import _cluster, lab

__all__ = ["_cluster", "lab"]
