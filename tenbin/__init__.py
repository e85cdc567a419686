"""The face: command line, reports, and the few names that a user program imports."""

__version__ = "0.1.0"
