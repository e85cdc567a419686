"""Checkpoints of OpenCL programs, so that tenbin can stop and move them: ``tenbin.Checkpoint``, its files."""
