"""Jobs on several nodes: ranks, one keeper a node, leases, and allocations that are used again."""
