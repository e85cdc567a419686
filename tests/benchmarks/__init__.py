"""Speed beside a peer, or a physical limit, in the same run; nothing fails on a clock.

The papers' own sizes take minutes: set ``TENBIN_BENCHMARK_FULL=1`` for them.
"""

import os

FULL = bool(os.environ.get("TENBIN_BENCHMARK_FULL"))
