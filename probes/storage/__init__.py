"""Speed of storage folders by direct I/O: sequential, random, and synced writes.

``probe`` visits the operations, ``place`` keeps the files of one folder, ``timing`` times their operations
and holds what is written and read.
"""
