"""Requests of users: the specification of a job, its size, its memory, and its state in the journal."""
