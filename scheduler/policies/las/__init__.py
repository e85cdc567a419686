"""Policies by least attained service, for tasks of unknown run time on nodes with several resources.

``two_level`` is their base: a central queue and decisions on each node (``node_las``).
"""
