"""Policies with a queue: fcfs, first fit, EASY and conservative backfilling, on counted units and on nodes.

``queue`` has the queues of one counted pool, ``multi_pool`` those of several, ``on_nodes`` those of nodes;
``availability`` is free units over time, ``reservations`` what is planned there for waiting jobs.
"""
