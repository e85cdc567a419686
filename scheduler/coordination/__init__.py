"""Real jobs: the coordinator around one policy and one engine, its journal, and what users ask for."""
