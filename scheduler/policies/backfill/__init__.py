"""Policies with a queue for counted units: fcfs, first fit, EASY and conservative backfilling."""
