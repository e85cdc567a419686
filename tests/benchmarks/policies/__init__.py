"""Policies, simulator and forecasts beside their peers."""
