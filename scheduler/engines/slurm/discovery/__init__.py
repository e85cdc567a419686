"""Discovery for ``tenbin up --engine slurm``: the nodes of a partition, their kinds, devices and power caps.

``find`` makes a machine of them, which makes its engine.
"""

from scheduler.engines.slurm.discovery.cluster import find

__all__ = ["find"]
