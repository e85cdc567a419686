"""Knows: record types, models (fit, predict, uncertainty) and the store. Runs nothing."""
