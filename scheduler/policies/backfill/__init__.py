"""Policies with a queue for counted units: fcfs, first fit, EASY and conservative backfilling.

``queue`` has the queues of one pool, ``multi_pool`` those of several; ``availability`` is free
units over time.
"""
