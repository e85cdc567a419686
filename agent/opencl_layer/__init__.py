"""A layer below OpenCL programs that parks them, resumes them, and moves them to another device.

``src`` is C++, compiled when it is first needed (``build``) with the pass-through that ``generate`` makes of
the system's headers. ``requests`` asks the layer in a running program. ``loader`` finds OpenCL loaders that
load no layer.
"""
