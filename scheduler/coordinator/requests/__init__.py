"""Requests of users: a choice of jobs, other priorities, an earlier start."""
