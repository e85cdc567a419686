"""A layer below OpenCL programs that moves them: they are parked, resumed, and moved to another device unaware.

``src`` is C++, compiled when it is first needed (``build``) with the pass-through that ``generate`` makes of the
system's headers. ``requests`` asks the layer in a running program.
"""
