"""Files of profiles: whole or not at all, by direct I/O, and the stores of node and job profiles."""
