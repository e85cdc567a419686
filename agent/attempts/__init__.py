"""One attempt to run a job: the files in its folder, and the start of its command.

Coordinator and supervisor communicate by these files alone, so either can be killed at any instant.
"""
