"""Commands for jobs: submit them, look at them, wait, cancel, move."""
