"""Scheduling by predicted run times; no paper's, but tenbin's own evaluation."""
