"""Power of packages and GPUs at rest, under load and under caps.

``powercap`` reads the kernel's tree, ``counters`` and ``meters`` make energies of it, ``caps`` sets limits.
``probe`` measures ``loads`` under caps, and ``gpu`` the NVIDIA GPUs.
"""
