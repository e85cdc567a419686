"""Estimates of run times, costs and slow-downs, from profiles and from earlier jobs, and their accuracy.

``run_times`` estimates what jobs need, ``profiles`` has all that profiles measured. ``tracker`` keeps the
``predictions`` of running jobs beside their outcomes, and learns from these what checkpoints and restarts
cost.
"""
