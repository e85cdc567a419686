"""The journal: every job and what happened to it, in a file checked whole at each start; its recovery."""
