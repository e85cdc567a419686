"""Power caps and energy of one job, on this node or on all nodes of the job."""
