"""Commands for job profiles: how much a program slows others down, and others slow the program."""
