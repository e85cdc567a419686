"""The live page: a process of its own that reads the journal, and asks the coordinator only for reasons."""
