"""Policies, engines and machines for tests of schedules."""
