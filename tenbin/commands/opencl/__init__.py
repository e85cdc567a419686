"""``tenbin opencl``: start unmodified OpenCL programs so that they can be moved, and move them."""
