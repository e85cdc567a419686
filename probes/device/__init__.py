"""Speed of each OpenCL device: memory, arithmetic, launches, and copies from and to the host.

``probe`` visits the devices; ``session`` measures one in a process of its own, with the kernels of
``kernels.cl``. Every result is checked.
"""
