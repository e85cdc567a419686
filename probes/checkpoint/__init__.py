"""Costs of checkpoints and restarts of each OpenCL device and storage folder.

``probe`` sweeps over the items of a ``plan``; ``items`` carries them out on ``subjects``, the devices. Each
device has a session in a process of its own (``device_session``, ``device_process``).
"""
