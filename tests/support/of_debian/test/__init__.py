"""The package ``test`` of Debian's Python, for a Python that lacks parts of its own."""

import sys

__path__ = [f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}/test"]
