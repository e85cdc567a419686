"""Costs of checkpoints and restarts of each OpenCL device and storage folder."""
