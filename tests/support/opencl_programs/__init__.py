"""OpenCL programs that know nothing of tenbin, for the layer that moves them."""
