"""Predictions of run times, costs and slow-downs, from profiles and from earlier jobs; and how good they
were.
"""
