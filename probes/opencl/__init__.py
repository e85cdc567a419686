"""OpenCL: the ``devices`` of this machine, and a ``layer`` that counts the needs of programs.

The layer is C, compiled when needed.
"""
