"""Commands that measure, show and compare: profiles of nodes and of jobs."""
