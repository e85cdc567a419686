"""What several engines need: the folders of jobs, orders for supervisors, and the places of regions."""
