"""Virtual time: simulated jobs on a simulated cluster, under the policies that also schedule real jobs.

``simulator`` runs a simulation with its ``settings``; ``metrics`` and ``breakdown`` gather its figures.
"""
