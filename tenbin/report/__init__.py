"""The report: one self-contained page; ``tenbin/report/<probe>.py`` draws one probe."""
