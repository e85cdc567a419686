"""Costs of checkpoints and restarts of each OpenCL device and storage folder.

``probe`` visits the ``items``, which are carried out on ``subjects``, the devices. Each device
has a session in a process of its own (``device_session``, ``device_process``).
"""
