"""Memory bandwidth, and how much writers slow each other down (memprobe)."""
