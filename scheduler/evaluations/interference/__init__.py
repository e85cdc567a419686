"""Paper D's evaluation: jobs that share nodes."""
