"""Checks of a node: records and their store, tests against a reference, causes and consequences."""
