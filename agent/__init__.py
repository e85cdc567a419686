"""Acts on one node: inventory, runs probes, keeps the lock and the restore journal. Knows no other node."""
