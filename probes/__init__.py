"""Measures: each probe returns a tidy table of raw samples, one row an observation. It fits nothing."""
