"""The coordinator's process: its HTTP API over a Unix socket or TCP."""
