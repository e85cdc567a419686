"""The report: one self-contained page; ``tenbin/report/probes/<probe>.py`` draws one probe.

Such a file has ``EXPLANATION`` and ``figures(samples, models)``. If it draws what several
probes tell together, it also has ``figures_across(models)``, which gets the models of all probes. Probes of
one subject share a file (``SHARED`` of ``drawings``).
"""
