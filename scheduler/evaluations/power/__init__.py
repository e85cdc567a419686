"""Paper C's evaluation: jobs under a power budget."""
