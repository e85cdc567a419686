"""Power caps and energy of one job, on packages of this node or on all nodes of the job.

Coordinator and supervisor exchange caps by files (``caps``). A ``CapKeeper`` caps one node.
"""
