"""Policies by least attained service, for tasks of unknown run time on nodes with several resources."""
