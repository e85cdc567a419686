"""Memory bandwidth in STREAM's terms, and the latency of an access over the size of the working set.

``streams.c`` has the loops, ``library`` compiles and calls them, ``threads`` runs them on pinned threads,
``plan`` says what to measure on a given machine, and ``probe`` measures.
"""
