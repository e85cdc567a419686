"""Choice of jobs by users: filters of lists, and selectors."""
