"""Policies that choose the units and the power cap of each job within a power budget.

``parm`` lists the options of a job, ``multiple_choice_knapsack`` chooses among those of all jobs.
"""
