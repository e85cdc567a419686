"""Predictions of run times, costs and slow-downs, from profiles and from earlier jobs, and their accuracy.

``history`` and ``run_times`` predict run times, ``migration_costs`` checkpoints and restarts, ``profiles``
all that profiles measured. ``tracker`` keeps the ``predictions`` of running jobs beside their outcomes, with
``measured_parts`` of them.
"""
