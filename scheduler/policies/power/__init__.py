"""Policies that choose the units and the power cap of each job within a power budget."""
