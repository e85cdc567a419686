"""The names that users' programs import: a client of the coordinator, stored profiles, simulations.

``tenbin`` itself exports them.
"""
