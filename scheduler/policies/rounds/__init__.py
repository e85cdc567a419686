"""Policies of others that choose anew in every round which jobs run, and where: rivals in evaluations.

``rounds`` is their base.
"""
