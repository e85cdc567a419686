"""One policy that weighs everything: prices of what is scarce, an index of jobs, one reservation."""
