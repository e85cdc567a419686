"""Floating point speed of the cores, alone and all together, and their clock meanwhile.

A ``worker`` is a process on one core, a ``pool`` has workers compute at the same time. ``kernels`` are
compiled C: multiply-adds in vector registers, and the chain of additions that tells the clock.
"""
