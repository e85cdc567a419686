"""Requests of users to a coordinator."""
