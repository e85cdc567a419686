"""Policies: ``base`` is their interface, ``registry`` their names, and each family has a folder."""
