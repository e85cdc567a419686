"""One attempt to run a job: its folder with its files, and the start of its command.

A coordinator and a supervisor know of each other by these files alone, so either can be killed at any
instant.
Only the standard library is imported here: a job must start in a millisecond.
"""
