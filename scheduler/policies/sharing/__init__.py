"""Policies that let jobs share nodes by what they are predicted to do to each other."""
