"""Virtual time: simulated jobs on a simulated cluster, under the policies that also schedule real jobs.

``trace`` has input, settings and output of a simulation, ``simulator`` runs it, ``metrics`` has its figures.
"""
