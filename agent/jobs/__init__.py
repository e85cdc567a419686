"""Runs one job's command on this node, and keeps beside it what became of it.

Each attempt to run a job has a folder of its own. What its supervisor and a coordinator know of each other
lies there as files, so that either can be killed at any instant. Only the standard library is imported here:
a supervisor must start in a millisecond.
"""
