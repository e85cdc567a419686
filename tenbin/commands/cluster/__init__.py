"""Commands for the coordinator and its nodes."""
