"""The supervisor of one attempt, and the processes that start supervisors.

A supervisor waits for the command, holds its limits, samples its use and carries out requests. It outlives
the coordinator.
"""
