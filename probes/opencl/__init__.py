"""OpenCL devices, and a layer that watches what programs do with them."""
