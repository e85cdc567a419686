"""Coordinators killed again and again while jobs run."""
