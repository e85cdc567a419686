"""Transitions of jobs beside start and end: alarms, departures, and what external jobs do."""
