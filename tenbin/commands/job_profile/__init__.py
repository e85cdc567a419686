"""Commands for job profiles: what a program presses with and suffers from."""
