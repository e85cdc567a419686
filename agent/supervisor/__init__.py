"""The process that supervises one attempt: it waits for the command, keeps limits, samples use and obeys
requests.

It outlives the coordinator.
"""
