"""What OpenCL programs import to be stopped and moved: ``tenbin.Checkpoint`` and its files."""
