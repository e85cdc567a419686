"""Parts that several engines share: folders of jobs, orders for supervisors, and places of regions."""
