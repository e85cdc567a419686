"""Decides: policies, the coordinator, engines, simulator, workloads and evaluations. Touches no hardware."""
