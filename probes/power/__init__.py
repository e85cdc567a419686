"""Power meters and power caps of packages and GPUs, and the loads that are measured under caps."""
